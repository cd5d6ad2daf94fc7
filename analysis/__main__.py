"""Compare the runs of a study: which framework trains faster, how far it scales, and at what IoU.

  python -m analysis logs/STUDY             the records of a study
      [--watch]                             again whenever a record changes, until all runs are complete
  python -m analysis --reference FOLDER     logs in the older layout: log_N.csv is native DDP on N
                                            workers, log_hvd_N.csv Horovod
      [--images M --batch B]                what an epoch had: gives the speed-up by steps
      [--names "MirroredStrategy,Horovod"]  what the two arms are, where it is not native DDP
  python -m analysis compare A B            two studies, before and after a change: --help says more

Writes to the report folder:
  report.html      the report: one file that needs nothing else, to be opened in a browser
  summary.csv      one row per point: throughput, speed-up, efficiency, deviation, IoU, with intervals
  runs.csv, epochs.parquet, evaluations.csv, comparison.csv, iou.csv, cost.csv, predictions.csv, ...
                   the tables behind it; docs/report.md explains every column
  left_out.csv     every run that is not used, and why
  summary.md, .tex the points as a table, for papers; citation.bib: what to cite
  summary.json     answers, verdicts, points and provenance, for programs
  application.md   text, table and figures for an application for compute time
  STUDY.toml       the study file, put together from the records: submit it to measure again
  scaling.svg      the overview picture, and every other figure; each also as PNG
and prints the answer, the points, what was left out, the recommendation and the verdict. It may be
repeated at any time: runs that are not complete are left out and listed.
"""

import argparse
import gc
import sys
from pathlib import Path

from analysis.compare import command
from analysis.loading.arm_names import arm_names
from analysis.loading.epoch_work import epoch_work
from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.report.assemble import make_report
from analysis.report.console import print_left_out, print_report, report_console
from analysis.report.files import write_report
from analysis.report.watch import watch
from analysis.study import NAMES, Study
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError, run_program
from unet_scaling.study.validation import positive

# As the first argument; a study folder of this name is given as ./compare.
COMPARE = "compare"
# Options that state what the records of a study hold, and older logs do not.
REFERENCE_OPTIONS = ("images", "batch", "names")
# Short beside a run, long beside a look at the folder.
WATCH_SECONDS = 10


def main(arguments: list[str] | None = None) -> int:
    """Write and print the report, or the comparison, that the command line asks for."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == [COMPARE]:
        return command.main(given[1:])
    options = command_line().parse_args(given)
    source: Path = options.reference or options.study
    if options.watch:
        return watch(_watched(options), options.output or source / "report", options.watch)
    study = _reference(options) if options.reference else load_study(_only_records(options))
    _require_runs(study, source)
    # The study stays until the end: no search for garbage, in any process, needs to visit it.
    gc.freeze()
    report = make_report(study)
    folder: Path = options.output or source / "report"
    try:
        write_report(report, folder)
    except OSError as error:
        raise UserError(f"the report cannot be written to {folder}: {error}; try --output") from None
    print_report(report, folder=folder)
    print(f"\nreport: {folder}")
    return EXIT_OK


def _watched(options: argparse.Namespace) -> Path:
    """Return the study's folder; raise UserError for logs, which do not change."""
    if options.reference:
        raise UserError("--watch: only for the records of a study, not with --reference")
    return _only_records(options)


def _reference(options: argparse.Namespace) -> Study:
    names = NAMES if options.names is None else arm_names(options.names)
    return load_reference(options.reference, epoch_work(options.images, options.batch), names)


def _only_records(options: argparse.Namespace) -> Path:
    """Return the study's folder; raise UserError for options that only older logs need."""
    given = [name for name in REFERENCE_OPTIONS if getattr(options, name) is not None]
    if given:
        options_given = " and ".join(f"--{name}" for name in given)
        raise UserError(f"{options_given}: only with --reference; the records of a study state it themselves")
    study: Path = options.study
    return study


def _require_runs(study: Study, source: Path) -> None:
    if study.subject.runs.empty:
        print_left_out(study, report_console())
        raise UserError(f"{source} has no usable run; the reasons are listed above", EXIT_BAD_DATA)


def command_line() -> CommandLine:
    parser = CommandLine("python -m analysis", __doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("study", nargs="?", type=Path, metavar="logs/STUDY", help="folder of a study's runs")
    source.add_argument("--reference", type=Path, metavar="FOLDER", help="folder of logs in the older layout")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=positive,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"look for changes every {WATCH_SECONDS} s, or so many",
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="M",
        help="with --reference: training images of an epoch over all workers, every pass counted "
        "(published study: 1120 images x 80 %% x 2 passes = 1792)",
    )
    parser.add_argument(
        "--batch", type=int, metavar="B", help="with --reference: images of a worker's step (published: 16)"
    )
    parser.add_argument(
        "--names", metavar="A,B", help="with --reference: what log_N.csv and log_hvd_N.csv are called"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where the report goes; default: report/ in the folder read",
    )
    return parser


if __name__ == "__main__":
    run_program(main)
