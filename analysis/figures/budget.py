"""The loss budget drawn: stacks over the workers, a waterfall to the efficiency, and the difference."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.figures.axes import from_zero, percent_axis
from analysis.figures.looks import INK, MUTED, PAPER, PART_LOOKS, SMALL_POINTS, TEXT_POINTS, plain, printable
from analysis.figures.marks import halo
from analysis.figures.series import MOST_OPTIONS, Inputs, Series
from analysis.figures.sheet import sheet

PANEL = (4.1, 2.9)
MOST_PANELS = 8
BAR = 0.62
LEAST_LABELLED, LEAST_SHOWN = 0.05, 0.0005
PAIR = ["options", "native_knobs", "horovod_knobs"]

Array = NDArray[np.float64]


def budget_figure(inputs: Inputs) -> Figure:
    """What each part takes of the workers' time, over the workers; a panel for each series, side by side."""
    drawn = budget_series(inputs)
    title = "Where the efficiency went: 1 - efficiency, in parts"
    figure, panels = _part_sheet(title, [_panel_name(series, inputs) for series in drawn])
    tables = [series.of(inputs.overhead.budget) for series in drawn]
    for axes, series, table in zip(panels, drawn, tables, strict=True):
        _name_in_its_colour(axes, series)
        _stacks(axes, table, "deviation", _span(tables))
    _same_height(panels)
    return figure


def waterfall_figure(inputs: Inputs) -> Figure:
    """From an efficiency of 100 % down to that of the most workers, part by part."""
    drawn = budget_series(inputs)
    rows = [series.of(inputs.overhead.budget).iloc[-1] for series in drawn]
    names = [
        f"{_panel_name(series, inputs)}, {row['workers']} workers"
        for series, row in zip(drawn, rows, strict=True)
    ]
    figure, panels = sheet("From 1 worker to the most", [], names, min(2, len(names)), PANEL)
    for axes, series, row in zip(panels, drawn, rows, strict=True):
        _name_in_its_colour(axes, series)
        _waterfall(axes, row)
    return figure


def difference_figure(inputs: Inputs) -> Figure:
    """What Horovod takes more (above zero) or less than native DDP for an image, in parts."""
    groups = list(inputs.overhead.differences.groupby(PAIR, sort=False))[:MOST_PANELS]
    names = [", ".join(printable(str(each)) for each in key if each) for key, _ in groups]
    figure, panels = _part_sheet("What Horovod needs more time for, in parts", names)
    for axes, (_, table) in zip(panels, groups, strict=True):
        _stacks(axes, table, "difference", _span([each for _, each in groups]))
    _same_height(panels)
    return figure


def budget_series(inputs: Inputs) -> list[Series]:
    """The series that have a budget, in the order of the other charts."""
    found = [series for options in inputs.options[:MOST_OPTIONS] for series in inputs.series(options)]
    return [series for series in found if len(series.of(inputs.overhead.budget))][:MOST_PANELS]


def _name_in_its_colour(axes: Axes, series: Series) -> None:
    axes.set_title(axes.get_title(loc="left"), color=series.look.colour, size=TEXT_POINTS, pad=8)


def _part_sheet(title: str, names: Sequence[str]) -> tuple[Figure, list[Axes]]:
    return sheet(title, list(PART_LOOKS.values()), names, min(2, len(names)), PANEL)


def _panel_name(series: Series, inputs: Inputs) -> str:
    return ": ".join(([printable(series.options)] if len(inputs.options) > 1 else []) + [series.name])


def _stacks(axes: Axes, table: pd.DataFrame, whole: str, span: float) -> None:
    """Losses stacked upwards, gains downwards; a mark and its bar are their sum and its interval."""
    places = np.arange(len(table), dtype=np.float64)
    up, down = np.zeros(len(table)), np.zeros(len(table))
    for part, look in PART_LOOKS.items():
        values = table[part].to_numpy(dtype=np.float64)
        base = np.where(values >= 0, up, down)
        axes.bar(
            places, values, BAR, base, color=look.colour, edgecolor=PAPER, linewidth=0.6, label=look.name
        )
        for place, value, start in zip(places, values, base, strict=True):
            if abs(value) >= LEAST_LABELLED * span:
                axes.text(
                    place, start + value / 2, _percent(value), color=look.ink, size=SMALL_POINTS,
                    ha="center", va="center",
                )  # fmt: skip
        up, down = up + np.maximum(values, 0), down + np.minimum(values, 0)
    _wholes(axes, places, table, whole)
    axes.set_xticks(places, [str(each) for each in table["workers"]])
    axes.set_xlabel("workers")
    axes.set_xlim(-0.6, max(1.6, len(table) - 0.4))
    axes.grid(visible=False, axis="x")
    bounded = table[[f"{whole}_low", f"{whole}_high"]].to_numpy(dtype=np.float64).ravel()
    from_zero(axes, "y", np.concatenate([up, down, bounded]), least_top=0.02)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    percent_axis(axes, "y")


def _wholes(axes: Axes, places: Array, table: pd.DataFrame, whole: str) -> None:
    beside = places + BAR / 2 + 0.09
    axes.vlines(beside, table[f"{whole}_low"], table[f"{whole}_high"], color=INK, linewidth=1.3, zorder=4)
    axes.plot(beside, table[whole], "D", color=INK, markersize=4, zorder=5, linestyle="none", label="whole")


def _span(tables: Sequence[pd.DataFrame]) -> float:
    """The height of the tallest stack of all panels."""
    values = pd.concat(tables)[list(PART_LOOKS)].to_numpy(dtype=np.float64)
    tall = np.maximum(values, 0).sum(axis=1) - np.minimum(values, 0).sum(axis=1)
    return float(max(tall.max(), 0.02))


def _same_height(panels: Sequence[Axes]) -> None:
    limits = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _waterfall(axes: Axes, row: "pd.Series[Any]") -> None:
    """Bars from the top down; each starts where the one above it ended."""
    level, names = 1.0, []
    parts = [(part, float(row[part])) for part in PART_LOOKS if abs(row[part]) >= LEAST_SHOWN]
    for number, (part, value) in enumerate(parts):
        look = PART_LOOKS[part]
        axes.barh(-number, -value, 0.72, level, color=look.colour, edgecolor=MUTED, linewidth=0.4)
        axes.plot([level - value] * 2, [-number, -number - 1], color=MUTED, linewidth=0.7)
        level -= value
        names.append(f"{look.name}  {_percent(-value)}")
    efficiency = float(1 - row["deviation"])
    axes.barh(-len(parts), efficiency, 0.72, color=MUTED, alpha=0.35)
    low, high = (1 - row[f"deviation_{end}"] for end in ("high", "low"))
    axes.hlines(-len(parts), low, high, color=INK, linewidth=1.3)
    for number, text in enumerate([*names, f"efficiency  {_percent(efficiency)}"]):
        axes.text(0.015, -number, text, va="center", size=SMALL_POINTS, path_effects=halo(), zorder=5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    from_zero(axes, "x", np.array([level, 1.0, high]))
    axes.set_xlim(0, max(1.05, axes.get_xlim()[1] if high > 1 else 0))
    percent_axis(axes, "x")
    axes.set_xlabel("efficiency")


def _percent(value: float) -> str:
    return plain(100 * value, ".1f") + " %"
