"""The overhead budget at the most workers, as a waterfall from an efficiency of 100 % to the measured one."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.artists import halo
from analysis.figures.drawing.axes import from_zero, percent_axis
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
)
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import new_figure
from analysis.figures.drawing.stacks import STACK_PANEL_INCHES, colour_title, panel_title
from analysis.figures.drawing.style import INK, MUTED, SMALL_POINTS

TITLE = "waterfall"
SECTION = "budget"

# Share of the workers' time; a smaller part would be a bar that nobody sees.
LEAST_BAR_SHARE = 0.0005
BAR_HEIGHT = 0.72


def draw(inputs: Inputs) -> Figure:
    """Draw each series at its most workers, a bar for each part; a panel for each series."""
    rows = {series: series.rows(inputs.overhead.budget).iloc[-1] for series in budget_series(inputs)}
    titles = [f"{panel_title(series, inputs)}, {row['workers']} workers" for series, row in rows.items()]
    columns = min(2, len(titles))
    figure, panels = new_figure("From 1 worker to the most", [], titles, columns, STACK_PANEL_INCHES)
    for axes, (series, row) in zip(panels, rows.items(), strict=True):
        colour_title(axes, series.style.colour)
        _draw_panel(axes, row)
    return figure


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no point has a budget."""
    return budget_missing(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the bars are."""
    marks = "Each bar starts where the one above it ended. Parts below 0.05 % are left out."
    return caption_text(inputs, marks, bars_of_repeated_points(inputs))


def alternative(inputs: Inputs) -> str:
    """Return 1 - efficiency of every series at its most workers, in parts."""
    facts = facts_of_series(inputs, lambda series: facts_of_budget(inputs, series))
    return alternative_text("From an efficiency of 100 % down, part by part. Lost at the most workers", facts)


def _draw_panel(axes: Axes, row: "pd.Series[Any]") -> None:
    texts = _draw_parts(axes, row)
    efficiency = 1 - float(row["deviation"])
    highest = _draw_efficiency(axes, row, efficiency, y=-len(texts))
    for number, text in enumerate([*texts, f"efficiency  {percent_text(efficiency)}"]):
        axes.text(0.015, -number, text, va="center", size=SMALL_POINTS, path_effects=halo(), zorder=5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    from_zero(axes, "x", np.array([efficiency, 1.0, highest]))
    axes.set_xlim(0, max(1.05, axes.get_xlim()[1] if highest > 1 else 0))
    percent_axis(axes, "x")
    axes.set_xlabel("efficiency")


def _draw_parts(axes: Axes, row: "pd.Series[Any]") -> list[str]:
    """Draw a bar for each part, from the top down, and a line to the next; return their texts."""
    level = 1.0
    texts: list[str] = []
    for part, style in BUDGET_PARTS.items():
        value = float(row[part])
        if abs(value) >= LEAST_BAR_SHARE:
            y = -len(texts)
            axes.barh(y, -value, BAR_HEIGHT, level, color=style.colour, edgecolor=MUTED, linewidth=0.4)
            level -= value
            axes.plot([level, level], [y, y - 1], color=MUTED, linewidth=0.7)
            texts.append(f"{style.name}  {percent_text(-value)}")
    return texts


def _draw_efficiency(axes: Axes, row: "pd.Series[Any]", efficiency: float, y: int) -> float:
    """Draw what is left, with its interval; return the interval's upper end."""
    axes.barh(y, efficiency, BAR_HEIGHT, color=MUTED, alpha=0.35)
    low = 1 - float(row["deviation_high"])
    high = 1 - float(row["deviation_low"])
    axes.hlines(y, low, high, color=INK, linewidth=1.3)
    return high
