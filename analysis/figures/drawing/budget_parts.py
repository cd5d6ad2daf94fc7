"""The overhead budget as its figures show it: the style of its parts, its series, and its numbers."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from analysis.figures.drawing.captions import on_workers
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.stacks import MOST_PANELS, StackChart
from analysis.figures.drawing.style import part_styles
from analysis.text import chart_percent

BUDGET_PARTS = part_styles(
    data_wait="data wait",
    compute="compute",
    wire="wire",
    imbalance="imbalance",
    optimizer="optimizer",
    unequal_work="unequal work",
    rest="rest",
)
# Smaller shares are not named in texts: they would show as 0.0 %.
LEAST_NAMED = 0.001
# Share of the workers' time to which the axis goes at least: less would make noise look like a finding.
LEAST_TOP = 0.02

percent_text = partial(chart_percent, decimals=1)


def budget_missing(inputs: Inputs) -> str | None:
    """Return why no figure of the overhead budget of single series can be drawn."""
    return None if len(inputs.overhead.budget) else "no point of several workers has one; the notes say why"


def budget_series(inputs: Inputs) -> list[DrawnSeries]:
    """Return the series that have an overhead budget, in the order of the other charts."""
    return [series for series in inputs.series if len(series.rows(inputs.overhead.budget))][:MOST_PANELS]


def budget_chart(total: str, total_name: str) -> StackChart:
    """Return the chart of the budget's parts, with the column `total` beside each bar."""
    return StackChart(BUDGET_PARTS, total, total_name, percent_text, share=True, least_top=LEAST_TOP)


def facts_of_budget(inputs: Inputs, series: DrawnSeries) -> Iterator[str]:
    """Yield 1 - efficiency of a series and its parts at its most workers."""
    for row in series.rows(inputs.overhead.budget).tail(1).to_dict("records"):
        yield f"{percent_text(row['deviation'])} {on_workers(row['workers'])} ({parts_text(row)})"


def parts_text(row: Mapping[Any, Any]) -> str:
    """Return the parts of a row that are worth naming, with their shares."""
    named = [
        f"{style.name} {percent_text(row[part])}"
        for part, style in BUDGET_PARTS.items()
        if abs(row[part]) >= LEAST_NAMED
    ]
    return ", ".join(named) or "every part below 0.1 %"
