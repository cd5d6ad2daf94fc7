"""Show a comparison of two studies: on the console, as Markdown, as CSV, and as a page."""

from collections.abc import Sequence
from itertools import compress

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as ConsoleTable

from analysis.compare.assemble import StudyComparison
from analysis.compare.grids import (
    facts_grid,
    nothing_differs,
    only_lines,
    outcomes,
    points_grid,
    points_title,
)
from analysis.compare.page import comparison_page, forest_files
from analysis.report.console import MOST_CONSOLE_ROWS, MOST_LINES
from analysis.report.markdown import TEXT, escaped
from analysis.report.markdown import table as markdown_table
from analysis.report.tables import as_csv
from analysis.report.view import Column, Grid
from analysis.text import clean, sentence

# Column -> its description: the columns of compare.csv, which docs/compare.md lists.
COMPARE_COLUMNS = {
    "framework": "pytorch_native, horovod, lightning or accelerate",
    "workers": "",
    "options": "options that vary within a study and did not change between them",
    "knobs": "the same, of this framework alone",
    "only_in": "A or B, where only one study has the point; else empty",
    "launches_a": "launches of A that count for speed",
    "launches_b": "",
    "throughput_a": "median over them, in images / s (older logs: epochs / h)",
    "throughput_b": "",
    "ratio": "throughput of B / A, ratio of the medians",
    "ratio_low": "interval of the ratio, which holds for all points of the table together",
    "ratio_high": "",
    "coverage": "actual confidence level of an interval over so few launches",
    "p_adjusted": "probability by chance, corrected by Holm",
    "comparisons": "for so many points",
    "outcome": "A faster, B faster, suggests either (3 or 4 launches), no significant difference, withheld, "
    "or not enough repeats",
    "doubts": "launches disturbed, at the same time, or of both studies: then nothing is claimed",
    "launches_needed": "launches of each study that resolve this ratio at 80 % power, if the variation stays",
    "seeds_a": "runs of A with an IoU",
    "seeds_b": "",
    "seeds_paired": "seeds that both have, compared as pairs; 0: unpaired",
    "iou_a": "median over the seeds",
    "iou_b": "",
    "iou_difference": "IoU of B - A: median of the pairs, or difference of the medians",
    "iou_difference_low": "its interval, which holds for all points together",
    "iou_difference_high": "",
    "iou_p_adjusted": "",
    "iou_outcome": "A higher, B higher, no significant difference, nothing learned (no more than a constant "
    "prediction scores), not enough repeats, or refused",
    "iou_remarks": "why it is refused, or how seeds were compared and how many runs diverged",
}


def comparison_files(comparison: StudyComparison) -> dict[str, bytes]:
    """Return the contents of the files of a comparison by name; the page comes last."""
    points = pd.concat([comparison.points, comparison.only]).reindex(columns=[*COMPARE_COLUMNS])
    facts = [(fact.group, fact.name, *fact.texts, fact.differs) for fact in comparison.facts]
    return {
        "compare.csv": as_csv(points.rename(columns=comparison.score.key)),
        "compare_facts.csv": as_csv(pd.DataFrame(facts, columns=["group", "fact", "a", "b", "differs"])),
        "compare.md": comparison_markdown(comparison).encode(),
        **forest_files(comparison),
        "compare.html": comparison_page(comparison).encode(),
    }


def comparison_markdown(comparison: StudyComparison) -> str:
    """Return the answers, then what differs, the points, and what to know, as a page of Markdown."""
    a = comparison.a
    b = comparison.b
    parts = [
        f"# {escaped(b.title)} against {escaped(a.title)}",
        *(f"**{escaped(sentence(text))}**" for text in comparison.headlines),
        "## What differs",
        _markdown_grid(facts_grid(comparison)) if comparison.differing else nothing_differs(comparison),
        *([f"The same in both: {escaped(comparison.same)}."] if comparison.same else []),
        *_points_part(comparison),
        *_list_part("## Points of one study only", only_lines(comparison)),
        *_list_part("## Notes", comparison.notes),
    ]
    return "\n\n".join(parts) + "\n"


def _points_part(comparison: StudyComparison) -> list[str]:
    if comparison.points.empty:
        return []
    return [f"## {points_title(comparison.score)}", _markdown_grid(points_grid(comparison))]


def _list_part(title: str, lines: Sequence[str]) -> list[str]:
    return [title, "\n".join(f"- {escaped(line)}" for line in lines)] if lines else []


def _markdown_grid(grid: Grid) -> str:
    rules = ["--:" if column.kind == "number" else TEXT for column in grid.columns]
    rows = [map(str, row) for row in grid.rows]
    table = markdown_table([column.heading for column in grid.columns], rules, rows)
    return f"{table}\n\n{grid.more}" if grid.more else table


def print_comparison(comparison: StudyComparison, console: Console) -> None:
    """Print what differs, the points, what to know, and last the answers; long tables and lists are cut."""
    for side in (comparison.a, comparison.b):
        console.print(f"{side.letter}: {side.folder}", markup=False, soft_wrap=True)
    _print_facts(comparison, console)
    if len(comparison.points):
        console.print(_console_table(points_grid(comparison), outcomes(comparison.score)))
    _print_lines(console, "Points of one study only", only_lines(comparison))
    _print_lines(console, "Notes", comparison.notes)
    console.print()
    _print_cut(console, [sentence(text) for text in comparison.headlines], "bold")


def _print_facts(comparison: StudyComparison, console: Console) -> None:
    if comparison.differing:
        console.print(_console_table(facts_grid(comparison)))
    else:
        console.print(f"\nWhat differs: {nothing_differs(comparison)}", markup=False, soft_wrap=True)
    if comparison.same:
        console.print(f"The same in both: {clean(comparison.same)}", markup=False, soft_wrap=True)


def _print_lines(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(f"\n{title}", markup=False)
    _print_cut(console, [f"  - {line}" for line in lines])


def _print_cut(console: Console, lines: Sequence[str], style: str = "") -> None:
    for line in lines[:MOST_LINES]:
        console.print(clean(line), style=style, markup=False, soft_wrap=True)
    if len(lines) > MOST_LINES:
        console.print(f"  and {len(lines) - MOST_LINES:,} more in compare.md", markup=False)


def _add_column(table: ConsoleTable, column: Column) -> None:
    number = column.kind == "number"
    table.add_column(column.heading, justify="right" if number else "left", no_wrap=number)


def _console_table(grid: Grid, left_out: Sequence[str] = ()) -> ConsoleTable:
    """Return a table without some columns: the console has no room for outcomes, which the answers tell."""
    shown = [column.heading not in left_out for column in grid.columns]
    table = ConsoleTable(box=box.SIMPLE_HEAD)
    for column in compress(grid.columns, shown):
        _add_column(table, column)
    for row in grid.rows[:MOST_CONSOLE_ROWS]:
        table.add_row(*(escape(str(cell)) for cell in compress(row, shown)))
    if len(grid.rows) > MOST_CONSOLE_ROWS:
        table.caption = f"{len(grid.rows) - MOST_CONSOLE_ROWS:,} further rows are in compare.md"
    return table
