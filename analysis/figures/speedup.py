"""Speed-up over the workers, with the ideal line."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.artists import Label
from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.quantity import (
    AXES_SENTENCE,
    OWN_BASELINE_SENTENCE,
    Quantity,
    proportional_guide,
    quantity_alternative,
    quantity_figure,
    quantity_sentences,
    speedup_unknown,
)
from analysis.text import chart_number, chart_percent

TITLE = "speed-up"
SECTION = "main"


def draw(inputs: Inputs) -> Figure:
    """Draw the speed-up over the workers; a panel for each set of options."""
    return quantity_figure(inputs, SPEEDUP)


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: there is no baseline, or nothing but the baseline."""
    return speedup_unknown(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the marks are, and which baseline each framework has."""
    marks = quantity_sentences(inputs, ["speedup"])
    return caption_text(inputs, *marks, OWN_BASELINE_SENTENCE, AXES_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return the speed-up of every series at its most workers."""
    opening = "Speed-up over 1 worker against workers, with the ideal line. Speed-up"
    return quantity_alternative(opening, inputs, SPEEDUP)


def _ideal(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    return [proportional_guide(axes, inputs, options, 1.0)]


def _label(point: "pd.Series[Any]") -> str:
    return f"{chart_number(float(point['speedup']), '.2f')} ({chart_percent(float(point['efficiency']))})"


SPEEDUP = Quantity(
    column="speedup",
    title="Speed-up over 1 worker (efficiency)",
    label=_label,
    guide=_ideal,
    scaling=True,
    in_workers=True,
    stretch=1.34,
)
