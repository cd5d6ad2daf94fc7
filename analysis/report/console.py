"""Print a report: the answers first, then points, what was left out, notes, diagnoses, verdicts, doubts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from analysis.findings.answer import Answer
from analysis.findings.decide import Kind
from analysis.report.assemble import Report
from analysis.report.exports import played_short_columns, speed_columns
from analysis.report.view import Column, number_column
from analysis.study import Study
from analysis.text import Row, clean, labelled
from unet_scaling.study.console import CleanConsole

# So wide that no number of the table is cut.
LEAST_WIDTH = 130
# What a terminal shows without scrolling far; the rest is in the files.
MOST_CONSOLE_ROWS = 60
MOST_LINES = 20
MOST_DIAGNOSES = 3
MOST_PRINTED = 4
# Besides the score.
WITH_INTERVAL = ("speed-up", "difference to 1 worker")
ANSWER_STYLES: Mapping[Kind, str] = {
    "scale": "green", "stay": "cyan", "undecided": "yellow", "unfair": "red", "played": "cyan",
    "script": "cyan", "maps": "cyan",
}  # fmt: skip
DOUBTS = "Not equal in this comparison"


def print_report(report: Report, console: Console | None = None, folder: Path | None = None) -> None:
    """Print the answers, and where the report is; then points, runs left out, notes, diagnoses, verdicts.

    Long tables and lists are cut; a line says in which file the rest is. `folder`: where the report is.
    """
    console = console or report_console()
    _print_answers(report, console)
    if folder is not None:
        console.print(f"report: {clean(folder)}", markup=False, soft_wrap=True)
    _print_points(report, console)
    _print_played(report, console)
    print_left_out(report.study, console)
    _print_list(console, "Notes", report.notes, "report.html")
    strongest = [str(diagnosis) for diagnosis in report.diagnoses[:MOST_DIAGNOSES]]
    _print_list(console, "Where the time goes", strongest, "diagnosis.csv")
    _print_verdicts(report, console)
    _print_list(console, DOUBTS, report.doubts, "fairness.csv")


def _print_answers(report: Report, console: Console) -> None:
    """Print what a reader can act on, of each set of options."""
    if report.compared_options:
        console.print(f"{clean(report.compared_options)}\n", markup=False, soft_wrap=True, style="bold")
    for answer in report.answers[:MOST_PRINTED]:
        _print_answer(answer, console)
    more = len(report.answers) - MOST_PRINTED
    if more > 0:
        console.print(f"and {more:,} more answers in report.html\n", markup=False)


def _print_answer(answer: Answer, console: Console) -> None:
    """Print a headline, its tiles, and the first next step."""
    headline = clean(labelled(answer.options, answer.headline))
    console.print(headline, style=f"bold {ANSWER_STYLES[answer.kind]}", markup=False, soft_wrap=True)
    lines = [f"{tile.title} [{tile.light}] {tile.value}: {tile.detail}" for tile in answer.tiles]
    lines += [f"Next: {step}" for step in answer.next_steps[:1]]
    for line in lines:
        console.print(f"  {clean(line)}", markup=False, soft_wrap=True)
    console.print()


def _print_verdicts(report: Report, console: Console) -> None:
    console.print()
    for verdict in report.verdicts[:MOST_LINES]:
        console.print(clean(verdict), style="bold", markup=False, soft_wrap=True)
    _print_more(console, len(report.verdicts), "comparison.csv")


def print_left_out(study: Study, console: Console) -> None:
    """Print every run that is not used, and why."""
    left_out = study.all_left_out
    rows = left_out.iloc[:MOST_LINES].to_dict("records")
    lines = [f"{row['run']}: {row['reason']}" for row in rows]
    _print_list(console, f"Left out: {len(left_out)}", lines, "left_out.csv", len(left_out))


def report_console() -> Console:
    """Return standard output, at least so wide that no number of the table is cut."""
    return CleanConsole(highlight=False, width=max(Console().width, LEAST_WIDTH))


def _print_list(
    console: Console, title: str, lines: Sequence[str], rest: str, total: int | None = None
) -> None:
    if lines:
        console.print(f"\n{title}", markup=False)
    for line in lines[:MOST_LINES]:
        console.print(f"  - {clean(line)}", markup=False, soft_wrap=True)
    _print_more(console, len(lines) if total is None else total, rest)


def _print_more(console: Console, total: int, rest: str) -> None:
    if total > MOST_LINES:
        console.print(f"  and {total - MOST_LINES:,} more in {rest}", markup=False, soft_wrap=True)


def _print_points(report: Report, console: Console) -> None:
    """Print one table for each set of options."""
    for options, rows in report.points.iloc[:MOST_CONSOLE_ROWS].groupby("options", sort=False):
        title = clean(f"{report.study.name}: {options!s}" if options else report.study.name)
        console.print(_points_table(report, title, rows))
    if len(report.points) > MOST_CONSOLE_ROWS:
        more = f"{len(report.points) - MOST_CONSOLE_ROWS:,} further points are in summary.csv"
        console.print(more, markup=False, soft_wrap=True)


def _print_played(report: Report, console: Console) -> None:
    """Print the IoU of played and real runs, one table for each set of options."""
    points = report.played.points
    for options, rows in points.iloc[:MOST_CONSOLE_ROWS].groupby("options", sort=False):
        kinds = f"{report.study.score.heading} of played and real runs"
        title = clean(f"{kinds}: {options!s}" if options else kinds)
        console.print(_table(report, played_short_columns(report), title, rows))
    if len(points) > MOST_CONSOLE_ROWS:
        more = f"{len(points) - MOST_CONSOLE_ROWS:,} further points are in played.csv"
        console.print(more, markup=False, soft_wrap=True)


def _points_table(report: Report, title: str, points: pd.DataFrame) -> Table:
    score = number_column(report.study.score.title, "iou", ".3f")
    return _table(report, [*speed_columns(report), score], title, points)


def _table(report: Report, columns: Sequence[Column], title: str, points: pd.DataFrame) -> Table:
    bounded = (*WITH_INTERVAL, report.study.score.title)
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        number = column.kind == "number"
        table.add_column(column.heading, justify="right" if number else "left", no_wrap=number)
    for _, series in points.groupby(["framework", "knobs"], sort=False):
        for row in series.to_dict("records"):
            table.add_row(*(_shown(column, row, bounded) for column in columns))
        table.add_section()
    return table


def _shown(column: Column, row: Row, bounded: Sequence[str]) -> str:
    """Return a cell, with its interval where it says most: all of them would not fit."""
    cell = column.cell(row)
    return str(cell) if column.heading in bounded else cell.text
