"""Speed-up and IoU over the workers side by side: the first figure of a report, and that of a README."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.axes import is_wide
from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.labels import Label, guide_line
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.quantity import (
    Quantity,
    quantity_alternative,
    quantity_panel,
    quantity_sentences,
)
from analysis.text import chart_number, chart_percent

TITLE = "scaling"
SECTION = "points"
AXES_SENTENCE = "Axes start at zero or are logarithmic."
OWN_BASELINE_SENTENCE = "Speed-up: each framework is compared with its own run on 1 worker."


def draw(inputs: Inputs) -> list[Panel]:
    """Return the panels of every set of options: speed-up, or throughput where none is known, and IoU."""
    quantities = _quantities(inputs)
    return [
        quantity_panel(inputs, quantity, options) for options in inputs.options for quantity in quantities
    ]


def missing(inputs: Inputs) -> str | None:  # noqa: ARG001  (as in every figure)
    """Return None: the panels say themselves what is not known."""
    return None


def caption(inputs: Inputs) -> str:
    """Return what the marks are, and which baseline each framework has."""
    marks = quantity_sentences(inputs, [quantity.column for quantity in _quantities(inputs)])
    baseline = OWN_BASELINE_SENTENCE if _speedup_known(inputs) else ""
    return caption_text(inputs, *marks, baseline, AXES_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return speed-up, or throughput, and IoU of every series at its most workers."""
    return " ".join(quantity_alternative(each.title, inputs, each) for each in _quantities(inputs))


def _quantities(inputs: Inputs) -> list[Quantity]:
    """Return what is drawn: the IoU only where one is known."""
    speed = SPEEDUP if _speedup_known(inputs) else _throughput(inputs)
    iou = [_iou(inputs)] if inputs.points["iou"].notna().any() else []
    return [speed, *iou]


def _speedup_known(inputs: Inputs) -> bool:
    """Return whether a speed-up is known beyond that of 1 worker, which is 1."""
    return bool((inputs.points["speedup"].notna() & (inputs.points["workers"] > 1)).any())


def _ideal(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    """Draw the ideal: as many times the speed of 1 worker as there are workers."""
    counts = inputs.counts(options)
    ends = [float(counts[0]) if is_wide(counts) else 0.0, float(counts[-1])]
    return [guide_line(axes, ends, ends, "ideal")]


def _label(point: "pd.Series[Any]") -> str:
    return f"{chart_number(float(point['speedup']), '.2f')} ({chart_percent(float(point['efficiency']))})"


def _throughput(inputs: Inputs) -> Quantity:
    return Quantity(
        column="throughput",
        title=f"Throughput, {inputs.study.unit}",
        label=lambda point: chart_number(float(point["throughput"])),
        unit=f" {inputs.study.unit}",
        scaling=True,
    )


def _iou(inputs: Inputs) -> Quantity:
    return Quantity(
        column="iou",
        title=f"{inputs.study.score.heading}, {inputs.study.iou_scope}",
        label=lambda point: chart_number(float(point["iou"]), ".3f"),
        form=".3f",
        least_top=1.04,
    )


SPEEDUP = Quantity(
    column="speedup",
    title="Speed-up over 1 worker (efficiency)",
    label=_label,
    guide=_ideal,
    scaling=True,
    in_workers=True,
)
