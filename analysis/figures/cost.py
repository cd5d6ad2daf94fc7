"""Time against worker-hours: what a faster run costs, and the points that no other beats in both."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.arrays import Array
from analysis.figures.drawing.artists import markers
from analysis.figures.drawing.axes import from_zero, logarithmic
from analysis.figures.drawing.captions import (
    alternative_text,
    bars_sentence,
    caption_text,
    facts_of_series,
    on_workers,
)
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.labels import Label, write_beside
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import MUTED
from analysis.figures.drawing.titles import title_marks
from analysis.study import SECONDS_PER_HOUR
from analysis.text import chart_number

TITLE = "cost"
SECTION = "cost"
COST_SENTENCE = (
    "Numbers: workers. Filled marks, joined by the grey band: no other point is both faster and "
    "cheaper. Perfect scaling would be a vertical line. Time is training time only."
)
# From this ratio of the longest to the shortest time.
WIDE_COST_RATIO = 4
# Of a number of two digits.
NUMBER_PX = 14
# From a mark to the middle of its number; from there on, another mark does not touch the number.
NUMBER_CENTRE_PX = (15, 11)
MARK_PX = 11
VALUE_AND_ENDS = ("", "_low", "_high")
TIME_COLUMNS = [f"seconds{end}" for end in VALUE_AND_ENDS]
COST_COLUMNS = [f"hours{end}" for end in VALUE_AND_ENDS]
TARGET_COLUMNS = [f"{name}_to_target{end}" for name in ("seconds", "worker_hours") for end in VALUE_AND_ENDS]
RUN_COLUMNS = [f"{name}{end}" for name in ("training_seconds", "worker_hours") for end in VALUE_AND_ENDS]


@dataclass(frozen=True)
class Unit:
    """A unit of time that keeps the numbers of an axis small."""

    name: str
    seconds: float


def draw(inputs: Inputs) -> list[Panel]:
    """Return time against worker-hours; the marks of the Pareto set are filled and joined."""
    return [_panel(inputs, options) for options in inputs.options]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no training time is known."""
    return None if inputs.cost["training_seconds"].notna().any() else "no run has a known training time"


def caption(inputs: Inputs) -> str:
    """Return what the marks, the band and the bars are."""
    bounded = inputs.cost[inputs.cost["training_seconds_low"].notna()]
    return caption_text(inputs, COST_SENTENCE, bars_sentence(inputs, bounded))


def alternative(inputs: Inputs) -> str:
    """Return time and worker-hours of the points that no other beats in both."""
    facts = facts_of_series(inputs, lambda series: _facts(inputs, series))
    return alternative_text("Training time against worker-hours. Points that no other beats in both", facts)


def _facts(inputs: Inputs, series: DrawnSeries) -> Iterator[str]:
    rows = series.rows(_rows(inputs, series.options))
    for row in rows[rows["pareto"]].to_dict("records"):
        cost = f"{chart_number(row['seconds'])} s, {chart_number(row['hours'])} worker-hours"
        yield f"{cost} {on_workers(row['workers'])}"


def _rows(inputs: Inputs, options: str) -> pd.DataFrame:
    """Return the points of one set of options with the time and cost that its Pareto set is of.

    Columns added: `seconds`, `hours` (worker-hours), each with `_low` and `_high`.
    """
    rows = inputs.cost[inputs.cost["options"] == options]
    if rows["pareto_of"].str.endswith("of one epoch").all():
        hours = rows["worker_hours_per_epoch"]
        unknown = dict.fromkeys((*TIME_COLUMNS[1:], *COST_COLUMNS[1:]), np.nan)
        return rows.assign(seconds=hours / rows["workers"] * SECONDS_PER_HOUR, hours=hours, **unknown)
    sources = TARGET_COLUMNS if rows["seconds_to_target"].notna().all() else RUN_COLUMNS
    return rows.assign(
        **{new: rows[old] for new, old in zip(TIME_COLUMNS + COST_COLUMNS, sources, strict=True)}
    )


def _kind(inputs: Inputs, options: str) -> str:
    """Return what the Pareto set of these options is of, such as "seconds and worker-hours of 4 epochs"."""
    return str(inputs.cost.loc[inputs.cost["options"] == options, "pareto_of"].iloc[0])


def _panel(inputs: Inputs, options: str) -> Panel:
    series = inputs.panels[options]

    def draw(axes: Axes) -> None:
        _draw_panel(axes, _rows(inputs, options), series)

    return Panel(f"Time against cost: {_kind(inputs, options)}", draw, options, series)


