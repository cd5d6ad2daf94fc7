"""One quantity over the workers, a panel for each set of options: the chart of two figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from analysis.figures.drawing.artists import (
    interval_bars,
    last_known,
    line_with_gaps,
    series_sides,
    single_runs,
)
from analysis.figures.drawing.axes import from_zero, is_wide, logarithmic, spaced, worker_axis
from analysis.figures.drawing.captions import (
    alternative_text,
    bars_sentence,
    facts_of_series,
    on_workers,
    value_text,
)
from analysis.figures.drawing.inputs import MOST_SINGLE_RUNS, DrawnSeries, Inputs
from analysis.figures.drawing.labels import Label, end_labels, say_unknown
from analysis.figures.drawing.layout import Panel

Guide = Callable[[Axes, Inputs, str], list[Label]]
# Labels at the ends of lines have so much room in every panel, so that axes side by side are of one width.
LABELS_PX = 110


def no_guide(_axes: Axes, _inputs: Inputs, _options: str) -> list[Label]:
    """Draw no line to compare with."""
    return []


@dataclass(frozen=True)
class Quantity:
    """One quantity over the workers.

    column     of the points, with its bounds in `_low` and `_high`, and of `Inputs.runs`
    title      of its panel, with the unit
    label      text of a point, at its line's end
    form       format of the number in other texts
    unit       after that number
    guide      draws the line to compare with, and returns that line's label
    scaling    whether it grows with the workers: a wide range of workers then makes both axes logarithmic
    in_workers whether its axis has the worker counts as ticks, up to the ideal at the most workers
    least_top  up to where its axis goes at least
    """

    column: str
    title: str
    label: Callable[["pd.Series[Any]"], str]
    form: str = ".3g"
    unit: str = ""
    guide: Guide = no_guide
    scaling: bool = False
    in_workers: bool = False
    least_top: float = 0.0

    def text(self, row: Mapping[Any, Any]) -> str:
        """Return the value of a point with its unit and interval."""
        return value_text(row, self.column, self.form, self.unit)


def quantity_panel(inputs: Inputs, quantity: Quantity, options: str) -> Panel:
    """Return the panel of one quantity over the workers, under one set of options."""

    def draw(axes: Axes) -> None:
        worker_axis(axes, inputs.counts(options))
        _value_axis(axes, inputs, quantity, options)
        guide = quantity.guide(axes, inputs, options)
        labels = _draw_lines(axes, inputs, quantity, options)
        end_labels(axes, guide + labels, least_free=LABELS_PX)

    return Panel(quantity.title, draw, options, inputs.panels[options])


def _draw_lines(axes: Axes, inputs: Inputs, quantity: Quantity, options: str) -> list[Label]:
    """Draw all series of a panel, and which of them are not known; return the labels of the others."""
    panel = inputs.panels[options]
    sides = zip(panel, series_sides(len(panel)), strict=True)
    labels = {series.name: _draw_series(axes, inputs, quantity, series, side) for series, side in sides}
    unknown = [name for name, label in labels.items() if label is None]
    say_unknown(axes, unknown, nothing=len(unknown) == len(panel))
    return [label for label in labels.values() if label]


def quantity_sentences(inputs: Inputs, columns: Sequence[str]) -> Iterator[str]:
    """Yield what the marks of charts of these columns are."""
    most = int(inputs.points["repeats"].max())
    if most > MOST_SINGLE_RUNS:
        yield f"Small marks: single runs, the first {MOST_SINGLE_RUNS} of a point; large: the median of all."
    elif most > 1:
        yield "Small marks: single runs; large: their median."
    known = inputs.points[[f"{column}_low" for column in columns]].notna().any(axis=1)
    yield bars_sentence(inputs, inputs.points[known])
    if any(_has_gap(inputs, series, column) for series in inputs.series for column in columns):
        yield "Dotted: a point in between is missing."


def quantity_alternative(opening: str, inputs: Inputs, quantity: Quantity) -> str:
    """Return the opening with each series' value and interval at its most workers."""
    return alternative_text(
        f"{opening} at the most workers",
        facts_of_series(inputs, lambda series: _last_value(inputs, quantity, series)),
    )


def _draw_series(
    axes: Axes, inputs: Inputs, quantity: Quantity, series: DrawnSeries, side: float
) -> Label | None:
    """Draw one line with its runs and bars; return the label of its last point, None where none is known."""
    column = quantity.column
    points = series.rows(inputs.points)
    runs = series.rows(inputs.runs)
    single_runs(axes, series, runs[runs["repeats"] > 1], column, side, inputs.study.unit)
    interval_bars(axes, series, points, column, side)
    line_with_gaps(axes, series, inputs.counts(series.options), points, column, quantity.text)
    return _end_label(quantity, series, points)


def _end_label(quantity: Quantity, series: DrawnSeries, points: pd.DataFrame) -> Label | None:
    last = last_known(points, quantity.column)
    if last is None:
        return None
    text = quantity.label(last)
    return Label(float(last["workers"]), float(last[quantity.column]), text, series.style.text_colour)


def _value_axis(axes: Axes, inputs: Inputs, quantity: Quantity, options: str) -> None:
    counts = inputs.counts(options)
    values = _drawn_values(inputs, quantity.column, options)
    known = (values > 0).any()
    if quantity.in_workers:
        values = np.append(values, np.asarray(counts, dtype=np.float64))
    if quantity.scaling and is_wide(counts) and known:
        logarithmic(axes, "y", values)
        return
    from_zero(axes, "y", values, least_top=quantity.least_top)
    if quantity.in_workers:
        axes.set_yticks([0, *spaced(axes, counts)])


def _drawn_values(inputs: Inputs, column: str, options: str) -> NDArray[np.float64]:
    """Return every value of a column that a panel shows: medians, ends of intervals, single runs."""
    points = inputs.points[inputs.points["options"] == options]
    runs = inputs.runs[inputs.runs["options"] == options]
    of_points = points[[column, f"{column}_low", f"{column}_high"]].to_numpy(dtype=np.float64)
    return np.append(of_points.ravel(), runs[column].to_numpy(dtype=np.float64))


def _has_gap(inputs: Inputs, series: DrawnSeries, column: str) -> bool:
    """Return whether a line passes a worker count that another line of its panel has and it has not."""
    points = series.rows(inputs.points)
    known = set(points.loc[points[column].notna(), "workers"])
    counts = inputs.counts(series.options)
    return bool(known) and any(min(known) < count < max(known) and count not in known for count in counts)


def _last_value(inputs: Inputs, quantity: Quantity, series: DrawnSeries) -> Iterator[str]:
    last = last_known(series.rows(inputs.points), quantity.column)
    if last is None:
        return
    yield f"{quantity.text(last.to_dict())} {on_workers(last['workers'])}"
