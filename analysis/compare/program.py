"""Compare the studies of two folders, write the files of the comparison, and print it."""

from pathlib import Path

from analysis.compare.compared import compare_studies
from analysis.compare.show import comparison_files, print_comparison
from analysis.compare.sides import StudySide, read_side
from analysis.facts import task_words
from analysis.report.console import report_console
from analysis.restriction import restriction_words
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError
from unet_scaling.study.files import READABLE, write_atomically


def compare_folders(first: Path, second: Path, output: Path) -> int:
    """Write the comparison of A and B to the output folder, and print it."""
    a = read_side("A", first)
    b = read_side("B", second)
    _require_one_kind(a, b)
    comparison = compare_studies(a, b)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, content in comparison_files(comparison).items():
            write_atomically(output / name, content, READABLE)
    except OSError as error:
        raise UserError(f"the comparison cannot be written to {output}: {error}; try --output") from None
    print_comparison(comparison, report_console())
    print(f"\ncomparison: {output}")
    if comparison.points.empty:
        raise UserError(f"{first} and {second} have no point in common: see above", EXIT_BAD_DATA)
    return EXIT_OK


def _require_one_kind(a: StudySide, b: StudySide) -> None:
    """Raise UserError where only one study is emulated, one is of scripts, or their tasks differ."""
    for side in (a, b):
        if side.study.is_of_scripts:
            words = restriction_words(side.study)
            raise UserError(
                f"{side.study.name} is {words}: its runs are compared with no others", EXIT_BAD_DATA
            )
    if a.study.is_emulated != b.study.is_emulated:
        kinds = [restriction_words(side.study) or "measured" for side in (a, b)]
        raise UserError(
            f"A is {kinds[0]}, B is {kinds[1]}: emulated runs are not compared with measured ones",
            EXIT_BAD_DATA,
        )
    tasks = [{task_words(header) for header in side.study.headers.values()} for side in (a, b)]
    if all(tasks) and tasks[0] != tasks[1]:
        found = "; ".join(", ".join(sorted(task)) for task in tasks)
        raise UserError(f"A and B do not train the same task: {found}", EXIT_BAD_DATA)
