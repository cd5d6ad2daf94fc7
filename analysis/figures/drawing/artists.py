"""Artists inside a panel: lines with gaps, interval bars, markers of single runs, labels at line ends."""

from collections.abc import Callable, Sequence
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
from analysis.figures.drawing.axes import in_panel, keep_free
from analysis.figures.drawing.captions import on_workers
from analysis.figures.drawing.inputs import DrawnSeries
from analysis.figures.drawing.style import DASHED, DOTTED, MUTED, PAPER, shortened, text_width
from analysis.figures.drawing.titles import launch_titles, title_marks
from analysis.text import Row

# A line of text with some air; and the most of a panel that a remark may take.
LABEL_LINE_PX = 16
MOST_UNKNOWN_PX = 400
# From a line's end to its label, and from a label to the edge of the panel.
LABEL_DISTANCE_PX = 24
EDGE_PX = 6
# Shares of the axes' width between ends whose labels share a column, and between labels at tips side by side.
COLUMN_WIDTH = 0.06
TIP_DISTANCE = 0.055
# Shares of a panel's width by which bars and single runs of series stand beside their median.
BAR_STEP = 0.006
RUN_STEP = 0.024
FURTHER_STEP = 0.012
# Share of their width that axes keep when labels narrow them.
LEAST_NARROWED = 0.6
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
    return [patheffects.withStroke(linewidth=3, foreground=PAPER)]


def median_line(series: DrawnSeries, x: ArrayLike, y: ArrayLike, *, label: str) -> Line2D:
    """Return a series' line through its medians; it is broken where a value is not known."""
    return Line2D(
        np.asarray(x, dtype=np.float64),
        np.asarray(y, dtype=np.float64),
        color=series.style.colour,
        linestyle=series.line_style,
        linewidth=2,
        marker=series.style.marker,
        markersize=series.style.marker_px,
        markeredgecolor=PAPER,
        markeredgewidth=1,
        label=label,
        zorder=4,
    )


def line_with_gaps(
    axes: Axes,
    series: DrawnSeries,
    counts: Sequence[int],
    points: pd.DataFrame,
    column: str,
    text: Callable[[Row], str],
) -> None:
    """Draw a series over the workers; `text` says the value of a point beside the pointer.

    A dotted bridge shows that a count between two points is missing.
    """
    values = points.set_index("workers")[column].reindex(np.asarray(counts))
    line = median_line(series, counts, values, label=series.name)
    known = points[points[column].notna()].sort_values("workers").to_dict("records")
    title_marks(line, [f"{series.name} {on_workers(row['workers'])}: {text(row)}" for row in known])
    axes.add_line(line)
    colour = series.style.colour
    for start, stop in pairwise(np.flatnonzero(values.notna())):
        if stop > start + 1:
            bridge = values.iloc[np.array([start, stop])]
            axes.plot(bridge.index, bridge, color=colour, linestyle=DOTTED, linewidth=1.4, zorder=3)


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
        linewidth=1.8,
        alpha=0.85,
        zorder=3,
    )


def single_runs(
    axes: Axes, series: DrawnSeries, runs: pd.DataFrame, column: str, side: float, unit: str
) -> None:
    """Draw small markers of single runs beside the median of their point; `unit`: of the throughput."""
    style = series.style
    known = runs[runs[column].notna()]
    share = np.sign(side) * RUN_STEP + (side - np.sign(side)) * FURTHER_STEP
    dots = axes.scatter(
        sideways(axes, known["workers"], share),
        known[column],
        s=0.3 * style.marker_px**2,
        color=style.colour,
        marker=style.marker,
        alpha=0.5,
        linewidths=0,
        zorder=2,
    )
    title_marks(dots, launch_titles(known, unit))


def markers(
    axes: Axes, series: DrawnSeries, x: ArrayLike, y: ArrayLike, *, filled: bool, label: str
) -> Line2D:
    """Draw the framework's markers without a line, filled or open."""
    style = series.style
    (line,) = axes.plot(
        x,
        y,
        linestyle="none",
        color=style.colour,
        marker=style.marker,
        markersize=style.marker_px,
        markerfacecolor=style.colour if filled else PAPER,
        markeredgecolor=PAPER if filled else style.colour,
        markeredgewidth=1 if filled else 1.6,
        label=label,
        zorder=4,
    )
    return line


def guide_line(axes: Axes, x: Sequence[float], y: Sequence[float], text: str) -> Label:
    """Draw a dashed line to compare with; return its label."""
    axes.plot(x, y, color=MUTED, linewidth=1.2, linestyle=DASHED, zorder=1)
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


def end_labels(axes: Axes, labels: Sequence[Label], *, least_free: float = 0.0) -> None:
    """Write texts to the right of their points, moved apart where they would touch, inside the panel.

    The axes are narrowed until all fit, and at least so many pixels lie to their right.
    """
    # In reverse, so that of labels at the same height the first stands above the others.
    placed = [(*in_panel(axes, label.x, label.y), label) for label in reversed(labels)]
    keep_free(axes, right=max([least_free, *(_beyond(axes, x, label) for x, _, label in placed)]))
    line_height = LABEL_LINE_PX / axes.bbox.height
    for column in _columns(placed):
        heights = _apart([height for _, height, _ in column], line_height)
        for (_, _, label), height in zip(column, heights, strict=True):
            _write(axes, label, height)


def _beyond(axes: Axes, x: float, label: Label) -> float:
    """Return the pixels by which a label exceeds the axes if its point is at this share of their width."""
    text = LABEL_DISTANCE_PX + text_width(label.text, bold=label.bold) + EDGE_PX
    return text - (1 - x) * axes.bbox.width * LEAST_NARROWED


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


def _write(axes: Axes, label: Label, height: float) -> None:
    """Write a label beside its x in data coordinates, at this share of the height of the axes."""
    axes.annotate(
        label.text,
        (label.x, height),
        (LABEL_DISTANCE_PX, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=label.colour,
        va="center",
        weight="bold" if label.bold else "normal",
        path_effects=halo(),
        annotation_clip=False,
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
        text = shortened("not known: " + ", ".join(names), MOST_UNKNOWN_PX)
        axes.text(0.98, 0.03, text, transform=axes.transAxes, color=MUTED, ha="right")
