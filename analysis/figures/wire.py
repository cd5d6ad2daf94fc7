"""The wire of a step over the workers, beside one message of all gradients over the probed network."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.budget.network_floor import name_of_floor
from analysis.figures.drawing.artists import interval_bars, line_with_gaps, series_sides
from analysis.figures.drawing.axes import logarithmic, worker_axis
from analysis.figures.drawing.captions import (
    alternative_text,
    bars_of_repeated_points,
    caption_text,
    facts_of_series,
    on_workers,
    value_text,
)
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.labels import Label, end_labels
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import DOTTED
from analysis.text import chart_number

TITLE = "wire of a step"
SECTION = "budget"
WIRE_SENTENCE = (
    "Dotted: one message of all gradients over the probed network. Wire that overlaps with backward "
    "is not seen, so it may lie below."
)
# Name in milliseconds -> column of the table.
MILLISECONDS = {
    f"{name}{end}": f"{name}_seconds{end}" for name in ("wire", "floor") for end in ("", "_low", "_high")
}


def draw(inputs: Inputs) -> list[Panel]:
    """Return milliseconds of wire in a step, and dotted one message; a panel for each set of options."""
    network = _in_milliseconds(inputs.overhead.network)
    panels = inputs.panels_in(network)
    return [_panel(options, series, network) for options, series in panels.items()]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no run recorded both wire and network."""
    known = len(inputs.overhead.network)
    return None if known else "no run on several workers recorded its network and its wire"


def caption(inputs: Inputs) -> str:
    """Return what the dotted line and the bars are."""
    return caption_text(inputs, WIRE_SENTENCE, bars_of_repeated_points(inputs))


def alternative(inputs: Inputs) -> str:
    """Return wire and one message of every series at its most workers."""
    facts = facts_of_series(inputs, lambda series: _facts(inputs, series))
    return alternative_text("Wire of a step, and one message of all gradients. At the most workers", facts)


def _facts(inputs: Inputs, series: DrawnSeries) -> Iterator[str]:
    for row in series.rows(inputs.overhead.network).tail(1).to_dict("records"):
        wire, floor = (1000 * row[f"{name}_seconds"] for name in ("wire", "floor"))
        yield f"{chart_number(wire)} ms{_floor_text(wire, floor)} {on_workers(row['workers'])}"


def _panel(options: str, panel: Sequence[DrawnSeries], network: pd.DataFrame) -> Panel:
    def draw(axes: Axes) -> None:
        _draw_panel(axes, panel, network[network["options"] == options])

    return Panel("Wire of a step, and one message of all gradients (dotted), ms", draw, options, panel)


def _draw_panel(axes: Axes, panel: Sequence[DrawnSeries], shown: pd.DataFrame) -> None:
    counts = sorted(set(shown["workers"].astype(int)))
    worker_axis(axes, counts)
    logarithmic(axes, "y", shown[[*MILLISECONDS]].to_numpy(dtype=np.float64))
    labels: list[Label] = []
    for series, side in zip(panel, series_sides(len(panel)), strict=True):
        labels += _draw_series(axes, series, series.rows(shown), counts, side)
    end_labels(axes, labels)


def _draw_series(
    axes: Axes, series: DrawnSeries, rows: pd.DataFrame, counts: Sequence[int], side: float
) -> Iterator[Label]:
    line_with_gaps(axes, series, counts, rows, "wire", _wire_text)
    interval_bars(axes, series, rows, "wire", side)
    _draw_floor(axes, series, rows)
    return _labels(series, rows.iloc[-1])


def _wire_text(row: Mapping[Any, Any]) -> str:
    return f"wire {value_text(row, 'wire', '.3g', ' ms')}{_floor_text(row['wire'], row['floor'])}"


def _floor_text(wire: float, floor: float) -> str:
    """Return the floor in milliseconds behind a comma; empty where it is not known."""
    return "" if np.isnan(floor) else f", {name_of_floor(wire, floor)} {chart_number(floor)} ms"


def _draw_floor(axes: Axes, series: DrawnSeries, table: pd.DataFrame) -> None:
    axes.plot(
        table["workers"],
        table["floor"],
        color=series.style.colour,
        linestyle=DOTTED,
        linewidth=1.5,
        marker="_",
        markersize=11,
    )


def _labels(series: DrawnSeries, last: "pd.Series[Any]") -> Iterator[Label]:
    workers, wire, floor = last[["workers", "wire", "floor"]].astype(float)
    colour = series.style.text_colour
    yield Label(workers, wire, chart_number(wire), colour)
    if not np.isnan(floor):
        yield Label(workers, floor, f"{name_of_floor(wire, floor)} {chart_number(floor)}", colour, bold=False)


def _in_milliseconds(network: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the columns `wire` and `floor` and their intervals, in milliseconds."""
    return network.assign(**{name: 1000 * network[column] for name, column in MILLISECONDS.items()})
