"""Show a comparison of two studies: as CSV, as a page with a forest plot, as Markdown, and on the console."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape

from analysis.compare.compared import (
    A_FASTER,
    A_HIGHER,
    B_FASTER,
    B_HIGHER,
    SpeedChange,
    StudyComparison,
    compare_studies,
)
from analysis.compare.sides import StudySide, read_side
from analysis.facts import task_words
from analysis.figures.catalogue import MOST_FOREST_ROWS, study_forests
from analysis.figures.svg import DrawnFigure, picture
from analysis.findings.trust import Light
from analysis.report.exports import bullets, escaped, markdown_table
from analysis.report.program import MOST_CONSOLE_ROWS, empty_table, print_list, report_console
from analysis.report.tables import COMPARE_LINES, Grid, as_csv, make_grid, text_column
from analysis.study import NAMES
from analysis.text import clean, count, listed, page, sentence, with_restriction
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError
from unet_scaling.study.files import READABLE, write_atomically

# The name of the figure's files, and of the page.
STEM = "compare"
# What stands below the headline; the table has them all.
MOST_CHANGES = 3
# Colour is never alone: each change has its word, and each light its shape.
CHANGES: dict[SpeedChange, tuple[Light, str]] = {
    "faster": ("good", "B is faster"),
    "slower": ("bad", "B is slower"),
    "mixed": ("caution", "B is faster and slower"),
    "equal": ("unknown", "No difference shown"),
    "unclear": ("unknown", "Not decided"),
}


def comparison_files(comparison: StudyComparison) -> dict[str, bytes]:
    """Return the contents of the files of a comparison by name; the page comes last."""
    columns = [name for line in COMPARE_LINES for name in line.names]
    points = pd.concat([comparison.points, comparison.only]).reindex(columns=columns)
    facts = [(fact.group, fact.name, *fact.texts, fact.differs) for fact in comparison.facts]
    drawn = forest(comparison)
    pictures = {f"{STEM}.{kind}": getattr(each, kind) for each in drawn for kind in ("svg", "png")}
    return {
        "compare.csv": as_csv(points.rename(columns=comparison.score.key)),
        "compare_facts.csv": as_csv(pd.DataFrame(facts, columns=["group", "fact", "a", "b", "differs"])),
        "compare.md": comparison_markdown(comparison).encode(),
        **pictures,
        "compare.html": comparison_page(comparison, drawn).encode(),
    }


def points_grid(comparison: StudyComparison) -> Grid:
    """Return the table of points, without columns that would be empty."""
    points, study = comparison.points, comparison.a.study
    columns = [column for line in COMPARE_LINES for column in line.columns(points, study)]
    caption = f"Throughput in {study.unit}, and {comparison.score.title}"
    return make_grid("compare", caption, points, columns, "compare.csv")


def facts_grid(comparison: StudyComparison) -> Grid:
    """Return the table of what differs."""
    rows = [(fact.group, fact.name, *fact.texts) for fact in comparison.differing]
    headings = ("of", "what differs", "A", "B")
    table = pd.DataFrame(rows, columns=list(headings))
    columns = [text_column(heading, heading) for heading in headings]
    return make_grid("facts", "What differs", table, columns, "compare_facts.csv")


def comparison_page(comparison: StudyComparison, drawings: Sequence[DrawnFigure]) -> str:
    """Return the comparison as HTML: the answer, what differs, a forest plot, and the tables behind them."""
    a, b = comparison.a, comparison.b
    light, word = CHANGES[comparison.change]
    if comparison.change == "faster" and A_HIGHER in set(comparison.points["iou_outcome"]):
        light, word = "caution", f"B is faster, its {comparison.score.title} lower"
    launches = [f"{count(len(side.study.runs), 'launch')} in {side.letter}" for side in (a, b)]
    differing = comparison.differing
    changes = [clean(f"{fact.name}: {' → '.join(fact.texts)}") for fact in differing[:MOST_CHANGES]]
    if len(differing) > MOST_CHANGES:
        changes.append(f"{count(len(differing) - MOST_CHANGES, 'more fact')}, below")
    return page(
        "compare",
        title=clean(f"{b.title} against {a.title}"),
        frameworks=NAMES,
        run_links={},
        files=("compare.csv", "compare_facts.csv", "compare.md"),
        launches=f"{listed(launches)}, {count(len(comparison.points), 'point')} in both",
        light=light,
        word=word,
        changes=changes or [comparison.nothing_differs],
        drawings=drawings,
        points=points_grid(comparison),
        facts=facts_grid(comparison),
        comparison=comparison,
    )


def forest(comparison: StudyComparison) -> list[DrawnFigure]:
    """Return the figure; none without a common point."""
    if comparison.points.empty:
        return []
    caption = (
        f"Right of the line B is faster, or its {comparison.score.title} higher; left of it A. In the colour "
        "of its framework: the interval, corrected for all points, excludes equality; grey: nothing is "
        "claimed."
    )
    if len(comparison.points) > MOST_FOREST_ROWS:
        caption += (
            f" The first {MOST_FOREST_ROWS} of {len(comparison.points)} points; all are in compare.csv."
        )
    points = comparison.points.assign(
        claimed=comparison.points["outcome"].isin((A_FASTER, B_FASTER)),
        iou_claimed=comparison.points["iou_outcome"].isin((A_HIGHER, B_HIGHER)),
    )
    charts = study_forests(points, comparison.score)
    panels = [panel for chart in charts for panel in chart.panels()]
    caption = with_restriction(comparison.a.study.kind, caption)
    return [picture(panels, STEM, caption, charts[0].alternative())]


def parts_of(comparison: StudyComparison) -> list[tuple[str, Grid | Sequence[str]]]:
    """Return what Markdown and console say beside the answers: titles, each with a table or with lines."""
    points = points_grid(comparison)
    parts: list[tuple[str, Grid | Sequence[str]]] = [
        ("What differs", facts_grid(comparison) if comparison.differing else [comparison.nothing_differs]),
        ("The same in both", [comparison.same] if comparison.same else []),
        (points.caption, points if len(comparison.points) else []),
        ("Points of one study only", comparison.only_lines),
        ("Notes", comparison.notes),
    ]
    return [(title, part) for title, part in parts if part]


def comparison_markdown(comparison: StudyComparison) -> str:
    """Return the answers, then what differs, the points, and what to know, as a page of Markdown."""
    parts = [f"# {escaped(comparison.b.title)} against {escaped(comparison.a.title)}"]
    parts += [f"**{escaped(sentence(text))}**" for text in comparison.headlines]
    for title, part in parts_of(comparison):
        parts.append(f"## {title}")
        if not isinstance(part, Grid):
            parts.append(bullets(part))
            continue
        for options, rows in part.groups:
            parts += [f"### {escaped(options)}"] if options else []
            parts.append(markdown_table(part.columns, [list(map(str, row)) for row in rows]))
        parts += [part.more] if part.more else []
    return "\n\n".join(parts) + "\n"


def print_comparison(comparison: StudyComparison, console: Console) -> None:
    """Print what differs, the points, what to know, and last the answers; long tables and lists are cut."""
    for side in (comparison.a, comparison.b):
        console.print(f"{side.letter}: {side.folder}", markup=False, soft_wrap=True)
    for title, part in parts_of(comparison):
        if isinstance(part, Grid):
            _print_grid(console, part, title, comparison.score.title)
        else:
            print_list(console, title, part, "compare.md")
    print_list(console, "", list(map(sentence, comparison.headlines)), "compare.md")


def _print_grid(console: Console, grid: Grid, title: str, score: str) -> None:
    """Print a table without outcomes, for which the console has no room; the answers tell them."""
    shown = [place for place, column in enumerate(grid.columns) if column.heading not in ("speed", score)]
    for options, rows in grid.groups:
        table = empty_table([grid.columns[place] for place in shown], f"{title}: {options}".rstrip(": "))
        for row in rows[:MOST_CONSOLE_ROWS]:
            table.add_row(*(escape(str(row[place])) for place in shown))
        if len(rows) > MOST_CONSOLE_ROWS:
            table.caption = f"{len(rows) - MOST_CONSOLE_ROWS:,} further rows are in compare.md"
        console.print(table)


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
    words = [side.study.kind.restricted or "measured" for side in (a, b)]
    tasks = [{task_words(header) for header in side.study.headers.values()} for side in (a, b)]
    fault = ""
    if not (a.study.kind.compares and b.study.kind.compares):
        fault = "runs of scripts are compared with no others"
    elif a.study.kind.restricted != b.study.kind.restricted:
        fault = "emulated runs are not compared with measured ones"
    elif all(tasks) and tasks[0] != tasks[1]:
        fault = "they do not train the same task"
        words = [", ".join(sorted(task)) for task in tasks]
    if fault:
        raise UserError(f"A is {words[0]}, B is {words[1]}: {fault}", EXIT_BAD_DATA)
