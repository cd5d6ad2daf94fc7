"""The overhead budget: 1 - efficiency in parts, stacked a panel for each series."""

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
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.stacks import Stack, stack_panels

TITLE = "overhead budget"
SECTION = "budget"
BUDGET_SENTENCE = (
    "Each part: the share of the workers' time that is lost in it against 1 worker; below zero a "
    "part takes less time per {sample}. Diamonds: 1 - efficiency, the sum of the parts."
)


def draw(inputs: Inputs) -> list[Panel]:
    """Return the share of the workers' time that each part takes, a panel for each series."""
    stacks = [
        Stack(
            f"{series.name}: 1 - efficiency, in parts",
            series.rows(inputs.overhead.budget),
            series.options,
            series.style.text_colour,
        )
        for series in budget_series(inputs)
    ]
    return stack_panels(budget_chart("deviation", "1 - efficiency"), stacks)


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no point has a budget."""
    return budget_missing(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the parts, diamonds and bars are."""
    return caption_text(
        inputs, BUDGET_SENTENCE.format(sample=inputs.study.score.sample), bars_of_repeated_points(inputs)
    )


def alternative(inputs: Inputs) -> str:
    """Return 1 - efficiency of every series at its most workers, in parts."""
    facts = facts_of_series(inputs, lambda series: facts_of_budget(inputs, series))
    return alternative_text(
        "Stacked parts of 1 - efficiency against workers. Lost at the most workers", facts
    )
