"""What stands in a panel: lines with gaps, interval bars, marks of single runs, labels at line ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray
from scipy import optimize  # type: ignore[import-untyped]

from analysis.figures.axes import in_panel
from analysis.figures.looks import DOTTED, MUTED, PAPER, SMALL_POINTS, shortened
from analysis.figures.series import Series

LINE_INCHES = 0.175
MOST_UNKNOWN_INCHES = 3.2
LABEL_DISTANCE = 0.042
COLUMN_WIDTH, TIP_DISTANCE = 0.06, 0.055
BAR_STEP, RUN_STEP, FURTHER_STEP = 0.006, 0.024, 0.012

Placed = tuple[float, float, int]


@dataclass(frozen=True)
class Label:
    """A text to the right of a place in data coordinates; values of series are bold, guides are not."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = True


def halo() -> list[patheffects.AbstractPathEffect]:
    """Paper around a text, so that it can be read across lines."""
    return [patheffects.withStroke(linewidth=2.5, foreground=PAPER)]


def median_line(series: Series, x: ArrayLike, y: ArrayLike, *, label: str) -> Line2D:
    """A series' line through its medians; it is broken where a value is not known."""
    return Line2D(
        np.asarray(x, dtype=np.float64),
        np.asarray(y, dtype=np.float64),
        color=series.look.colour,
        linestyle=series.line_style,
        linewidth=1.5,
        marker=series.look.marker,
        markersize=series.look.points,
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
        label=label,
        zorder=4,
    )


def line_with_gaps(
    axes: Axes, series: Series, counts: Sequence[int], points: pd.DataFrame, column: str
) -> None:
    """A series over the workers. Where a count between two points is missing, a dotted bridge says so."""
    values = points.set_index("workers")[column].reindex(np.asarray(counts)).to_numpy(dtype=np.float64)
    axes.add_line(median_line(series, counts, values, label=series.name))
    known = [place for place, value in enumerate(values) if np.isfinite(value)]
    for start, stop in pairwise(known):
        if stop > start + 1:
            axes.plot(
                [counts[start], counts[stop]],
                [values[start], values[stop]],
                color=series.look.colour,
                linestyle=DOTTED,
                linewidth=1.1,
                zorder=3,
            )


def interval_bars(axes: Axes, series: Series, points: pd.DataFrame, column: str, side: float = 0.0) -> None:
    """A bar for every interval that is known and wider than a point; `side` keeps bars apart."""
    known = points[points[f"{column}_low"] < points[f"{column}_high"]]
    axes.vlines(
        sideways(axes, known["workers"], side * BAR_STEP),
        known[f"{column}_low"],
        known[f"{column}_high"],
        color=series.look.colour,
        linewidth=1.4,
        alpha=0.85,
        zorder=3,
    )


def single_runs(axes: Axes, series: Series, runs: pd.DataFrame, column: str, side: float) -> None:
    """Small marks of single runs, beside the median of their point."""
    look = series.look
    axes.scatter(
        sideways(axes, runs["workers"], np.sign(side) * RUN_STEP + (side - np.sign(side)) * FURTHER_STEP),
        runs[column],
        s=0.3 * look.points**2,
        color=look.colour,
        marker=look.marker,
        alpha=0.4,
        linewidths=0,
        zorder=2,
    )


def sideways(axes: Axes, workers: "pd.Series[float]", share: float) -> NDArray[np.float64]:
    """Places a share of the axis beside the worker counts, on a linear or logarithmic axis."""
    places = workers.to_numpy(dtype=np.float64)
    low, high = axes.get_xlim()
    if axes.get_xscale() == "log":
        return np.asarray(places * (high / low) ** share, dtype=np.float64)
    return np.asarray(places + share * (high - low), dtype=np.float64)


def sides(series: int) -> list[float]:
    """On which side of their medians the bars and runs of each series stand: -1, 1, -2, 2, ..."""
    return [(number // 2 + 1.0) * (-1 if number % 2 == 0 else 1) for number in range(series)]


def end_labels(axes: Axes, labels: Sequence[Label]) -> None:
    """Texts to the right of their places, moved apart where they would touch, kept inside the panel."""
    placed = sorted((*in_panel(axes, each.x, each.y), number) for number, each in enumerate(labels))
    columns: list[list[Placed]] = []
    for place in placed:
        if not columns or place[0] - columns[-1][-1][0] > COLUMN_WIDTH:
            columns.append([])
        columns[-1].append(place)
    line = LINE_INCHES / (axes.get_position().height * axes.figure.bbox.height / axes.figure.dpi)
    for column in columns:
        column.sort(key=lambda place: (place[1], -place[2]))
        heights = _apart([height for _, height, _ in column], line)
        for (x, _, number), height in zip(column, heights, strict=True):
            _text(axes, labels[number], x + LABEL_DISTANCE, height)


def tip_labels(axes: Axes, labels: Sequence[Label], *, below: bool) -> None:
    """Texts at the tips of lines that end side by side; where two would touch, the inner one is left out."""
    places = sorted((in_panel(axes, each.x, each.y)[0], number) for number, each in enumerate(labels))
    kept: list[float] = []
    for place, number in [*places[:1], *places[:0:-1]]:
        if all(abs(place - other) >= TIP_DISTANCE for other in kept):
            kept.append(place)
            label = labels[number]
            axes.annotate(
                label.text,
                (label.x, label.y),
                (0, -5 if below else 5),
                textcoords="offset points",
                ha="center",
                va="top" if below else "bottom",
                color=label.colour,
                weight="bold",
                path_effects=halo(),
                zorder=5,
            )


def _text(axes: Axes, label: Label, x: float, y: float) -> None:
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


def _apart(heights: Sequence[float], line: float) -> NDArray[np.float64]:
    """The heights nearest to these ascending ones that are a line apart, by isotonic regression."""
    steps = line * np.arange(len(heights))
    nearest = optimize.isotonic_regression(np.asarray(heights) - steps).x
    return np.asarray(np.clip(nearest, 0.03, 1.02 - steps[-1]) + steps, dtype=np.float64)


def last_known(points: pd.DataFrame, column: str) -> "pd.Series[Any] | None":
    """The row of the largest worker count at which the value is known."""
    known = points[points[column].notna()].sort_values("workers")
    return None if known.empty else known.iloc[-1]


def say_unknown(axes: Axes, names: Sequence[str], *, nothing: bool) -> None:
    """Say of which series nothing is known; `nothing` that the panel is empty."""
    if nothing:
        axes.text(0.5, 0.45, "not known", transform=axes.transAxes, color=MUTED, ha="center")
    elif names:
        text = shortened("not known: " + ", ".join(names), MOST_UNKNOWN_INCHES, SMALL_POINTS)
        axes.text(0.98, 0.03, text, transform=axes.transAxes, color=MUTED, ha="right", size=SMALL_POINTS)
