"""Charts over the workers: speed-up, efficiency, deviation, throughput; a panel per set of options."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.figures.axes import from_zero, is_wide, logarithmic, percent_axis, spaced, worker_axis
from analysis.figures.looks import DASHED, MUTED, percent, plain
from analysis.figures.marks import (
    Label,
    end_labels,
    interval_bars,
    last_known,
    line_with_gaps,
    say_unknown,
    sides,
    single_runs,
)
from analysis.figures.series import Inputs, Series
from analysis.figures.sheet import columns_for, sheet

SINGLE_PANEL = (4.9, 3.3)
FACET = (3.9, 2.9)
Guide = Callable[[Axes, Inputs, str], list[Label]]


@dataclass(frozen=True)
class Quantity:
    """One quantity over the workers.

    column     of the points and of the runs
    title      what it is, with its unit
    text       of a point, at its line's end
    guide      draws the line to compare with; gives that line's label
    scaling    whether it grows with the workers, so that a wide range of workers makes both axes logarithmic
    least_top  up to where its axis goes at least
    share      whether its axis is in per cent
    room       of the worker axis for the labels
    """

    column: str
    title: str
    text: Callable[["pd.Series[Any]"], str]
    guide: Guide
    scaling: bool = False
    least_top: float = 0.0
    share: bool = False
    room: float = 1.2


def quantity_figure(inputs: Inputs, quantity: Quantity) -> Figure:
    """One quantity over the workers; a panel for each set of options."""
    every = inputs.options
    series = [each for options in every for each in inputs.series(options)]
    size = SINGLE_PANEL if len(every) == 1 else FACET
    figure, panels = sheet(quantity.title, series, every, columns_for(len(every)), size)
    for axes, options in zip(panels, every, strict=True):
        draw_quantity(axes, inputs, quantity, options)
    return figure


def draw_quantity(axes: Axes, inputs: Inputs, quantity: Quantity, options: str) -> None:
    """Single runs, intervals, medians and the guide of one quantity under one set of options."""
    counts, drawn = inputs.counts(options), inputs.series(options)
    worker_axis(axes, counts, room=quantity.room)
    _value_axis(axes, inputs, quantity, options)
    labels = quantity.guide(axes, inputs, options)
    unknown = []
    for series, side in zip(drawn, sides(len(drawn)), strict=True):
        label = draw_series(axes, inputs, quantity, series, side)
        labels += label
        unknown += [] if label else [series.name]
    say_unknown(axes, unknown, nothing=len(unknown) == len(drawn))
    end_labels(axes, labels)


def draw_series(axes: Axes, inputs: Inputs, quantity: Quantity, series: Series, side: float) -> list[Label]:
    """One line with its runs and bars; gives the label of its last point."""
    points = series.of(inputs.points)
    runs = series.of(inputs.runs)
    single_runs(axes, series, runs[runs["repeats"] > 1], quantity.column, side)
    interval_bars(axes, series, points, quantity.column, side)
    line_with_gaps(axes, series, inputs.counts(series.options), points, quantity.column)
    last = last_known(points, quantity.column)
    if last is None:
        return []
    place = float(last["workers"]), float(last[quantity.column])
    return [Label(*place, quantity.text(last), series.look.colour)]


def _value_axis(axes: Axes, inputs: Inputs, quantity: Quantity, options: str) -> None:
    values = drawn_values(inputs, quantity.column, options)
    counts = inputs.counts(options)
    if quantity.scaling and is_wide(counts) and (values > 0).any():
        reach = counts if quantity.column == "speedup" else []
        logarithmic(axes, "y", np.append(values, np.asarray(reach, dtype=np.float64)))
        return
    from_zero(axes, "y", values, least_top=quantity.least_top)
    if quantity.column == "speedup":
        from_zero(axes, "y", values, least_top=1.08 * counts[-1])
        axes.set_yticks([0, *spaced(axes, counts)])
    if quantity.share:
        percent_axis(axes, "y")


def drawn_values(inputs: Inputs, column: str, options: str) -> NDArray[np.float64]:
    """Every value of a column that a panel shows: medians, ends of intervals, single runs."""
    points = inputs.points[inputs.points["options"] == options]
    runs = inputs.runs[inputs.runs["options"] == options]
    parts = [points[column], points[f"{column}_low"], points[f"{column}_high"], runs[column]]
    return np.concatenate([part.to_numpy(dtype=np.float64) for part in parts])


def _guide_line(axes: Axes, x: list[float], y: list[float], text: str) -> list[Label]:
    axes.plot(x, y, color=MUTED, linewidth=1, linestyle=DASHED, zorder=1)
    return [Label(x[-1], y[-1], text, MUTED, bold=False)]


def _ideal_speedup(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    counts = [float(each) for each in inputs.counts(options)]
    start = counts[0] if is_wide(inputs.counts(options)) else 0.0
    return _guide_line(axes, [start, counts[-1]], [start, counts[-1]], "ideal")


def _ideal_throughput(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    """The faster 1-worker median times the workers; absent where the common baseline is not known."""
    points = inputs.points[inputs.points["options"] == options]
    baselines = (points["throughput"] / points["speedup_common"]).dropna()
    if baselines.empty:
        return []
    counts = inputs.counts(options)
    start = float(counts[0]) if is_wide(counts) else 0.0
    ends = [start, float(counts[-1])]
    baseline = float(baselines.iloc[0])
    if axes.get_yscale() != "log":
        top = max(axes.get_ylim()[1], 1.08 * baseline * ends[1])
        axes.set_ylim(axes.get_ylim()[0], top)
    else:
        axes.set_ylim(axes.get_ylim()[0], max(axes.get_ylim()[1], 1.3 * baseline * ends[1]))
    return _guide_line(axes, ends, [baseline * each for each in ends], "ideal")


def _level(value: float, text: str) -> Guide:
    def draw(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
        counts = inputs.counts(options)
        return _guide_line(axes, [axes.get_xlim()[0], float(counts[-1])], [value, value], text)

    return draw


def _ideal_and_floor(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    floor = inputs.study.criteria.efficiency_floor
    ideal = _level(1.0, "ideal")(axes, inputs, options)
    return ideal + _level(floor, f"floor {percent(floor)}")(axes, inputs, options)


def _no_guide(_axes: Axes, _inputs: Inputs, _options: str) -> list[Label]:
    return []


def _speedup_text(row: "pd.Series[Any]") -> str:
    return f"{plain(float(row['speedup']), '.2f')} ({percent(float(row['efficiency']))})"


SPEEDUP = Quantity(
    "speedup", "Speed-up over 1 worker (efficiency)", _speedup_text, _ideal_speedup, scaling=True, room=1.34
)
EFFICIENCY = Quantity(
    "efficiency",
    "Efficiency: speed-up / workers",
    lambda row: percent(float(row["efficiency"])),
    _ideal_and_floor,
    least_top=1.1,
    share=True,
    room=1.28,
)
DEVIATION = Quantity(
    "deviation",
    "Deviation from ideal speed-up: 1 - efficiency",
    lambda row: percent(float(row["deviation"])),
    _no_guide,
    least_top=0.2,
    share=True,
)
IOU = Quantity("iou", "IoU", lambda row: plain(float(row["iou"]), ".3f"), _no_guide, least_top=1.04)


def throughput_quantity(inputs: Inputs) -> Quantity:
    """Throughput in the unit of the study."""
    return Quantity(
        "throughput",
        f"Throughput, {inputs.study.unit}",
        lambda row: plain(float(row["throughput"])),
        _ideal_throughput,
        scaling=True,
    )
