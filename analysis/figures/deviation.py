"""Deviation from the ideal speed-up over the workers: 1 - efficiency."""

from matplotlib.figure import Figure

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.quantity import (
    AXES_SENTENCE,
    Quantity,
    quantity_alternative,
    quantity_figure,
    quantity_sentences,
    speedup_unknown,
)
from analysis.text import chart_percent

TITLE = "deviation"
SECTION = "points"

DEVIATION = Quantity(
    column="deviation",
    title="Deviation from ideal speed-up: 1 - efficiency",
    label=lambda point: chart_percent(float(point["deviation"])),
    form=".1f",
    unit=" %",
    least_top=0.2,
    share=True,
)


def draw(inputs: Inputs) -> Figure:
    """Draw the deviation over the workers; a panel for each set of options."""
    return quantity_figure(inputs, DEVIATION)


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: there is no baseline, or nothing but the baseline."""
    return speedup_unknown(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the marks are."""
    return caption_text(inputs, *quantity_sentences(inputs, ["deviation"]), AXES_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return the deviation of every series at its most workers."""
    opening = "Deviation from the ideal speed-up against workers. Deviation"
    return quantity_alternative(opening, inputs, DEVIATION)
