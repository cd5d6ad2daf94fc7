"""Predict the speed of worker counts that were not measured, before they are.

  unet-scaling predict logs/STUDY --for 8,14 [--output FOLDER]

Reads the records of a study: at least 3 worker counts, 1 among them, none of those to be predicted. Prints
for every framework, set of options and count the step time and throughput with a 95 % interval, and writes
  predictions/<UTC date-time>.json   the same, with the SHA-256 of every file used and the commit; the file is
                                     never written again
Once the predicted counts are measured, the report holds the predictions against them: only those whose file
is older than the first run of the point. Commit the file before the runs start, and nobody can doubt it.
docs/background/prediction.md explains the model, the interval and the scores.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from unet_scaling.base.command_line import CommandLine, named_folder
from unet_scaling.base.errors import EXIT_OK, or_user_error
from unet_scaling.base.texts import called, count
from unet_scaling.base.validation import counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the prediction that the command line asks for."""
    options = command_line().parse_args(arguments)
    # Only now: --help and a wrong option need not wait for pandas.
    from analysis.predict.forecast import forecast_lines, predict_study
    from analysis.read.companion_files import PREDICTIONS_FOLDER, write_prediction
    from analysis.read.load import load_study

    study = load_study(options.study)
    if len(study.left_out):
        left_out = count(len(study.left_out), "run")
        print(f"{options.study} leaves out {left_out}: {called('report', options.study)} says why")
    prediction = predict_study(options.study, study, options.workers)
    target = options.output or options.study / PREDICTIONS_FOLDER
    with or_user_error(f"the prediction cannot be written to {target}", "try --output"):
        path = write_prediction(target, prediction)
    print(*forecast_lines(prediction, study.names), f"\nwritten: {path}", sep="\n")
    return EXIT_OK


def command_line() -> CommandLine:
    """Return the parser of this program."""
    parser = CommandLine("python -m analysis predict", __doc__)
    parser.add_argument("study", type=named_folder, metavar="STUDY", help="name or folder of a study")
    asked = "worker counts to predict, such as 8,14; none of them may be measured yet"
    parser.add_argument(
        "--for", dest="workers", required=True, type=counts_to_predict, metavar="N,N,...", help=asked
    )
    output = "where the file goes; default: predictions/ in the study's folder, where the report finds it"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=output)
    return parser


def counts_to_predict(text: str) -> list[int]:
    found = counts(text)
    if found[0] < 2:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: numbers of at least 2, such as 8,14")
    return found
