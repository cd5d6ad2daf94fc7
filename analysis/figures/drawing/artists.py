"""Artists inside a panel: lines with gaps, interval bars, markers of single runs, labels at line ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike
from scipy import optimize  # type: ignore[import-untyped]

from analysis.arrays import Array
from analysis.figures.drawing.axes import in_panel
from analysis.figures.drawing.inputs import DrawnSeries
from analysis.figures.drawing.style import DASHED, DOTTED, MUTED, PAPER, SMALL_POINTS, shortened

LABEL_LINE_INCHES = 0.175
MOST_UNKNOWN_INCHES = 3.2
# Shares of a panel's width: from a line's end to its label, between ends whose labels share a column, and
# between labels at tips side by side.
LABEL_DISTANCE = 0.042
COLUMN_WIDTH = 0.06
TIP_DISTANCE = 0.055
# Shares of a panel's width by which bars and single runs of series stand beside their median.
BAR_STEP = 0.006
RUN_STEP = 0.024
FURTHER_STEP = 0.012
# Shares of a panel's height that labels may take: from just above the axis to just above the top.
LOWEST_LABEL = 0.03
HIGHEST_LABEL = 1.02

Side = Literal["left", "center", "right"]
Height = Literal["top", "bottom"]


@dataclass(frozen=True)
class Label:
    """A text to the right of a point in data coordinates; values of series are bold, guides are not."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = True


# Position in the panel, as shares of its width and height, and the label.
Placed = tuple[float, float, Label]


def halo() -> list[patheffects.AbstractPathEffect]:
    """Return an outline in the colour of the paper, so that a text can be read across lines."""
    return [patheffects.withStroke(linewidth=2.5, foreground=PAPER)]


def median_line(series: DrawnSeries, x: ArrayLike, y: ArrayLike, *, label: str) -> Line2D:
    """Return a series' line through its medians; it is broken where a value is not known."""
    return Line2D(
        np.asarray(x, dtype=np.float64),
        np.asarray(y, dtype=np.float64),
        color=series.style.colour,
        linestyle=series.line_style,
        linewidth=1.5,
        marker=series.style.marker,
        markersize=series.style.marker_points,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
        label=label,
        zorder=4,
    )


def line_with_gaps(
    axes: Axes, series: DrawnSeries, counts: Sequence[int], points: pd.DataFrame, column: str
) -> None:
    """Draw a series over the workers. A dotted bridge shows that a count between two points is missing."""
    values = points.set_index("workers")[column].reindex(np.asarray(counts))
    axes.add_line(median_line(series, counts, values, label=series.name))
    colour = series.style.colour
    for start, stop in pairwise(np.flatnonzero(values.notna())):
        if stop > start + 1:
            bridge = values.iloc[np.array([start, stop])]
            axes.plot(bridge.index, bridge, color=colour, linestyle=DOTTED, linewidth=1.1, zorder=3)


def interval_bars(
    axes: Axes, series: DrawnSeries, points: pd.DataFrame, column: str, side: float = 0.0
) -> None:
    """Draw a bar for every interval that is known and wider than a point; `side` keeps bars apart."""
    known = points[points[f"{column}_low"] < points[f"{column}_high"]]
    axes.vlines(
        sideways(axes, known["workers"], side * BAR_STEP),
        known[f"{column}_low"],
        known[f"{column}_high"],
        color=series.style.colour,
        linewidth=1.4,
        alpha=0.85,
        zorder=3,
    )


def single_runs(axes: Axes, series: DrawnSeries, runs: pd.DataFrame, column: str, side: float) -> None:
    """Draw small markers of single runs, beside the median of their point."""
    style = series.style
    known = runs[runs[column].notna()]
    share = np.sign(side) * RUN_STEP + (side - np.sign(side)) * FURTHER_STEP
    axes.scatter(
        sideways(axes, known["workers"], share),
        known[column],
        s=0.3 * style.marker_points**2,
        color=style.colour,
        marker=style.marker,
        alpha=0.4,
        linewidths=0,
        zorder=2,
    )


def markers(axes: Axes, series: DrawnSeries, x: ArrayLike, y: ArrayLike, *, filled: bool, label: str) -> None:
    """Draw the framework's markers without a line, filled or open."""
    style = series.style
    axes.plot(
        x,
        y,
        linestyle="none",
        color=style.colour,
        marker=style.marker,
        markersize=style.marker_points,
        markerfacecolor=style.colour if filled else PAPER,
        markeredgecolor=PAPER if filled else style.colour,
        markeredgewidth=0.8 if filled else 1.3,
        label=label,
        zorder=4,
    )


