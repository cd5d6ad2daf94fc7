"""Print a report: the answers first, then points, what was left out, notes, diagnoses, verdicts, doubts."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from analysis.assemble import Report
from analysis.findings.decide import Kind
from analysis.report.exports import played_short_columns, speed_columns
from analysis.report.html import which_framework
from analysis.report.tables import Column, number_column
from analysis.study import COMPARED, Study
from analysis.text import clean, labelled
from unet_scaling.study.console import CleanConsole

# So wide that no number of the table is cut.
LEAST_WIDTH = 130
# What a terminal shows without scrolling far; the rest is in the files.
MOST_CONSOLE_ROWS = 60
MOST_LINES = 20
MOST_DIAGNOSES = 3
MOST_PRINTED = 4
ANSWER_STYLES: Mapping[Kind, str] = {
    "scale": "green", "stay": "cyan", "speed": "cyan", "undecided": "yellow", "unfair": "red",
    "played": "cyan", "script": "cyan", "maps": "cyan",
}  # fmt: skip


def print_report(report: Report, folder: Path | None = None) -> None:
    """Print the answers, and where the report is; then points, runs left out, notes, diagnoses, verdicts.

    Long tables and lists are cut; a line says in which file the rest is. `folder`: where the report is.
    """
    console = report_console()
    _print_answers(report, console)
    if folder is not None:
        _print(console, f"report: {folder}")
    score = report.study.score
    columns = [*speed_columns(report), number_column(score.title, "iou", ".3f")]
    bounded = ("speed-up", "difference to 1 worker", score.title)
    _print_tables(console, report.study.name, report.points, columns, bounded, "summary.csv")
    kinds = f"{score.heading} of played and real runs"
    _print_tables(console, kinds, report.played.points, played_short_columns(report), bounded, "played.csv")
    print_left_out(report.study, console)
    print_list(console, "Notes", report.notes, "report.html")
    strongest = list(map(str, report.diagnoses[:MOST_DIAGNOSES]))
    print_list(console, "Where the time goes", strongest, "diagnosis.csv")
    print_list(console, "", list(map(str, report.verdicts)), "comparison.csv")
    print_list(console, "Not equal in this comparison", report.doubts, "fairness.csv")


def report_console() -> Console:
    """Return standard output, at least so wide that no number of the table is cut."""
    return CleanConsole(highlight=False, width=max(Console().width, LEAST_WIDTH))


def print_left_out(study: Study, console: Console) -> None:
    """Print every run that is not used, and why."""
    left_out = study.all_left_out
    lines = list(left_out["run"] + ": " + left_out["reason"])
    print_list(console, f"Left out: {len(left_out)}", lines, "left_out.csv")


def _print(console: Console, text: str, style: str | None = None) -> None:
    console.print(clean(text), style=style, markup=False, soft_wrap=True)


def _print_answers(report: Report, console: Console) -> None:
    """Print what a reader can act on: the headline of each set of options, its tiles, the first next step."""
    if report.compared_options:
        _print(console, report.compared_options, "bold")
        console.print()
    for answer in report.answers[:MOST_PRINTED]:
        style = f"bold {ANSWER_STYLES[answer.kind]}"
        _print(console, labelled(answer.options, answer.headline), style)
        if comparison := which_framework(report, answer):
            short_native, short_horovod = (report.study.short_names[name] for name in COMPARED)
            _print(console, f"  {short_native} or {short_horovod}? {comparison}")
        for tile in answer.tiles:
            light = "" if tile.light == "none" else f" [{tile.light}]"
            _print(console, f"  {tile.title}{light} {tile.value}: {tile.detail}")
        for step in answer.next_steps[:1]:
            _print(console, f"  Next: {step}")
        console.print()
    more = len(report.answers) - MOST_PRINTED
    if more > 0:
        _print(console, f"and {more:,} more answers in report.html")
        console.print()


def print_list(console: Console, title: str, lines: Sequence[str], rest: str) -> None:
    """Print the first lines of a list below its title, without one in bold; `rest` has the others."""
    if lines:
        console.print()
    if lines and title:
        _print(console, title)
    for line in lines[:MOST_LINES]:
        _print(console, f"  - {line}" if title else line, None if title else "bold")
    if len(lines) > MOST_LINES:
        _print(console, f"  and {len(lines) - MOST_LINES:,} more in {rest}")


def empty_table(columns: Iterable[Column], title: str = "") -> Table:
    """Return a table with these columns and no row."""
    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        is_number = column.kind == "number"
        table.add_column(column.heading, justify="right" if is_number else "left", no_wrap=is_number)
    return table


def _print_tables(
    console: Console,
    name: str,
    points: pd.DataFrame,
    columns: Sequence[Column],
    bounded: Sequence[str],
    rest: str,
) -> None:
    """Print one table for each set of options; intervals only in columns `bounded`: others would not fit."""
    for options, rows in points.iloc[:MOST_CONSOLE_ROWS].groupby("options", sort=False):
        table = empty_table(columns, clean(f"{name}: {options!s}" if options else name))
        for _, series in rows.groupby(["framework", "knobs"], sort=False):
            for row in series.to_dict("records"):
                cells = [(column.heading in bounded, column.cell(row)) for column in columns]
                table.add_row(*(str(cell) if is_bounded else cell.text for is_bounded, cell in cells))
            table.add_section()
        console.print(table)
    if len(points) > MOST_CONSOLE_ROWS:
        _print(console, f"{len(points) - MOST_CONSOLE_ROWS:,} further points are in {rest}")
