"""Measured throughput, what fewer workers predicted of it, and what is expected beyond."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.arrays import Array
from analysis.figures.drawing.artists import (
    interval_bars,
    last_known,
    line_with_gaps,
    markers,
    sideways,
)
from analysis.figures.drawing.axes import from_zero, is_wide, logarithmic, worker_axis
from analysis.figures.drawing.captions import (
    alternative_text,
    caption_text,
    facts_of_series,
    on_workers,
    series_title,
    value_text,
)
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.labels import Label, end_labels
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import DASHED
from analysis.figures.drawing.titles import title_marks
from analysis.text import chart_number, chart_percent

TITLE = "prediction"
SECTION = "prediction"
PREDICTION_SENTENCE = "Filled: measured. Dashed, with its 95 % band: expected beyond the data."

# The fewest worker counts that a model of the step time is fitted on.
FEWEST_FITTED_COUNTS = 3
# Share of a panel's width by which predictions stand beside the measured median.
HELD_OUT_SIDEWAYS = 0.012
# A wider interval may leave the panel: it must not press all that was measured to the ground.
LARGEST_RISE = 1.5


def draw(inputs: Inputs) -> list[Panel]:
    """Return measured medians, predictions of larger counts from smaller, and the extrapolation."""
    predicted = set(inputs.predictions["options"])
    return [
        _panel(inputs, options, panel) for options, panel in inputs.panels.items() if options in predicted
    ]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: nothing was predicted."""
    known = len(inputs.predictions)
    return None if known else "a prediction needs at least 3 worker counts, 1 among them"


def caption(inputs: Inputs) -> str:
    """Return what the marks are, and the error of each series where points were held out."""
    sentences = (*_errors(inputs), *_errors_of_files(inputs), _cut_sentence(inputs))
    return caption_text(inputs, PREDICTION_SENTENCE, *sentences)


def _cut_sentence(inputs: Inputs) -> str:
    """Return that an interval leaves its panel, where one does."""
    for panel in inputs.panels_in(inputs.predictions).values():
        predictions = _panel_predictions(inputs, panel)
        if predictions["predicted_high"].max() > np.nanmax(
            _heights(_panel_points(inputs, panel), predictions)
        ):
            return "An interval that is cut at the top goes on: its ends are in predictions.csv."
    return ""


def alternative(inputs: Inputs) -> str:
    """Return the throughput expected at worker counts that were not measured."""
    facts = facts_of_series(inputs, lambda series: _facts(inputs, series))
    return alternative_text("Throughput measured and predicted. Expected beyond the data", facts)


def _errors(inputs: Inputs) -> Iterator[str]:
    for series in inputs.series:
        rows = _held_out(inputs, series)
        if len(rows):
            used = f"predicted from {rows['fitted_on'].iloc[0]} workers"
            error = chart_percent(float(rows["error"].abs().median()))
            yield f"Open, {series_title(series, inputs)}: {used}, median error {error}."


def _errors_of_files(inputs: Inputs) -> Iterator[str]:
    for series in inputs.series:
        rows = _filed(inputs, series)
        if len(rows):
            error = chart_percent(float(rows["error"].abs().median()))
            yield f"Left of a median, {series_title(series, inputs)}: written before the runs, error {error}."


def _facts(inputs: Inputs, series: DrawnSeries) -> Iterator[str]:
    for row in _beyond(inputs, series).to_dict("records"):
        expected = value_text(row, "predicted", ".3g", f" {inputs.study.unit}")
        yield f"{expected} {on_workers(row['workers'])}"


