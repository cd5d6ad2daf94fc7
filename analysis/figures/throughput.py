"""Throughput over the workers, with the ideal line of the faster framework on 1 worker."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.artists import Label
from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.quantity import (
    AXES_SENTENCE,
    Quantity,
    proportional_guide,
    quantity_alternative,
    quantity_figure,
    quantity_sentences,
)
from analysis.text import chart_number

TITLE = "throughput"
SECTION = "points"


def draw(inputs: Inputs) -> Figure:
    """Draw the throughput over the workers; a panel for each set of options."""
    return quantity_figure(inputs, throughput(inputs))


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no throughput is known."""
    return None if inputs.points["throughput"].notna().any() else "no throughput is known"


def caption(inputs: Inputs) -> str:
    """Return what the marks are, and what the ideal line is of."""
    ideal = "Ideal: the faster framework on 1 worker, times the workers."
    drawn = inputs.points["speedup_common"].notna().any()
    marks = quantity_sentences(inputs, ["throughput"])
    return caption_text(inputs, *marks, ideal if drawn else "", AXES_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return the throughput of every series at its most workers."""
    return quantity_alternative("Throughput against workers. Throughput", inputs, throughput(inputs))


def throughput(inputs: Inputs) -> Quantity:
    """Return the throughput in the unit of the study."""
    return Quantity(
        column="throughput",
        title=f"Throughput, {inputs.study.unit}",
        label=lambda point: chart_number(float(point["throughput"])),
        unit=f" {inputs.study.unit}",
        guide=_ideal,
        scaling=True,
    )


def _ideal(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    """Draw the ideal and let the axis reach it; draw nothing where the common baseline is not known."""
    points = inputs.points[inputs.points["options"] == options]
    baselines = (points["throughput"] / points["speedup_common"]).dropna()
    if baselines.empty:
        return []
    label = proportional_guide(axes, inputs, options, float(baselines.iloc[0]))
    margin = 1.3 if axes.get_yscale() == "log" else 1.08
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, margin * label.y))
    return [label]
