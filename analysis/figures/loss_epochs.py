"""Training loss against epochs, one line per point."""

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.curve_chart import curve_alternative, curve_sentence, undrawn_counts_sentence
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.loss import loss_missing, loss_panels

TITLE = "loss against epochs"
SECTION = "loss"


def draw(inputs: Inputs) -> list[Panel]:
    """Return the loss of every epoch; a panel for each framework and set of options."""
    return loss_panels(inputs, "training loss against epochs", "trained", "epochs")


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no loss is known."""
    return loss_missing(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the lines are."""
    return caption_text(inputs, curve_sentence(inputs), undrawn_counts_sentence(inputs))


def alternative(inputs: Inputs) -> str:
    """Return the last loss of every series at its most workers."""
    return curve_alternative("Training loss against epochs. Last loss", inputs, "loss")
