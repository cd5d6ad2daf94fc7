"""Compare two studies: before and after a change, or two clusters.

  unet-scaling compare A B [--output FOLDER]

A and B are folders of studies, such as logs/before and logs/after, or of logs in the older layout. Prints
first what differs between them, in settings, data, software and machine, and then, for every framework,
number of workers and options that both have, the ratio of throughputs B / A and the difference of IoU B - A,
each with an interval that holds for all of them together. Writes to the output folder:
  compare.html        the same as a page with a forest plot; one file, no script, no network
  compare.svg         the forest plot
  compare.csv         one row per point; docs/columns.md explains every column
  compare_facts.csv   every fact of both studies, equal or not
"""

from collections.abc import Sequence
from pathlib import Path

from unet_scaling.base.command_line import CommandLine, named_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the comparison that the command line asks for."""
    options = command_line().parse_args(arguments)
    # Only now: --help and a wrong option need not wait for pandas.
    from analysis.compare.differences import compare_folders

    return compare_folders(options.a, options.b, options.output or options.b / "compare")


def command_line() -> CommandLine:
    """Return the parser of this program."""
    parser = CommandLine("python -m analysis compare", __doc__)
    parser.add_argument("a", type=named_folder, metavar="A", help="name or folder before the change")
    parser.add_argument("b", type=named_folder, metavar="B", help="name or folder after it")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="where the files go; default: compare/ in B"
    )
    return parser