def guide_line(axes: Axes, x: Sequence[float], y: Sequence[float], text: str) -> Label:
    """Draw a dashed line to compare with; return its label."""
    axes.plot(x, y, color=MUTED, linewidth=1, linestyle=DASHED, zorder=1)
    return Label(x[-1], y[-1], text, MUTED, bold=False)


def sideways(axes: Axes, workers: "pd.Series[float]", share: float) -> Array:
    """Return x positions a share of the axis beside the worker counts, on a linear or logarithmic axis."""
    positions = workers.to_numpy(dtype=np.float64)
    low, high = axes.get_xlim()
    if axes.get_xscale() == "log":
        return np.asarray(positions * (high / low) ** share, dtype=np.float64)
    return np.asarray(positions + share * (high - low), dtype=np.float64)


def series_sides(series: int) -> list[float]:
    """Return on which side of its medians each series' bars and runs stand: -1, 1, -2, 2, ..."""
    return [(number // 2 + 1.0) * (-1 if number % 2 == 0 else 1) for number in range(series)]


def end_labels(axes: Axes, labels: Sequence[Label]) -> None:
    """Write texts to the right of their points, moved apart where they would touch, inside the panel."""
    line_height = LABEL_LINE_INCHES / _height_inches(axes)
    # In reverse, so that of labels at the same height the first stands above the others.
    placed = [(*in_panel(axes, label.x, label.y), label) for label in reversed(labels)]
    for column in _columns(placed):
        heights = _apart([height for _, height, _ in column], line_height)
        for (x, _, label), height in zip(column, heights, strict=True):
            _write(axes, label, x + LABEL_DISTANCE, height)


def _height_inches(axes: Axes) -> float:
    return axes.get_position().height * axes.figure.bbox.height / axes.figure.dpi


def tip_labels(axes: Axes, labels: Sequence[Label], *, below: bool) -> None:
    """Write texts at the tips of lines side by side; of two that would touch, the inner is left out."""
    placed = sorted(((in_panel(axes, label.x, label.y)[0], label) for label in labels), key=lambda p: p[0])
    written: list[float] = []
    for x, label in [*placed[:1], *placed[:0:-1]]:
        if all(abs(x - other) >= TIP_DISTANCE for other in written):
            written.append(x)
            text_beside(axes, label, (0, -5 if below else 5), ha="center", va="top" if below else "bottom")


def text_beside(
    axes: Axes, label: Label, offset_points: tuple[float, float], *, ha: Side, va: Height
) -> None:
    """Write a bold text this far from its point in data coordinates."""
    axes.annotate(
        label.text,
        (label.x, label.y),
        offset_points,
        textcoords="offset points",
        ha=ha,
        va=va,
        color=label.colour,
        weight="bold",
        path_effects=halo(),
        zorder=5,
    )


def _write(axes: Axes, label: Label, x: float, y: float) -> None:
    axes.text(
        x,
        y,
        label.text,
        transform=axes.transAxes,
        color=label.colour,
        va="center",
        weight="bold" if label.bold else "normal",
        path_effects=halo(),
        zorder=5,
    )


def _columns(placed: Sequence[Placed]) -> list[list[Placed]]:
    """Group labels at about the same x; each column is sorted from the bottom up."""
    columns: list[list[Placed]] = []
    last_x = -np.inf
    for x, height, label in sorted(placed, key=lambda place: place[0]):
        if x - last_x > COLUMN_WIDTH:
            columns.append([])
        columns[-1].append((x, height, label))
        last_x = x
    return [sorted(column, key=lambda place: place[1]) for column in columns]


def _apart(heights: Sequence[float], line_height: float) -> Array:
    """Return the heights nearest to these ascending ones that are a line apart, by isotonic regression."""
    steps = line_height * np.arange(len(heights))
    nearest = optimize.isotonic_regression(np.asarray(heights) - steps).x
    return np.asarray(np.clip(nearest, LOWEST_LABEL, HIGHEST_LABEL - steps[-1]) + steps, dtype=np.float64)


def last_known(points: pd.DataFrame, column: str) -> "pd.Series[Any] | None":
    """Return the row of the largest worker count at which the value is known."""
    known = points[points[column].notna()].sort_values("workers")
    return None if known.empty else known.iloc[-1]


def say_unknown(axes: Axes, names: Sequence[str], *, nothing: bool) -> None:
    """Write of which series nothing is known; `nothing`: the panel is empty."""
    if nothing:
        axes.text(0.5, 0.45, "not known", transform=axes.transAxes, color=MUTED, ha="center")
    elif names:
        text = shortened("not known: " + ", ".join(names), MOST_UNKNOWN_INCHES, SMALL_POINTS)
        axes.text(0.98, 0.03, text, transform=axes.transAxes, color=MUTED, ha="right", size=SMALL_POINTS)
