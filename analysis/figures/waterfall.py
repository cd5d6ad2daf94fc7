"""The overhead budget at the most workers, as a waterfall from 0 to 1 - efficiency, part by part."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.arrays import Array
from analysis.figures.drawing.axes import from_zero, keep_free, percent_axis
from analysis.figures.drawing.budget_parts import (
    BUDGET_PARTS,
    budget_missing,
    budget_series,
    facts_of_budget,
    percent_text,
)
from analysis.figures.drawing.captions import (
    alternative_text,
    bars_of_repeated_points,
    caption_text,
    facts_of_series,
    on_workers,
)
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import GRID, INK, MUTED, PartStyle
from analysis.figures.drawing.titles import title_marks

TITLE = "waterfall"
SECTION = "budget"

# Share of the workers' time; a smaller part would be a bar that nobody sees.
LEAST_BAR_SHARE = 0.0005
BAR_HEIGHT = 0.72
NUMBER_DISTANCE_PX = 6
# A number such as 100.0 % beside the last bar.
NUMBER_ROOM_PX = 70
WHOLE = PartStyle("1 - efficiency", GRID, INK)


def draw(inputs: Inputs) -> list[Panel]:
    """Return each series at its most workers, a bar for each part; a panel for each series."""
    return [_panel(series, series.rows(inputs.overhead.budget).iloc[-1]) for series in budget_series(inputs)]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no point has a budget."""
    return budget_missing(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the bars are."""
    marks = (
        "Each bar starts where the one above it ended, and goes to the left where a part takes less time per "
        f"{inputs.study.score.sample} than on 1 worker. Parts below 0.05 % are left out."
    )
    return caption_text(inputs, marks, bars_of_repeated_points(inputs))


def alternative(inputs: Inputs) -> str:
    """Return 1 - efficiency of every series at its most workers, in parts."""
    facts = facts_of_series(inputs, lambda series: facts_of_budget(inputs, series))
    return alternative_text("From nothing lost to 1 - efficiency. Lost at the most workers", facts)


def _panel(series: DrawnSeries, row: "pd.Series[Any]") -> Panel:
    def draw(axes: Axes) -> None:
        _draw_bars(axes, row)
        axes.set_xlabel("share of the workers' time")

    title = f"{series.name} {on_workers(row['workers'])}: 1 - efficiency"
    return Panel(title, draw, series.options, colour=series.style.text_colour)


def _draw_bars(axes: Axes, row: "pd.Series[Any]") -> None:
    """Draw the parts from the top down, and below them their sum with its interval."""
    parts = [part for part in BUDGET_PARTS if abs(row[part]) >= LEAST_BAR_SHARE]
    styles = [BUDGET_PARTS[part] for part in parts]
    shares = row[parts].to_numpy(dtype=np.float64)
    bounds = row[["deviation_low", "deviation_high"]].to_numpy(dtype=np.float64)
    _set_axes(axes, [*styles, WHOLE], np.concatenate([[0.0], shares.cumsum(), bounds]))
    _draw_parts(axes, styles, shares)
    _draw_whole(axes, len(parts), float(row["deviation"]), bounds)


def _draw_parts(axes: Axes, styles: Sequence[PartStyle], shares: Array) -> None:
    """Draw a bar for each part, and a line from its end down to the next."""
    ends = shares.cumsum()
    for y, style in enumerate(styles):
        _draw_bar(axes, y, float(ends[y] - shares[y]), float(shares[y]), style)
    below = np.arange(len(ends))
    axes.vlines(ends, below, below + 1, color=MUTED, linewidth=0.9)


def _draw_whole(axes: Axes, y: int, deviation: float, bounds: Array) -> None:
    _draw_bar(axes, y, 0.0, deviation, WHOLE, beyond=float(bounds[1]))
    axes.hlines(y, *bounds, color=INK, linewidth=1.6)


def _set_axes(axes: Axes, styles: Sequence[PartStyle], ends: Array) -> None:
    from_zero(axes, "x", ends)
    percent_axis(axes, "x")
    keep_free(axes, right=NUMBER_ROOM_PX)
    axes.set_yticks(range(len(styles)), [style.name for style in styles])
    axes.set_ylim(len(styles) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.axvline(0, color=MUTED, linewidth=1)


def _draw_bar(
    axes: Axes, y: int, start: float, share: float, style: PartStyle, *, beyond: float = 0.0
) -> None:
    """Draw one bar with its number to the right of it, and of what lies there."""
    (bar,) = axes.barh(y, share, BAR_HEIGHT, start, color=style.colour, edgecolor=MUTED, linewidth=0.5)
    text = percent_text(share)
    title_marks(bar, [f"{style.name}: {text}"])
    end = max(start, start + share, beyond)
    axes.annotate(text, (end, y), (NUMBER_DISTANCE_PX, 0), textcoords="offset points", va="center")
