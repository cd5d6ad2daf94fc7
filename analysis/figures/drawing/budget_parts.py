"""The overhead budget as its figures show it: the style of its parts, its series, and its numbers."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from analysis.figures.drawing.axes import percent_axis
from analysis.figures.drawing.captions import on_workers
from analysis.figures.drawing.inputs import Inputs, Series
from analysis.figures.drawing.stacks import BAR_WIDTH, MOST_PANELS, StackChart
from analysis.figures.drawing.style import INK, part_styles
from analysis.text import percent

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

percent_text = partial(percent, digits=1)


def budget_missing(inputs: Inputs) -> str | None:
    """Return why no figure of the overhead budget of single series can be drawn."""
    return None if len(inputs.losses.budget) else "no point of several workers has one; the notes say why"


def budget_series(inputs: Inputs) -> list[Series]:
    """Return the series that have an overhead budget, in the order of the other charts."""
    return [series for series in inputs.series if len(series.rows(inputs.losses.budget))][:MOST_PANELS]


def budget_chart(title: str, total: str) -> StackChart:
    """Return the chart of the budget's parts, with the column `total` and its interval beside each bar."""

    def draw_totals(axes: Axes, x: NDArray[np.float64], table: pd.DataFrame) -> NDArray[np.float64]:
        beside = x + BAR_WIDTH / 2 + 0.09
        bounds = table[[f"{total}_low", f"{total}_high"]].to_numpy(dtype=np.float64)
        axes.vlines(beside, bounds[:, 0], bounds[:, 1], color=INK, linewidth=1.3, zorder=4)
        marker = {"color": INK, "marker": "D", "markersize": 4, "linestyle": "none"}
        axes.plot(beside, table[total], zorder=5, label="whole", **marker)
        return bounds.ravel()

    return StackChart(title, BUDGET_PARTS, draw_totals, percent_text, partial(percent_axis, which="y"))


def facts_of_budget(inputs: Inputs, series: Series) -> Iterator[str]:
    """Yield 1 - efficiency of a series and its parts at its most workers."""
    for row in series.rows(inputs.losses.budget).tail(1).to_dict("records"):
        yield f"{percent_text(row['deviation'])} {on_workers(row['workers'])} ({parts_text(row)})"


def parts_text(row: Mapping[Any, Any]) -> str:
    """Return the parts of a row that are worth naming, with their shares."""
    named = [
        f"{style.name} {percent_text(row[part])}"
        for part, style in BUDGET_PARTS.items()
        if abs(row[part]) >= LEAST_NAMED
    ]
    return ", ".join(named) or "every part below 0.1 %"
