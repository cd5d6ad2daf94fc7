"""The wire of a step over the workers, against one message of all gradients over the probed network."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.budget.network_floor import name_of_floor
from analysis.figures.axes import logarithmic, worker_axis
from analysis.figures.looks import DOTTED, plain
from analysis.figures.marks import Label, end_labels, interval_bars, line_with_gaps, sides
from analysis.figures.over_workers import FACET, SINGLE_PANEL
from analysis.figures.series import Inputs, Series
from analysis.figures.sheet import columns_for, sheet


def wire_figure(inputs: Inputs) -> Figure:
    """Milliseconds of wire in a step, and dotted one message; a panel for each set of options."""
    every = [each for each in inputs.options if (inputs.overhead.network["options"] == each).any()]
    legend = [series for options in every for series in _with_network(inputs, options)]
    size = SINGLE_PANEL if len(every) == 1 else FACET
    title = "Wire of a step, and one message of all gradients (dotted), ms"
    figure, panels = sheet(title, legend, every, columns_for(len(every)), size)
    for axes, options in zip(panels, every, strict=True):
        _draw(axes, inputs, _with_network(inputs, options))
    return figure


def in_milliseconds(network: pd.DataFrame) -> pd.DataFrame:
    names = [name for name in network.columns if name.startswith(("wire_seconds", "floor_seconds"))]
    return network.assign(**{name.replace("_seconds", ""): 1000 * network[name] for name in names})


def _with_network(inputs: Inputs, options: str) -> list[Series]:
    return [each for each in inputs.series(options) if len(each.of(inputs.overhead.network))]


def _draw(axes: Axes, inputs: Inputs, drawn: Sequence[Series]) -> None:
    tables = [in_milliseconds(series.of(inputs.overhead.network)) for series in drawn]
    counts = sorted({int(each) for table in tables for each in table["workers"]})
    worker_axis(axes, counts, room=1.35)
    names = [f"{name}{end}" for name in ("wire", "floor") for end in ("", "_low", "_high")]
    logarithmic(axes, "y", np.concatenate([table[names].to_numpy(np.float64).ravel() for table in tables]))
    labels = []
    for series, table, side in zip(drawn, tables, sides(len(drawn)), strict=True):
        line_with_gaps(axes, series, counts, table, "wire")
        interval_bars(axes, series, table, "wire", side)
        axes.plot(
            table["workers"], table["floor"], color=series.look.colour, linestyle=DOTTED, marker="_",
            markersize=9, linewidth=1.2,
        )  # fmt: skip
        last = table.iloc[-1]
        beside = f"{name_of_floor(last['wire'], last['floor'])} "
        for name, word in (("wire", ""), ("floor", beside)):
            value = float(last[name])
            text = f"{word}{plain(value)}"
            labels.append(Label(float(last["workers"]), value, text, series.look.colour, bold=not word))
    end_labels(axes, labels)
