"""Compare two studies: before and after a change, or two clusters.

  python -m analysis compare A B [--output FOLDER]

A and B are folders of studies, such as logs/before and logs/after, or of logs in the older layout. Prints
first what differs between them, in settings, data, software and machine, and then, for every framework,
number of workers and options that both have, the ratio of throughputs B / A and the difference of IoU B - A,
each with an interval that holds for all of them together. Writes to the output folder:
  compare.html        the same as a page with a forest plot; one file, no script, no network
  compare.svg, .png   the forest plot
  compare.md          the same as a page of Markdown
  compare.csv         one row per point; docs/compare.md explains every column
  compare_facts.csv   every fact of both studies, equal or not
"""

from collections.abc import Sequence
from pathlib import Path

from analysis.compare.assemble import StudyComparison, compare_studies
from analysis.compare.show import comparison_files, print_comparison
from analysis.compare.sides import read_side
from analysis.report.console import report_console
from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError
from unet_scaling.study.files import READABLE, write_atomically


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the comparison that the command line asks for."""
    options = command_line().parse_args(arguments)
    a = read_side("A", options.a)
    b = read_side("B", options.b)
    comparison = compare_studies(a, b)
    folder: Path = options.output or options.b / "compare"
    _write(comparison, folder)
    print_comparison(comparison, report_console())
    print(f"\ncomparison: {folder}")
    if comparison.points.empty:
        raise UserError(f"{options.a} and {options.b} have no point in common: see above", EXIT_BAD_DATA)
    return EXIT_OK


def _write(comparison: StudyComparison, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in comparison_files(comparison).items():
            write_atomically(folder / name, content, READABLE)
    except OSError as error:
        raise UserError(f"the comparison cannot be written to {folder}: {error}; try --output") from None


def command_line() -> CommandLine:
    """Return the parser of this program."""
    parser = CommandLine("python -m analysis compare", __doc__)
    parser.add_argument("a", type=Path, metavar="A", help="folder of the study before the change")
    parser.add_argument("b", type=Path, metavar="B", help="folder of the study after it")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="where the files go; default: compare/ in B"
    )
    return parser
