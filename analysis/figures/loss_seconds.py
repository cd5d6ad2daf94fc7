"""Training loss against seconds of training, one line per point."""

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.curve_chart import (
    TIME_SENTENCE,
    curve_alternative,
    curve_sentence,
    undrawn_counts_sentence,
)
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.loss import loss_missing, loss_panels

TITLE = "loss against seconds"
SECTION = "loss"


def draw(inputs: Inputs) -> list[Panel]:
    """Return the loss over training time; a panel for each framework and set of options."""
    return loss_panels(inputs, "training loss against training time", "elapsed", "seconds of training")


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no loss is known."""
    return loss_missing(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the lines and seconds are."""
    lines = curve_sentence(inputs)
    return caption_text(inputs, lines, TIME_SENTENCE, undrawn_counts_sentence(inputs))


def alternative(inputs: Inputs) -> str:
    """Return the last loss of every series at its most workers."""
    return curve_alternative("Training loss against seconds of training. Last loss", inputs, "loss")
