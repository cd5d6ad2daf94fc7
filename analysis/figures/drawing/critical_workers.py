"""N_crit at the foot of a panel over the workers: where the gradient noise scale warns of a fall."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.inputs import DrawnSeries
from analysis.figures.drawing.titles import title_marks
from analysis.findings.noise import critical_workers
from analysis.score import Score
from analysis.text import Row, number, with_interval

# Height above the lower end of the axis, as a share of the panel, and between two series.
FOOT_SHARE = 0.03
STEP_SHARE = 0.045
_LABEL_PX = 6
_N_CRIT = "noise_scale_workers"


def critical_sentence(score: Score) -> str:
    """Return what stands at the foot."""
    return (
        "At the foot N_crit with its interval: the workers at which the gradient noise scale warns that the "
        f"{score.title} may fall; it is no law."
    )


def resolved_critical_workers(noise: pd.DataFrame, series: DrawnSeries) -> Row | None:
    """Return the row of a series' N_crit, None where it is not resolved or not recorded."""
    rows = series.rows(critical_workers(noise))
    known = rows[rows[_N_CRIT].notna()].to_dict("records")
    return known[0] if known else None


def draw_critical_workers(axes: Axes, series: Sequence[DrawnSeries], noise: pd.DataFrame) -> None:
    """Draw N_crit of each series with its interval, one above the other, cut at the ends of the axis."""
    rows = [(each, resolved_critical_workers(noise, each)) for each in series]
    for place, (each, row) in enumerate((each, row) for each, row in rows if row is not None):
        _draw_one(axes, each, row, FOOT_SHARE + place * STEP_SHARE)


def _draw_one(axes: Axes, series: DrawnSeries, row: Row, height: float) -> None:
    """Draw the interval as a line, N_crit as a mark on it, and the number beside the line."""
    low, value, high = (_within(axes, row[f"{_N_CRIT}{end}"]) for end in ("_low", "", "_high"))
    style: dict[str, Any] = {
        "color": series.style.text_colour,
        "transform": axes.get_xaxis_transform(),
        "zorder": 2,
    }
    axes.plot([low, high], [height, height], linewidth=1.4, **style)
    marks = axes.plot([value], [height], marker="|", markersize=9, **style)
    exact = with_interval(row, _N_CRIT, "~2")
    title_marks(marks[0], [f"{series.name}: N_crit = {exact} workers, by the gradient noise scale"])
    if high <= sum(axes.get_xlim()) / 2:
        _write(axes, series, row, (high, height), ("left", _LABEL_PX))
    else:
        _write(axes, series, row, (low, height), ("right", -_LABEL_PX))


def _within(axes: Axes, workers: float) -> float:
    """Return a number of workers, or the end of the axis that it lies beyond."""
    first, last = axes.get_xlim()
    return min(max(workers, first), last)


def _write(
    axes: Axes, series: DrawnSeries, row: Row, at: tuple[float, float], side: tuple[str, float]
) -> None:
    """Write N_crit beside the line: workers and height of its end, alignment and pixels away from it."""
    alignment, away_px = side
    axes.annotate(
        _label(axes, row[_N_CRIT]),
        at,
        xycoords=axes.get_xaxis_transform(),
        xytext=(away_px, 0),
        textcoords="offset points",
        ha=alignment,
        va="center",
        color=series.style.text_colour,
    )


def _label(axes: Axes, workers: float) -> str:
    """Return "N_crit 4.6", with an arrow where that lies beyond the axis."""
    first, last = axes.get_xlim()
    text = f"N_crit {number(workers, '~2')}"
    if workers < first:
        return f"← {text}"
    return f"{text} →" if workers > last else text
