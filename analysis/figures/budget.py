"""The overhead budget: 1 - efficiency in parts, stacked over the workers; a panel for each series."""

from matplotlib.figure import Figure

from analysis.figures.drawing.budget_parts import (
    budget_chart,
    budget_missing,
    budget_series,
    facts_of_budget,
)
from analysis.figures.drawing.captions import (
    alternative_text,
    bars_of_repeated_points,
    caption_text,
    facts_of_series,
)
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.stacks import Stack, panel_title, stack_figure

TITLE = "overhead budget"
SECTION = "budget"
BUDGET_SENTENCE = (
    "Each part: the share of the workers' time that is lost in it against 1 worker; below zero a "
    "part takes less time per image. Diamonds: 1 - efficiency, the sum of the parts."
)


def draw(inputs: Inputs) -> Figure:
    """Draw the share of the workers' time that each part takes, over the workers."""
    stacks = [
        Stack(panel_title(series, inputs), series.rows(inputs.overhead.budget), series.style.colour)
        for series in budget_series(inputs)
    ]
    return stack_figure(
        budget_chart("Where the efficiency went: 1 - efficiency, in parts", "deviation"), stacks
    )


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no point has a budget."""
    return budget_missing(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the parts, diamonds and bars are."""
    return caption_text(inputs, BUDGET_SENTENCE, bars_of_repeated_points(inputs))


def alternative(inputs: Inputs) -> str:
    """Return 1 - efficiency of every series at its most workers, in parts."""
    facts = facts_of_series(inputs, lambda series: facts_of_budget(inputs, series))
    return alternative_text(
        "Stacked parts of 1 - efficiency against workers. Lost at the most workers", facts
    )