def _held_out(inputs: Inputs, series: DrawnSeries) -> pd.DataFrame:
    """Return the predictions of one fit: that on the smaller half of the series' counts, at least 3."""
    rows = series.rows(inputs.predictions)
    fits: list[str] = list(dict.fromkeys(rows["fitted_on"]))
    rows = rows[rows["held_out"].astype(bool)]
    if not fits:
        return rows
    half = -(-len(series.rows(inputs.points)) // 2)
    return rows[rows["fitted_on"] == fits[max(0, half - FEWEST_FITTED_COUNTS)]]


def _beyond(inputs: Inputs, series: DrawnSeries) -> pd.DataFrame:
    """Return the predictions at worker counts that were not measured."""
    rows = series.rows(inputs.predictions)
    return rows[~rows["held_out"].astype(bool)]


def _filed(inputs: Inputs, series: DrawnSeries) -> pd.DataFrame:
    """Return the predictions that were written before the runs of their points."""
    rows = series.rows(inputs.scores)
    return rows[rows["counted"].astype(bool)]


def _shown(inputs: Inputs, series: DrawnSeries) -> pd.DataFrame:
    parts = [_held_out(inputs, series), _beyond(inputs, series), _filed(inputs, series)]
    columns = ["workers", "predicted", "predicted_low", "predicted_high"]
    # Of a series that is not predicted, beside one that is, nothing is shown.
    shown = [part for part in parts if len(part)] or parts[:1]
    return pd.concat([part[columns] for part in shown])


def _panel(inputs: Inputs, options: str, panel: Sequence[DrawnSeries]) -> Panel:
    def draw(axes: Axes) -> None:
        _set_axes(axes, inputs, panel)
        end_labels(axes, [label for series in panel for label in _draw_series(axes, inputs, series)])

    return Panel(f"Predicted throughput, {inputs.study.unit}", draw, options, panel)


def _set_axes(axes: Axes, inputs: Inputs, panel: Sequence[DrawnSeries]) -> None:
    points = _panel_points(inputs, panel)
    predictions = _panel_predictions(inputs, panel)
    counts = sorted({int(workers) for workers in [*points["workers"], *predictions["workers"]]})
    worker_axis(axes, counts)
    set_axis = logarithmic if is_wide(counts) else from_zero
    set_axis(axes, "y", _heights(points, predictions))


def _panel_points(inputs: Inputs, panel: Sequence[DrawnSeries]) -> pd.DataFrame:
    return inputs.points[inputs.points["options"] == panel[0].options]


def _panel_predictions(inputs: Inputs, panel: Sequence[DrawnSeries]) -> pd.DataFrame:
    return pd.concat([_shown(inputs, series) for series in panel])


def _heights(points: pd.DataFrame, predictions: pd.DataFrame) -> Array:
    """Return all throughputs that a panel has room for."""
    values = pd.concat([points["throughput"], points["throughput_high"], predictions["predicted"]])
    ends = predictions["predicted_high"].clip(upper=LARGEST_RISE * values.max())
    return np.asarray(pd.concat([values, ends]), dtype=np.float64)


def _draw_series(axes: Axes, inputs: Inputs, series: DrawnSeries) -> list[Label]:
    points = series.rows(inputs.points)
    interval_bars(axes, series, points, "throughput")
    unit = f" {inputs.study.unit}"

    def measured(row: Mapping[Any, Any]) -> str:
        return value_text(row, "throughput", ".3g", unit)

    line_with_gaps(axes, series, inputs.counts(series.options), points, "throughput", measured)
    _draw_open(axes, series, _held_out(inputs, series), unit, HELD_OUT_SIDEWAYS)
    _draw_open(axes, series, _filed(inputs, series), unit, -HELD_OUT_SIDEWAYS)
    return _draw_beyond(axes, series, points, _beyond(inputs, series))


def _draw_open(axes: Axes, series: DrawnSeries, rows: pd.DataFrame, unit: str, aside: float) -> None:
    """Draw predictions of counts that were measured, a share of the panel beside the measured medians."""
    if rows.empty:
        return
    x = sideways(axes, rows["workers"], aside)
    low = rows["predicted_low"]
    axes.vlines(x, low, rows["predicted_high"], color=series.style.colour, linewidth=1.3, zorder=3)
    marks = markers(axes, series, x, rows["predicted"], filled=False, label=f"{series.name}, predicted")
    title_marks(marks, [_predicted_text(row, unit) for row in rows.to_dict("records")])


def _predicted_text(row: Mapping[Any, Any], unit: str) -> str:
    predicted = value_text(row, "predicted", ".3g", unit)
    return f"predicted {on_workers(row['workers'])}: {predicted}, error {chart_percent(row['error'])}"


def _draw_beyond(axes: Axes, series: DrawnSeries, points: pd.DataFrame, rows: pd.DataFrame) -> list[Label]:
    """Draw the extrapolation and its band from the last measured point; return the label at its end."""
    last = last_known(points, "throughput")
    if last is None or rows.empty:
        return []
    x, predicted, low, high = _from_last_point(last, rows)
    colour = series.style.colour
    axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0, zorder=1.5)
    axes.plot(x, predicted, color=colour, linestyle=DASHED, linewidth=1.6, zorder=3)
    return [Label(x[-1], predicted[-1], chart_number(predicted[-1]), series.style.text_colour)]


def _from_last_point(last: "pd.Series[Any]", rows: pd.DataFrame) -> Array:
    """Return workers, predicted throughput and its bounds, (4, points), from the last measured point on."""
    columns = ["workers", "predicted", "predicted_low", "predicted_high"]
    measured = last[["workers", *["throughput"] * 3]].to_numpy(dtype=np.float64)
    return np.vstack([measured, rows[columns].to_numpy(dtype=np.float64)]).T
