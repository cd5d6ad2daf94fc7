"""Artists inside a panel: lines with gaps, interval bars, markers of single runs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from analysis.arrays import Array
from analysis.figures.drawing.captions import on_workers
from analysis.figures.drawing.inputs import DrawnSeries
from analysis.figures.drawing.style import DOTTED, PAPER
from analysis.figures.drawing.titles import launch_titles, title_marks
from analysis.text import Row

# Shares of a panel's width by which bars and single runs of series stand beside their median.
BAR_STEP = 0.006
RUN_STEP = 0.024
FURTHER_STEP = 0.012


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
    _bridge_gaps(axes, series, values)


def _bridge_gaps(axes: Axes, series: DrawnSeries, values: "pd.Series[float]") -> None:
    for start, stop in pairwise(np.flatnonzero(values.notna())):
        if stop > start + 1:
            bridge = values.iloc[np.array([start, stop])]
            colour = series.style.colour
            axes.plot(bridge.index, bridge, color=colour, linestyle=DOTTED, linewidth=1.4, zorder=3)


def interval_bars(
    axes: Axes,
    series: DrawnSeries,
    points: pd.DataFrame,
    column: str,
    side: float = 0.0,
    x: str = "workers",
) -> None:
    """Draw a bar for every interval that is known and wider than a point; `side` keeps bars apart."""
    known = points[points[f"{column}_low"] < points[f"{column}_high"]]
    axes.vlines(
        sideways(axes, known[x], side * BAR_STEP),
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


def sideways(axes: Axes, x: "pd.Series[float]", share: float) -> Array:
    """Return positions a share of the axis beside these, on a linear or logarithmic axis."""
    positions = x.to_numpy(dtype=np.float64)
    low, high = axes.get_xlim()
    if axes.get_xscale() == "log":
        return np.asarray(positions * (high / low) ** share, dtype=np.float64)
    return np.asarray(positions + share * (high - low), dtype=np.float64)


def series_sides(series: int) -> list[float]:
    """Return on which side of its medians each series' bars and runs stand: -1, 1, -2, 2, ..."""
    return [(number // 2 + 1.0) * (-1 if number % 2 == 0 else 1) for number in range(series)]


def last_known(points: pd.DataFrame, column: str) -> "pd.Series[Any] | None":
    """Return the row of the largest worker count at which the value is known."""
    known = points[points[column].notna()].sort_values("workers")
    return None if known.empty else known.iloc[-1]
