"""The tables of a comparison of two studies, as the page, Markdown and the console show them."""

import pandas as pd

from analysis.compare.assemble import StudyComparison
from analysis.compare.sentences import series_label
from analysis.report.view import (
    Cell,
    Column,
    Grid,
    framework_column,
    integer_column,
    make_grid,
    number_column,
    text_column,
)
from analysis.score import Score
from analysis.study import NAMES

SPEED_OUTCOME = "speed"


def outcomes(score: Score) -> tuple[str, str]:
    """Return the headings of the columns of outcomes."""
    return SPEED_OUTCOME, score.title


def only_lines(comparison: StudyComparison) -> list[str]:
    """Return the points that one study alone has, one line for each framework and options."""
    groups = comparison.only.groupby(["only_in", "framework", "options", "knobs"], sort=False)
    lines = []
    for _, rows in groups:
        first = rows.to_dict("records")[0]
        workers = ", ".join(map(str, rows["workers"]))
        lines.append(f"only in {first['only_in']}: {series_label(first)} on workers {workers}")
    return lines


def points_grid(comparison: StudyComparison) -> Grid:
    """Return the table of points, without columns that would be empty."""
    unit = comparison.a.study.unit
    score = comparison.score
    speed_outcome, score_outcome = outcomes(score)
    columns = [
        framework_column(NAMES),
        integer_column("workers", "workers"),
        Column("launches", lambda row: Cell(f"{row['launches_a']}, {row['launches_b']}", kind="number")),
        number_column(f"A,\n{unit}", "throughput_a", "~4", bounded=False),
        number_column(f"B,\n{unit}", "throughput_b", "~4", bounded=False),
        number_column("B / A", "ratio", ".3f"),
        text_column(speed_outcome, "outcome"),
        number_column(f"difference of {score.title}", "iou_difference", "+.4f"),
        text_column(score_outcome, "iou_outcome"),
    ]
    return make_grid("compare", points_title(score), comparison.points, columns, "compare.csv")


def points_title(score: Score) -> str:
    """Return the title of the table of points."""
    return f"Throughput and {score.title}"


def facts_grid(comparison: StudyComparison) -> Grid:
    rows = [(fact.group, fact.name, *fact.texts) for fact in comparison.differing]
    table = pd.DataFrame(rows, columns=["group", "fact", "a", "b"])
    names = (("of", "group"), ("what differs", "fact"), ("A", "a"), ("B", "b"))
    columns = [text_column(heading, name) for heading, name in names]
    return make_grid("facts", "What differs", table, columns, "compare_facts.csv")


def nothing_differs(comparison: StudyComparison) -> str:
    """Return what to say in place of a table of differences."""
    if comparison.facts:
        return "Nothing that the records say."
    return "Not known: logs in the older layout say nothing of where they come from."
