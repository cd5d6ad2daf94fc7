"""Training loss against seconds of training, one line per point."""

from matplotlib.figure import Figure

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.curve_chart import (
    TIME_SENTENCE,
    curve_alternative,
    curve_sentence,
    undrawn_counts_sentence,
)
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.loss import loss_figure, loss_missing

TITLE = "loss against seconds"
SECTION = "loss"


def draw(inputs: Inputs) -> Figure:
    """Draw the loss over training time; a panel for each framework and set of options."""
    return loss_figure(inputs, "Training loss against training time", "elapsed", "seconds of training")


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
