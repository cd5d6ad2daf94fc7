"""Stacked bars over the workers, a panel for each series or comparison: the chart of three figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from analysis.arrays import Array
from analysis.figures.drawing.axes import from_zero, percent_axis
from analysis.figures.drawing.captions import on_workers
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import INK, MUTED, PAPER, PartStyle, text_width
from analysis.figures.drawing.titles import title_marks

# More would not fit on a printed page.
MOST_PANELS = 8
# Of the distance between two bars.
BAR_WIDTH = 0.62
BESIDE = 0.09
# Height from which a part has room for its number.
NUMBERED_PX = 15
NUMBER_MARGIN_PX = 4


@dataclass(frozen=True)
class Stack:
    """One panel: `table` has a row per worker count, and columns for the workers, each part and the total."""

    title: str
    table: pd.DataFrame
    options: str = ""
    colour: str = INK


@dataclass(frozen=True)
class StackChart:
    """What the panels of a stacked chart have in common.

    parts      of a bar, bottom first: column of the table -> its style
    total      column drawn beside each bar, with its interval `total`_low to `total`_high
    total_name its name
    number     text of a part or total
    share      whether the y axis is in per cent
    least_top  up to where the y axis goes at least
    """

    parts: Mapping[str, PartStyle]
    total: str
    total_name: str
    number: Callable[[float], str]
    share: bool
    least_top: float


def stack_panels(chart: StackChart, stacks: Sequence[Stack]) -> list[Panel]:
    """Return one panel for each stack; all have the same y axis, so that their bars compare.

    The parts are the same in all: the first panel has the legend.
    """
    ends = np.concatenate([_ends(chart, stack.table) for stack in stacks])
    first, *others = [_panel(chart, stack, ends) for stack in stacks]
    return [replace(first, legend=list(chart.parts.values())), *others]


def _panel(chart: StackChart, stack: Stack, ends: Array) -> Panel:
    def draw(axes: Axes) -> None:
        from_zero(axes, "y", ends, least_top=chart.least_top)
        if chart.share:
            percent_axis(axes, "y")
        _draw_stack(axes, chart, stack.table)

    return Panel(stack.title, draw, stack.options, colour=stack.colour)


def _ends(chart: StackChart, table: pd.DataFrame) -> Array:
    """Return the highest and lowest ends of the bars, and the ends of the intervals."""
    parts = table[[*chart.parts]].to_numpy(dtype=np.float64)
    bounds = table[[f"{chart.total}_low", f"{chart.total}_high"]].to_numpy(dtype=np.float64)
    up = np.maximum(parts, 0).sum(axis=1)
    down = np.minimum(parts, 0).sum(axis=1)
    return np.concatenate([up, down, bounds.ravel()])


def _draw_stack(axes: Axes, chart: StackChart, table: pd.DataFrame) -> None:
    x = np.arange(len(table), dtype=np.float64)
    axes.set_xlabel("workers")
    axes.set_xticks(x, [str(workers) for workers in table["workers"]])
    beside = max(0.6, 1.6 - len(table) / 2)
    axes.set_xlim(-beside, len(table) - 1 + beside)
    axes.grid(visible=False, axis="x")
    axes.axhline(0, color=MUTED, linewidth=1)
    _draw_bars(axes, chart, table, x)
    _draw_totals(axes, chart, table, x + BAR_WIDTH / 2 + BESIDE)


def _draw_totals(axes: Axes, chart: StackChart, table: pd.DataFrame, x: Array) -> None:
    """Draw totals as diamonds with their intervals."""
    axes.vlines(
        x, table[f"{chart.total}_low"], table[f"{chart.total}_high"], color=INK, linewidth=1.6, zorder=4
    )
    (diamonds,) = axes.plot(
        x, table[chart.total], "D", color=INK, markersize=5, linestyle="none", label="whole", zorder=5
    )
    title_marks(diamonds, [_total_title(chart, row) for row in table.to_dict("records")])


def _total_title(chart: StackChart, row: Mapping[object, float]) -> str:
    ends = (chart.number(row[f"{chart.total}{end}"]) for end in ("_low", "_high"))
    total = chart.number(row[chart.total])
    return f"{chart.total_name} {on_workers(int(row['workers']))}: {total} [{', '.join(ends)}]"


def _draw_bars(axes: Axes, chart: StackChart, table: pd.DataFrame, x: Array) -> None:
    values = table[[*chart.parts]].to_numpy(dtype=np.float64)
    bases = _bases(values)
    for part, style in enumerate(chart.parts.values()):
        look: dict[str, Any] = {"color": style.colour, "edgecolor": PAPER, "linewidth": 0.8}
        bars = axes.bar(x, values[:, part], BAR_WIDTH, bases[:, part], label=style.name, **look)
        _name_bars(axes, chart, style, zip(bars, table["workers"], strict=True))


def _bases(values: Array) -> Array:
    """Return where the bars of values [counts, parts] begin: positive stacked upwards, negative downwards."""
    up = np.maximum(values, 0)
    down = np.minimum(values, 0)
    return np.where(values >= 0, up.cumsum(axis=1) - up, down.cumsum(axis=1) - down)


def _name_bars(
    axes: Axes, chart: StackChart, style: PartStyle, bars: Iterable[tuple[Rectangle, int]]
) -> None:
    """Name each bar of a part beside the pointer, and write its number into it."""
    for bar, workers in bars:
        text = chart.number(bar.get_height())
        title_marks(bar, [f"{style.name} {on_workers(workers)}: {text}"])
        _write_number(axes, bar, text, style.number_colour)


def _write_number(axes: Axes, bar: Rectangle, text: str, colour: str) -> None:
    """Write the number of a part into its bar where it fits."""
    (left, bottom), (right, top) = axes.transData.transform(bar.get_bbox())
    if abs(top - bottom) > NUMBERED_PX and right - left > text_width(text) + NUMBER_MARGIN_PX:
        x, y = bar.get_center()
        axes.text(x, y, text, color=colour, ha="center", va="center")
