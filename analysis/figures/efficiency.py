"""Efficiency over the workers, with the ideal and the study's floor."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.artists import Label
from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.quantity import (
    AXES_SENTENCE,
    Quantity,
    level_guide,
    quantity_alternative,
    quantity_figure,
    quantity_sentences,
    speedup_unknown,
)
from analysis.text import chart_percent

TITLE = "efficiency"
SECTION = "main"


def draw(inputs: Inputs) -> Figure:
    """Draw the efficiency over the workers; a panel for each set of options."""
    return quantity_figure(inputs, EFFICIENCY)


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: there is no baseline, or nothing but the baseline."""
    return speedup_unknown(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the marks are."""
    return caption_text(inputs, *quantity_sentences(inputs, ["efficiency"]), AXES_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return the efficiency of every series at its most workers."""
    return quantity_alternative("Efficiency against workers. Efficiency", inputs, EFFICIENCY)


def _ideal_and_floor(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    floor = inputs.study.criteria.efficiency_floor
    return [
        level_guide(axes, inputs, options, 1.0, "ideal"),
        level_guide(axes, inputs, options, floor, f"floor {chart_percent(floor)}"),
    ]


EFFICIENCY = Quantity(
    column="efficiency",
    title="Efficiency: speed-up / workers",
    label=lambda point: chart_percent(float(point["efficiency"])),
    form=".1f",
    unit=" %",
    guide=_ideal_and_floor,
    least_top=1.1,
    share=True,
    stretch=1.28,
)
