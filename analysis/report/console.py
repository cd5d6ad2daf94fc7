"""What is printed of a report: the points, what was left out, the notes, advice, verdict and doubts."""

from collections.abc import Iterator, Sequence

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from analysis.findings.recommendation import Recommendation
from analysis.report.assemble import Report
from analysis.study import Study
from analysis.text import Row, clean, number, series_name, with_interval

LEAST_WIDTH = 130
MOST_ROWS = 60
MOST_LINES = 20
MOST_DIAGNOSES = 3
DOUBTS = "Not equal in this comparison"


def print_report(report: Report, console: Console | None = None) -> None:
    """Print points, what was left out and why, notes, diagnoses, recommendation, and last verdict and doubts.

    Long tables and lists are cut; a line says in which file the rest is.
    """
    console = console or report_console()
    for table in _tables(report.study, report.points.iloc[:MOST_ROWS]):
        console.print(table)
    if len(report.points) > MOST_ROWS:
        more = f"{len(report.points) - MOST_ROWS:,} further points are in summary.csv"
        console.print(more, markup=False, soft_wrap=True)
    print_left_out(report.study, console)
    _print_list(console, "Notes", report.notes, "report.html")
    strongest = [str(diagnosis) for diagnosis in report.diagnoses[:MOST_DIAGNOSES]]
    _print_list(console, "Where the time goes", strongest, "diagnosis.csv")
    _print_list(
        console, "Recommendation", [_labelled(advice) for advice in report.recommendations], "report.html"
    )
    console.print()
    for verdict in report.verdicts[:MOST_LINES]:
        console.print(clean(verdict), style="bold", markup=False, soft_wrap=True)
    _print_more(console, len(report.verdicts), "comparison.csv")
    _print_list(console, DOUBTS, report.doubts, "fairness.csv")


def print_left_out(study: Study, console: Console) -> None:
    """Every run that is not used, and why."""
    rows = study.left_out.iloc[:MOST_LINES].to_dict("records")
    lines = [f"{row['run']}: {row['reason']}" for row in rows]
    _print_list(console, f"Left out: {len(study.left_out)}", lines, "left_out.csv", len(study.left_out))


def report_console() -> Console:
    """Standard output, at least so wide that no number of the table is cut."""
    return Console(highlight=False, width=max(Console().width, LEAST_WIDTH))


def _labelled(advice: Recommendation) -> str:
    return f"[{advice.options}] {advice.sentence}" if advice.options else advice.sentence


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


def _tables(study: Study, points: pd.DataFrame) -> Iterator[Table]:
    """One table for each set of options."""
    for options, rows in points.groupby("options", sort=False):
        title = clean(f"{study.name}: {options!s}" if options else study.name)
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        table.add_column("framework")
        for heading in ("workers", "repeats", study.unit, "speed-up", "efficiency", "deviation", "IoU"):
            table.add_column(heading, justify="right", no_wrap=True)
        for _, series in rows.groupby(["framework", "knobs"], sort=False):
            for row in series.to_dict("records"):
                table.add_row(series_name(row, study.names), *_cells(row))
            table.add_section()
        yield table


def _cells(row: Row) -> list[str]:
    return [
        str(row["workers"]),
        str(row["repeats"]),
        number(row["throughput"], "~4"),
        with_interval(row, "speedup", ".2f"),
        number(row["efficiency"], ".1%"),
        number(row["deviation"], ".1%"),
        with_interval(row, "iou", ".3f"),
    ]
