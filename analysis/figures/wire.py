"""The wire of a step over the workers, beside one message of all gradients over the probed network."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.budget.network_floor import name_of_floor
from analysis.figures.drawing.artists import Label, end_labels, interval_bars, line_with_gaps, sides
from analysis.figures.drawing.axes import logarithmic, worker_axis
from analysis.figures.drawing.captions import (
    alternative_text,
    bars_of_repeated_points,
    caption_text,
    facts_of_series,
    on_workers,
)
from analysis.figures.drawing.inputs import Inputs, Series
from analysis.figures.drawing.layout import figure_by_options
from analysis.figures.drawing.style import DOTTED
from analysis.text import chart_number

TITLE = "wire of a step"
SECTION = "budget"
MARKS_SENTENCE = (
    "Dotted: one message of all gradients over the probed network. Wire that overlaps with backward "
    "is not seen, so it may lie below."
)
MILLISECONDS = [f"{name}{end}" for name in ("wire", "floor") for end in ("", "_low", "_high")]


def draw(inputs: Inputs) -> Figure:
    """Draw milliseconds of wire in a step, and dotted one message; a panel for each set of options."""
    title = "Wire of a step, and one message of all gradients (dotted), ms"
    return figure_by_options(
        title, inputs.panels_in(inputs.overhead.network), lambda axes, panel: _draw_panel(axes, inputs, panel)
    )


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no run recorded both wire and network."""
    known = len(inputs.overhead.network)
    return None if known else "no run on several workers recorded its network and its wire"


def caption(inputs: Inputs) -> str:
    """Return what the dotted line and the bars are."""
    return caption_text(inputs, MARKS_SENTENCE, bars_of_repeated_points(inputs))


def alternative(inputs: Inputs) -> str:
    """Return wire and one message of every series at its most workers."""
    facts = facts_of_series(inputs, lambda series: _facts(inputs, series))
    return alternative_text("Wire of a step, and one message of all gradients. At the most workers", facts)


def _facts(inputs: Inputs, series: Series) -> Iterator[str]:
    for row in series.rows(inputs.overhead.network).tail(1).to_dict("records"):
        wire, floor = (chart_number(1000 * row[f"{name}_seconds"]) for name in ("wire", "floor"))
        floor_name = name_of_floor(row["wire_seconds"], row["floor_seconds"])
        yield f"{wire} ms, {floor_name} {floor} ms {on_workers(row['workers'])}"


def _draw_panel(axes: Axes, inputs: Inputs, panel: Sequence[Series]) -> None:
    tables = [_in_milliseconds(series.rows(inputs.overhead.network)) for series in panel]
    shown = pd.concat(tables)
    counts = sorted({int(workers) for workers in shown["workers"]})
    worker_axis(axes, counts, stretch=1.35)
    logarithmic(axes, "y", shown[MILLISECONDS].to_numpy(dtype=np.float64))
    labels: list[Label] = []
    for series, table, side in zip(panel, tables, sides(len(panel)), strict=True):
        line_with_gaps(axes, series, counts, table, "wire")
        interval_bars(axes, series, table, "wire", side)
        _draw_floor(axes, series, table)
        labels += _labels(series, table.iloc[-1])
    end_labels(axes, labels)


def _draw_floor(axes: Axes, series: Series, table: pd.DataFrame) -> None:
    axes.plot(
        table["workers"],
        table["floor"],
        color=series.style.colour,
        linestyle=DOTTED,
        linewidth=1.2,
        marker="_",
        markersize=9,
    )


def _labels(series: Series, last: "pd.Series[Any]") -> Iterator[Label]:
    workers, wire, floor = last[["workers", "wire", "floor"]].astype(float)
    colour = series.style.colour
    yield Label(workers, wire, chart_number(wire), colour)
    yield Label(workers, floor, f"{name_of_floor(wire, floor)} {chart_number(floor)}", colour, bold=False)


def _in_milliseconds(network: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the columns `wire` and `floor` and their intervals, in milliseconds."""
    seconds = {
        column: column.replace("_", "_seconds_", 1) if "_" in column else f"{column}_seconds"
        for column in MILLISECONDS
    }
    return network.assign(**{column: 1000 * network[name] for column, name in seconds.items()})
