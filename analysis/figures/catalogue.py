"""All figures of a report in reading order. A new figure is a module of this folder and its name here."""

from collections.abc import Sequence
from typing import Protocol

from matplotlib import rc_context
from matplotlib.figure import Figure

from analysis.figures import (
    budget,
    cost,
    difference,
    loss,
    prediction,
    quality,
    ratio,
    saliency_budget,
    saliency_curves,
    saliency_speed,
    scaling,
    startup,
    time_to_iou,
    waterfall,
    wire,
)
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel, sheet, single_panels
from analysis.figures.drawing.style import STYLE


class FigureModule(Protocol):
    """One figure.

    TITLE    its name in sentences, without an article; may name the score as {score}
    SECTION  anchor of the report's section where it stands, unless it is on the first screen
    """

    __name__: str
    TITLE: str
    SECTION: str

    def draw(self, inputs: Inputs) -> list[Panel]:
        """Return its panels; only called where nothing is missing."""
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
    ratio,
    budget,
    waterfall,
    difference,
    wire,
    quality,
    loss,
    cost,
    time_to_iou,
    startup,
    prediction,
    saliency_speed,
    saliency_budget,
    saliency_curves,
)
# By the name of its module, which is that of its files.
FIGURES = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


def draw(name: str, inputs: Inputs) -> Figure:
    """Return a figure with all its panels, labelled with its alternative text."""
    return labelled_sheet(FIGURES[name].draw(inputs), FIGURES[name].alternative(inputs))


def labelled_sheet(panels: Sequence[Panel], alternative: str) -> Figure:
    """Return all panels in one figure, labelled with its alternative text."""
    with rc_context(STYLE):
        figure = sheet(panels)
    figure.set_label(alternative)
    return figure


def draw_panels(name: str, inputs: Inputs) -> list[Figure]:
    """Return each panel of a figure alone; the first is labelled with the alternative text of all."""
    return labelled_panels(FIGURES[name].draw(inputs), FIGURES[name].alternative(inputs))


def labelled_panels(panels: Sequence[Panel], alternative: str) -> list[Figure]:
    """Return each panel as a figure; the first is labelled with the alternative text, the others by title."""
    with rc_context(STYLE):
        figures = single_panels(panels)
    labels = [alternative, *(panel.label for panel in panels[1:])]
    for figure, label in zip(figures, labels, strict=True):
        figure.set_label(label)
    return figures
