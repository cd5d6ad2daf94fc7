"""What Horovod needs more time for than native DDP, in parts stacked over the workers."""

from collections.abc import Iterator

import pandas as pd

from analysis.figures.drawing.budget_parts import budget_chart, parts_text, percent_text
from analysis.figures.drawing.captions import (
    alternative_text,
    bars_of_repeated_points,
    caption_text,
    on_workers,
)
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.stacks import MOST_PANELS, Stack, stack_panels
from analysis.text import printable

TITLE = "difference of the frameworks in parts"
SECTION = "budget"
FRAMEWORK_PAIR = ["options", "native_knobs", "horovod_knobs"]
DIFFERENCE_SENTENCE = (
    "Above zero Horovod needs more time, below zero native DDP; in shares of native DDP's time per "
    "{sample}. Diamonds: the sum, which is the ratio of throughputs less 1."
)


def draw(inputs: Inputs) -> list[Panel]:
    """Return each part's difference in time per image; a panel for each pair of series."""
    stacks = [
        Stack(
            "What Horovod needs more time for, in parts",
            table,
            ", ".join(printable(str(label)) for label in pair if label),
        )
        for pair, table in _pairs(inputs)[:MOST_PANELS]
    ]
    return stack_panels(budget_chart("difference", "difference"), stacks)


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: the frameworks have no overhead budget in common."""
    known = len(inputs.overhead.differences)
    return None if known else "no worker count has an overhead budget of both frameworks"


def caption(inputs: Inputs) -> str:
    """Return what the parts, diamonds and bars are."""
    return caption_text(
        inputs, DIFFERENCE_SENTENCE.format(sample=inputs.study.score.sample), bars_of_repeated_points(inputs)
    )


def alternative(inputs: Inputs) -> str:
    """Return the difference of every pair of series at its most workers, in parts."""
    opening = "Stacked parts of what Horovod needs more time for than native DDP. At the most workers"
    return alternative_text(opening, _facts(inputs))


def _facts(inputs: Inputs) -> Iterator[str]:
    for _, table in _pairs(inputs):
        row = table.iloc[-1].to_dict()
        total = f"Horovod against native DDP {percent_text(row['difference'])}"
        yield f"{total} {on_workers(row['workers'])} ({parts_text(row)})"


def _pairs(inputs: Inputs) -> list[tuple[tuple[object, ...], pd.DataFrame]]:
    return list(inputs.overhead.differences.groupby(FRAMEWORK_PAIR, sort=False))
