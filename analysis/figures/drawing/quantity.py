"""One quantity over the workers, a panel for each set of options: the chart of five figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.figures.drawing.artists import (
    Label,
    end_labels,
    guide_line,
    interval_bars,
    last_known,
    line_with_gaps,
    say_unknown,
    series_sides,
    single_runs,
)
from analysis.figures.drawing.axes import from_zero, is_wide, logarithmic, percent_axis, spaced, worker_axis
from analysis.figures.drawing.captions import (
    alternative_text,
    bars_sentence,
    facts_of_series,
    interval_text,
    on_workers,
)
from analysis.figures.drawing.inputs import MOST_SINGLE_RUNS, DrawnSeries, Inputs
from analysis.figures.drawing.layout import figure_by_options
from analysis.text import chart_number

Guide = Callable[[Axes, Inputs, str], list[Label]]
AXES_SENTENCE = "All axes start at zero or are logarithmic."
OWN_BASELINE_SENTENCE = "Each framework is compared with its own run on 1 worker."


def no_guide(_axes: Axes, _inputs: Inputs, _options: str) -> list[Label]:
    """Draw no line to compare with."""
    return []


@dataclass(frozen=True)
class Quantity:
    """One quantity over the workers.

    column     of the points, with its bounds in `_low` and `_high`, and of `Inputs.runs`
    title      of its chart or panel, with the unit
    label      text of a point, at its line's end
    form       format of the number in the alternative text, in per cent where it is a share
    unit       after that number
    guide      draws the line to compare with, and returns that line's label
    scaling    whether it grows with the workers: a wide range of workers then makes both axes logarithmic
    in_workers whether its axis has the worker counts as ticks, up to the ideal at the most workers
    least_top  up to where its axis goes at least
    share      whether its axis is in per cent
    stretch    of the worker axis, for the labels
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
    share: bool = False
    stretch: float = 1.2


def quantity_figure(inputs: Inputs, quantity: Quantity) -> Figure:
    """Draw one quantity over the workers; a panel for each set of options."""

    def draw_panel(axes: Axes, panel: Sequence[DrawnSeries]) -> None:
        draw_quantity(axes, inputs, quantity, panel)

    return figure_by_options(quantity.title, inputs.panels, draw_panel)


def draw_quantity(axes: Axes, inputs: Inputs, quantity: Quantity, panel: Sequence[DrawnSeries]) -> None:
    """Draw single runs, intervals, medians and the guide of one quantity in the panel of these series."""
    options = panel[0].options
    worker_axis(axes, inputs.counts(options), stretch=quantity.stretch)
    _value_axis(axes, inputs, quantity, options)
    labels = quantity.guide(axes, inputs, options)
    unknown = []
    for series, side in zip(panel, series_sides(len(panel)), strict=True):
        label = _draw_series(axes, inputs, quantity, series, side)
        labels += label
        unknown += [] if label else [series.name]
    say_unknown(axes, unknown, nothing=len(unknown) == len(panel))
    end_labels(axes, labels)


def quantity_sentences(inputs: Inputs, columns: Sequence[str]) -> Iterator[str]:
    """Yield what the marks of charts of these columns are; the axes come last."""
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


def speedup_unknown(inputs: Inputs) -> str | None:
    """Return why no figure of speed-up, efficiency or deviation can be drawn."""
    points = inputs.points[inputs.points["speedup"].notna()]
    if points.empty:
        return "no run on 1 worker, so the speed-up is not known"
    return None if (points["workers"] > 1).any() else "all runs are on 1 worker"


def level_guide(axes: Axes, inputs: Inputs, options: str, value: float, text: str) -> Label:
    """Draw a guide at one value, as far as the last worker count."""
    ends = [axes.get_xlim()[0], float(inputs.counts(options)[-1])]
    return guide_line(axes, ends, [value, value], text)


def proportional_guide(axes: Axes, inputs: Inputs, options: str, of_one_worker: float) -> Label:
    """Draw the ideal: what one worker does, times the workers."""
    counts = inputs.counts(options)
    start = float(counts[0]) if is_wide(counts) else 0.0
    ends = [start, float(counts[-1])]
    return guide_line(axes, ends, [of_one_worker * end for end in ends], "ideal")


def _draw_series(
    axes: Axes, inputs: Inputs, quantity: Quantity, series: DrawnSeries, side: float
) -> list[Label]:
    """Draw one line with its runs and bars; return the label of its last point, none where none is known."""
    column = quantity.column
    points = series.rows(inputs.points)
    runs = series.rows(inputs.runs)
    single_runs(axes, series, runs[runs["repeats"] > 1], column, side)
    interval_bars(axes, series, points, column, side)
    line_with_gaps(axes, series, inputs.counts(series.options), points, column)
    last = last_known(points, column)
    if last is None:
        return []
    text = quantity.label(last)
    return [Label(float(last["workers"]), float(last[column]), text, series.style.colour)]


def _value_axis(axes: Axes, inputs: Inputs, quantity: Quantity, options: str) -> None:
    counts = inputs.counts(options)
    values = drawn_values(inputs, quantity.column, options)
    known = (values > 0).any()
    if quantity.in_workers:
        values = np.append(values, np.asarray(counts, dtype=np.float64))
    if quantity.scaling and is_wide(counts) and known:
        logarithmic(axes, "y", values)
        return
    from_zero(axes, "y", values, least_top=quantity.least_top)
    if quantity.in_workers:
        axes.set_yticks([0, *spaced(axes, counts)])
    if quantity.share:
        percent_axis(axes, "y")


def drawn_values(inputs: Inputs, column: str, options: str) -> NDArray[np.float64]:
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
    scale = 100.0 if quantity.share else 1.0
    number = chart_number(scale * last[quantity.column], quantity.form)
    interval = interval_text(last.to_dict(), quantity.column, quantity.form, scale)
    yield f"{number}{quantity.unit}{interval} {on_workers(last['workers'])}"
