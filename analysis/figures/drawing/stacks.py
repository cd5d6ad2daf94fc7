"""Stacked bars over the workers, a panel for each series or comparison: the chart of three figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis.arrays import Array
from analysis.figures.drawing.axes import from_zero, percent_axis
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.layout import new_figure
from analysis.figures.drawing.style import INK, MUTED, PAPER, SMALL_POINTS, TEXT_POINTS, PartStyle
from analysis.text import printable

STACK_PANEL_INCHES = (4.1, 2.9)
# More would not fit on a printed page.
MOST_PANELS = 8
# Of the distance between two bars.
BAR_WIDTH = 0.62
BESIDE = 0.09
# Share of the axis from which a part has room for its number.
LEAST_NUMBERED = 0.04


@dataclass(frozen=True)
class Stack:
    """One panel: `table` has a row per worker count, and columns for the workers, each part and the total."""

    title: str
    table: pd.DataFrame
    colour: str = INK


@dataclass(frozen=True)
class StackChart:
    """What the panels of a stacked chart have in common.

    parts      of a bar, bottom first: column of the table -> its style
    total      column drawn beside each bar, with its interval `total`_low to `total`_high
    number     text of a part inside its bar
    share      whether the y axis is in per cent
    least_top  up to where the y axis goes at least
    """

    title: str
    parts: Mapping[str, PartStyle]
    total: str
    number: Callable[[float], str]
    share: bool
    least_top: float


def stack_figure(chart: StackChart, stacks: Sequence[Stack]) -> Figure:
    """Draw one panel for each stack; all have the same y axis, so that their bars compare."""
    titles = [stack.title for stack in stacks]
    columns = min(2, len(stacks))
    figure, panels = new_figure(chart.title, list(chart.parts.values()), titles, columns, STACK_PANEL_INCHES)
    for axes, stack in zip(panels, stacks, strict=True):
        colour_title(axes, stack.colour)
        _draw_stack(axes, chart, stack.table)
    _equal_limits(panels)
    for axes in panels:
        _number_parts(axes, chart)
    return figure


def colour_title(axes: Axes, colour: str) -> None:
    """Write the title of a panel in the colour of its framework."""
    axes.set_title(axes.get_title(loc="left"), color=colour, size=TEXT_POINTS, pad=8)


def panel_title(series: DrawnSeries, inputs: Inputs) -> str:
    """Return the name of a series, after its options where several sets of options are drawn."""
    options = [printable(series.options)] if len(inputs.options) > 1 else []
    return ": ".join([*options, series.name])


def _draw_stack(axes: Axes, chart: StackChart, table: pd.DataFrame) -> None:
    x = np.arange(len(table), dtype=np.float64)
    ends = _draw_bars(axes, x, table, chart.parts)
    bounds = _draw_totals(axes, x + BAR_WIDTH / 2 + BESIDE, table, chart.total)
    from_zero(axes, "y", np.append(ends, bounds), least_top=chart.least_top)
    if chart.share:
        percent_axis(axes, "y")
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_xlabel("workers")
    axes.set_xticks(x, [str(workers) for workers in table["workers"]])
    axes.set_xlim(-0.6, max(1.6, len(table) - 0.4))
    axes.grid(visible=False, axis="x")


def _draw_totals(axes: Axes, x: Array, table: pd.DataFrame, total: str) -> Array:
    """Draw totals as diamonds with their intervals; return the ends of the intervals."""
    low = table[f"{total}_low"].to_numpy(dtype=np.float64)
    high = table[f"{total}_high"].to_numpy(dtype=np.float64)
    axes.vlines(x, low, high, color=INK, linewidth=1.3, zorder=4)
    axes.plot(x, table[total], "D", color=INK, markersize=4, linestyle="none", label="whole", zorder=5)
    return np.append(low, high)


def _draw_bars(axes: Axes, x: Array, table: pd.DataFrame, parts: Mapping[str, PartStyle]) -> Array:
    """Stack positive parts upwards and negative ones downwards; return the highest and lowest ends."""
    up = np.zeros(len(table))
    down = np.zeros(len(table))
    for part, style in parts.items():
        values = table[part].to_numpy(dtype=np.float64)
        base = np.where(values >= 0, up, down)
        _draw_part(axes, x, values, base, style)
        up += np.maximum(values, 0)
        down += np.minimum(values, 0)
    return np.append(up, down)


def _draw_part(axes: Axes, x: Array, values: Array, base: Array, style: PartStyle) -> None:
    axes.bar(x, values, BAR_WIDTH, base, color=style.colour, edgecolor=PAPER, linewidth=0.6, label=style.name)


def _number_parts(axes: Axes, chart: StackChart) -> None:
    """Write the number of every part that is high enough into its bar."""
    low, high = axes.get_ylim()
    for bars, style in zip(axes.containers, chart.parts.values(), strict=True):
        for bar in bars:
            height = bar.get_height()
            if abs(height) >= LEAST_NUMBERED * (high - low):
                _write_number(axes, bar, chart.number(height), style.number_colour)


def _write_number(axes: Axes, bar: Rectangle, text: str, colour: str) -> None:
    x, y = bar.get_center()
    axes.text(x, y, text, color=colour, size=SMALL_POINTS, ha="center", va="center")


def _equal_limits(panels: Sequence[Axes]) -> None:
    limits = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