def _draw_panel(axes: Axes, rows: pd.DataFrame, panel: Sequence[DrawnSeries]) -> None:
    scaled = _in_units(axes, rows)
    _set_axes(axes, scaled)
    front = scaled[scaled["pareto"]].sort_values("hours")
    x = front["hours"]
    axes.plot(x, front["seconds"], color=MUTED, linewidth=9, alpha=0.2, zorder=1, solid_capstyle="round")
    for series in panel:
        _draw_series(axes, series, series.rows(scaled).sort_values("workers"))
    _number_points(axes, scaled, panel)


def _in_units(axes: Axes, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in the units that read best, and name these on the axes."""
    time = _unit(rows["seconds"])
    cost = _unit(rows["hours"] * SECONDS_PER_HOUR)
    axes.set_ylabel(time.name)
    axes.set_xlabel(f"worker-{cost.name}")
    scaled = rows.copy()
    scaled[TIME_COLUMNS] /= time.seconds
    scaled[COST_COLUMNS] *= SECONDS_PER_HOUR / cost.seconds
    return scaled


def _set_axes(axes: Axes, rows: pd.DataFrame) -> None:
    x = rows[COST_COLUMNS].to_numpy(dtype=np.float64).ravel()
    y = rows[TIME_COLUMNS].to_numpy(dtype=np.float64).ravel()
    if rows["seconds"].max() >= WIDE_COST_RATIO * rows["seconds"].min():
        logarithmic(axes, "x", x, above=0.12)
        logarithmic(axes, "y", y, below=0.12, above=0.12)
    else:
        from_zero(axes, "x", x * 1.08)
        from_zero(axes, "y", y)


def _draw_series(axes: Axes, series: DrawnSeries, rows: pd.DataFrame) -> None:
    x = rows["hours"]
    y = rows["seconds"]
    colour = series.style.colour
    axes.plot(x, y, color=colour, linestyle=series.line_style, linewidth=1.2, alpha=0.5)
    axes.vlines(x, rows["seconds_low"], rows["seconds_high"], color=colour, linewidth=1.6)
    axes.hlines(y, rows["hours_low"], rows["hours_high"], color=colour, linewidth=1.6)
    for in_front, part in rows.groupby("pareto"):
        filled = bool(in_front)
        marks = markers(axes, series, part["hours"], part["seconds"], filled=filled, label=series.name)
        title_marks(marks, _titles(axes, series, part))


def _titles(axes: Axes, series: DrawnSeries, rows: pd.DataFrame) -> Iterator[str]:
    for row in rows[rows["seconds"].notna()].to_dict("records"):
        time = f"{chart_number(row['seconds'])} {axes.get_ylabel()}"
        cost = f"{chart_number(row['hours'])} {axes.get_xlabel()}"
        yield f"{series.name} {on_workers(row['workers'])}: {time}, {cost}"


def _number_points(axes: Axes, rows: pd.DataFrame, panel: Sequence[DrawnSeries]) -> None:
    """Write the workers beside each mark: native DDP's below to the left, Horovod's above to the right.

    A number that would lie on another mark or number stands on the other side, or else is left out.
    """
    known = rows[["hours", "seconds"]].dropna()
    marks = axes.transData.transform(known.to_numpy(dtype=np.float64))
    written: list[Array] = []
    for series in panel:
        side = -1 if series.framework == "pytorch_native" else 1
        for label in _numbers(series, rows):
            mark = axes.transData.transform((label.x, label.y))
            for away in (side, -side):
                place = mark + away * np.array(NUMBER_CENTRE_PX)
                if _is_free(place, marks, MARK_PX) and _is_free(place, written, NUMBER_PX):
                    written.append(place)
                    write_beside(axes, label, (8 * away, 5 * away))
                    break


def _is_free(place: Array, others: Iterable[Array], distance_px: float) -> bool:
    """Return whether a place is further than this from others, to the side or in height."""
    return all(np.abs(place - other).max() > distance_px for other in others)


def _numbers(series: DrawnSeries, rows: pd.DataFrame) -> Iterator[Label]:
    for row in series.rows(rows).to_dict("records"):
        yield Label(row["hours"], row["seconds"], str(row["workers"]), series.style.text_colour)


def _unit(seconds: "pd.Series[float]") -> Unit:
    typical = float(seconds.median())
    for unit in (Unit("hours", 3600.0), Unit("minutes", 60.0)):
        if typical >= unit.seconds:
            return unit
    return Unit("seconds", 1.0)
