"""Report on a study: which framework trains faster, how far it scales, and at what IoU.

  unet-scaling report logs/STUDY            the records of a study
  unet-scaling report --index logs          one page over all studies of a folder, with a link to each report
  unet-scaling report --reference FOLDER    logs in the older layout: log_N.csv is native DDP on N
                                            workers, log_hvd_N.csv Horovod
      [--images M --batch B]                what an epoch had: gives the speed-up by steps
      [--names "MirroredStrategy,Horovod"]  what the two arms are, where it is not native DDP
  unet-scaling report --csv FILE            a table of workers and seconds or throughput of your own; - reads
                                            standard input
      [--column seconds=NAME] [--weak]      how its columns are called; whether work grows with the workers
      [--where cluster=NAME]                which rows, of several kinds in one table
  unet-scaling compare A B                  two studies, before and after a change: --help says more
  unet-scaling predict logs/STUDY --for 8   worker counts that are not measured yet: --help says more

Writes to the report folder:
  report.html      the report: one file that needs nothing else, to be opened in a browser
  summary.csv      one row per point: throughput, speed-up, efficiency, IoU, time, cost, with intervals
  comparison.csv   one row per point that both frameworks have: which is faster, and whether IoU is equal
  runs.csv, epochs.csv, budget.csv, predictions.csv, ...
                   the tables behind it; docs/columns.md explains every column
  summary.md       the answer and the points as a table, for papers
  summary.json     answers, verdicts, points, checks, runs left out and why, and provenance, for programs
  STUDY.toml       the study file, put together from the records: submit it to measure again
  scaling.svg      the overview picture, and every other figure
and prints the answer, the points, what was left out, the recommendation and the verdict. It may be
repeated at any time: runs that are not complete are left out and listed.
"""

import argparse
import sys
from pathlib import Path

from unet_scaling.base.command_line import CommandLine, named_folder
from unet_scaling.base.errors import UserError, required_module, run_program

# As the first argument; a study folder of such a name is given as ./compare.
OTHER_COMMANDS = ("compare", "predict")
# Options that state what the records of a study hold, and older logs do not.
REFERENCE_OPTIONS = ("images", "batch", "names")
# Of what the numbers of a table are.
WORKS = {
    "weak": "seconds, or steps/s, are of a fixed share of work of each worker",
    "per-gpu": "throughput is that of each worker",
    "of-all": "throughput is of all workers, seconds of the same work, though they do not grow faster",
}


def main(arguments: list[str] | None = None) -> int:
    """Write and print the report, comparison or prediction that the command line asks for."""
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in OTHER_COMMANDS:
        code: int = required_module(f"analysis.{given[0]}.command", given[0]).main(given[1:])
        return code
    options = command_line().parse_args(given)
    _require_fitting(options)
    # Only now: --help and a wrong option need not wait for pandas and matplotlib.
    from analysis.report.program import report_study

    return report_study(options)


def _require_fitting(options: argparse.Namespace) -> None:
    """Raise UserError for options that only the other kind of logs has."""
    if options.index and options.output:
        raise UserError("--output: not with --index, which writes index.html into the folder that it lists")
    if not options.csv and (options.column or options.where or options.work):
        raise UserError("--column, --where, --weak, --per-gpu and --of-all: only with --csv")
    if options.reference:
        return
    given = [name for name in REFERENCE_OPTIONS if getattr(options, name) is not None]
    if given:
        options_given = " and ".join(f"--{name}" for name in given)
        raise UserError(f"{options_given}: only with --reference; the records of a study state it themselves")


def column_name(text: str) -> tuple[str, str]:
    """Return ("seconds", "Time") for `seconds=Time`."""
    column, equals, name = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: COLUMN=NAME, such as seconds=Time")
    return column, name


def command_line() -> CommandLine:
    parser = CommandLine("python -m analysis", __doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "study", nargs="?", type=named_folder, metavar="STUDY", help="name or folder of a study"
    )
    over = "write index.html over all studies of a folder, and list them"
    source.add_argument("--index", type=Path, metavar="FOLDER", help=over)
    source.add_argument("--reference", type=Path, metavar="FOLDER", help="folder of logs in the older layout")
    source.add_argument(
        "--csv", metavar="FILE", help="table of workers and seconds or throughput; - for stdin"
    )
    add = parser.add_argument
    called = "with --csv: what workers, seconds, throughput, framework, repeat or score is called"
    add("--column", action="append", default=[], type=column_name, metavar="COLUMN=NAME", help=called)
    chosen = "with --csv: read the rows of this value of a column; of '*' all, as repeats of one point"
    add("--where", action="append", default=[], type=column_name, metavar="COLUMN=VALUE", help=chosen)
    add_work = parser.add_mutually_exclusive_group().add_argument
    for work, meaning in WORKS.items():
        told = f"with --csv: {meaning}"
        add_work(f"--{work}", dest="work", action="store_const", const=work, default="", help=told)
    images = (
        "with --reference: training images of an epoch over all workers, every pass counted "
        "(published study: 1120 images x 80 %% x 2 passes = 1792)"
    )
    add("--images", type=int, metavar="M", help=images)
    add("--batch", type=int, metavar="B", help="with --reference: images of a worker's step (published: 16)")
    add("--names", metavar="A,B", help="with --reference: what log_N.csv and log_hvd_N.csv are called")
    output = "where the report goes; default: report/ in the folder read"
    add("--output", type=Path, metavar="FOLDER", help=output)
    return parser


if __name__ == "__main__":
    run_program(main)
