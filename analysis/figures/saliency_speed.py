"""How many saliency maps are made per second, and the efficiency, over the workers."""

from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.labels import Label, guide_line
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.quantity import (
    Quantity,
    quantity_alternative,
    quantity_panel,
    quantity_sentences,
)
from analysis.text import chart_number, chart_percent

TITLE = "maps per second"
SECTION = "saliency"
NO_TIMED_MAPS = "no run has made saliency maps from beginning to end"
# Of an axis that goes on just above the ideal.
EFFICIENCY_TOP = 1.1
EFFICIENCY_SENTENCE = (
    "Efficiency: maps per second over those of the same series on 1 worker, divided by the workers."
)


def draw(inputs: Inputs) -> list[Panel]:
    """Return maps per second and efficiency over the workers, for each set of options."""
    maps = inputs_of_maps(inputs)
    return [quantity_panel(maps, quantity, options) for options in maps.options for quantity in _QUANTITIES]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no maps were timed."""
    return None if inputs.saliency and len(inputs.saliency.points) else NO_TIMED_MAPS


def caption(inputs: Inputs) -> str:
    """Return what the marks are, and what the efficiency is."""
    maps = inputs_of_maps(inputs)
    marks = quantity_sentences(maps, [quantity.column for quantity in _QUANTITIES])
    return caption_text(maps, *marks, EFFICIENCY_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return maps per second and efficiency of every series at its most workers."""
    maps = inputs_of_maps(inputs)
    return " ".join(quantity_alternative(each.title, maps, each) for each in _QUANTITIES)


def inputs_of_maps(inputs: Inputs) -> Inputs:
    """Return the inputs of a figure on maps: of the timed runs, with maps per second as throughput."""
    assert inputs.saliency is not None
    points = inputs.saliency.points.rename(
        columns=lambda name: str(name).replace("maps_per_second", "throughput")
    )
    return replace(inputs, study=inputs.saliency.maps, points=points)


def _ideal(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    counts = inputs.counts(options)
    return [guide_line(axes, [counts[0], counts[-1]], [1.0, 1.0], "ideal")]


def _label(point: "pd.Series[Any]") -> str:
    return chart_percent(float(point["efficiency"]))


_QUANTITIES = (
    Quantity(
        column="throughput",
        title="Saliency maps per second",
        label=lambda point: chart_number(float(point["throughput"])),
        unit=" maps / s",
        scaling=True,
    ),
    Quantity(
        column="efficiency",
        title="Efficiency of making maps",
        label=_label,
        form=".2f",
        guide=_ideal,
        least_top=EFFICIENCY_TOP,
    ),
)
