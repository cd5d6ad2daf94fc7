"""Throughput that was measured beside what fewer workers predicted, and what is expected beyond."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.axes import from_zero, is_wide, logarithmic, worker_axis
from analysis.figures.looks import DASHED, PAPER, plain
from analysis.figures.marks import Label, end_labels, interval_bars, line_with_gaps, sideways
from analysis.figures.over_workers import FACET, SINGLE_PANEL
from analysis.figures.series import Inputs, Series
from analysis.figures.sheet import columns_for, sheet

FEWEST_COUNTS = 3
HELD_OUT_SIDEWAYS = 0.012
LARGEST_RISE = 1.5


def prediction_figure(inputs: Inputs) -> Figure:
    """Measured medians, predictions of the larger counts from the smaller, and the extrapolation."""
    every = [options for options in inputs.options if (inputs.predictions["options"] == options).any()]
    legend = [series for options in every for series in inputs.series(options)]
    size = SINGLE_PANEL if len(every) == 1 else FACET
    title = f"Predicted throughput, {inputs.study.unit}"
    figure, panels = sheet(title, legend, every, columns_for(len(every)), size)
    for axes, options in zip(panels, every, strict=True):
        _draw(axes, inputs, options)
    return figure


def held_out(inputs: Inputs, series: Series) -> pd.DataFrame:
    """The predictions of one fit: that on the smaller half of the series' counts, at least 3."""
    rows = series.of(inputs.predictions)
    fits = list(dict.fromkeys(rows["fitted_on"]))
    half = -(-len(series.of(inputs.points)) // 2)
    rows = rows[rows["held_out"].astype(bool)]
    return rows[rows["fitted_on"] == fits[max(0, half - FEWEST_COUNTS)]] if fits else rows


def beyond(inputs: Inputs, series: Series) -> pd.DataFrame:
    """The predictions at worker counts that were not measured."""
    rows = series.of(inputs.predictions)
    return rows[~rows["held_out"].astype(bool)]


def _draw(axes: Axes, inputs: Inputs, options: str) -> None:
    drawn = inputs.series(options)
    points = inputs.points[inputs.points["options"] == options]
    shown = pd.concat(
        [part for series in drawn for part in (held_out(inputs, series), beyond(inputs, series))]
    )
    counts = sorted({int(each) for each in (*points["workers"], *shown["workers"])})
    worker_axis(axes, counts, room=1.16)
    medians = [points["throughput"], points["throughput_high"], shown["predicted"]]
    values = np.concatenate([part.to_numpy(dtype=np.float64) for part in medians])
    # A wide interval may leave the panel: it must not press all that was measured to the ground.
    most = LARGEST_RISE * float(np.nanmax(values))
    values = np.append(values, np.minimum(shown["predicted_high"].to_numpy(dtype=np.float64), most))
    if is_wide(counts):
        logarithmic(axes, "y", values)
    else:
        from_zero(axes, "y", values)
    end_labels(axes, [label for series in drawn for label in _draw_series(axes, inputs, series)])


def _draw_series(axes: Axes, inputs: Inputs, series: Series) -> list[Label]:
    points = series.of(inputs.points)
    interval_bars(axes, series, points, "throughput")
    line_with_gaps(axes, series, inputs.counts(series.options), points, "throughput")
    _held_out_marks(axes, series, held_out(inputs, series))
    return _extrapolation(axes, series, points, beyond(inputs, series))


def _held_out_marks(axes: Axes, series: Series, rows: pd.DataFrame) -> None:
    place = sideways(axes, rows["workers"], HELD_OUT_SIDEWAYS)
    look = series.look
    axes.vlines(
        place, rows["predicted_low"], rows["predicted_high"], color=look.colour, linewidth=1, zorder=3
    )
    axes.plot(
        place,
        rows["predicted"],
        linestyle="none",
        marker=look.marker,
        markersize=look.points,
        markerfacecolor=PAPER,
        markeredgecolor=look.colour,
        markeredgewidth=1.2,
        label=f"{series.name}, predicted",
        zorder=5,
    )


def _extrapolation(axes: Axes, series: Series, points: pd.DataFrame, rows: pd.DataFrame) -> list[Label]:
    known = points[points["throughput"].notna()].sort_values("workers")
    if rows.empty or known.empty:
        return []
    last, colour = known.iloc[-1], series.look.colour
    start = float(last["throughput"])
    bands = [[start, *rows[f"predicted_{end}"].to_numpy(dtype=np.float64)] for end in ("low", "high")]
    place = [float(last["workers"]), *rows["workers"].to_numpy(dtype=np.float64)]
    axes.fill_between(place, bands[0], bands[1], color=colour, alpha=0.16, linewidth=0, zorder=1.5)
    predicted = [start, *rows["predicted"].to_numpy(dtype=np.float64)]
    axes.plot(place, predicted, color=colour, linestyle=DASHED, linewidth=1.3, zorder=3)
    return [Label(place[-1], predicted[-1], plain(predicted[-1]), colour)]
