"""All figures of a report in reading order. A new figure is a module of this folder and its name here."""

from typing import Protocol

from matplotlib import rc_context
from matplotlib.figure import Figure

from analysis.figures import (
    budget,
    cost,
    deviation,
    difference,
    efficiency,
    iou,
    loss_epochs,
    loss_seconds,
    prediction,
    scaling,
    speedup,
    startup,
    steps,
    throughput,
    time_to_iou,
    waterfall,
    wire,
)
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.style import STYLE


class FigureModule(Protocol):
    """One figure.

    TITLE    its name in sentences, without an article
    SECTION  anchor of the report's section where it stands; "" where it is a file only
    """

    __name__: str
    TITLE: str
    SECTION: str

    def draw(self, inputs: Inputs) -> Figure:
        """Draw it; only called where nothing is missing."""
        ...

    def missing(self, inputs: Inputs) -> str | None:
        """Return why it cannot be drawn, without a full stop; None where it can."""
        ...

    def caption(self, inputs: Inputs) -> str:
        """Return how many runs it shows, what its marks are, and what it leaves out."""
        ...

    def alternative(self, inputs: Inputs) -> str:
        """Return its key numbers, for those who cannot see it."""
        ...


_MODULES: tuple[FigureModule, ...] = (
    scaling,
    speedup,
    efficiency,
    throughput,
    deviation,
    budget,
    waterfall,
    difference,
    wire,
    steps,
    iou,
    loss_epochs,
    loss_seconds,
    cost,
    time_to_iou,
    startup,
    prediction,
)
# By the name of its module, which is that of its files.
FIGURES = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


def draw(name: str, inputs: Inputs) -> Figure:
    """Draw a figure in the style of the report, labelled with its alternative text."""
    with rc_context(STYLE):
        figure = FIGURES[name].draw(inputs)
    figure.set_label(FIGURES[name].alternative(inputs))
    return figure
