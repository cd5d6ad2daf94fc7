"""Difference of the IoU to that of 1 worker, with every seed, beside the study's margin."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.labels import Label
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.quantity import (
    Quantity,
    drawn_values,
    quantity_alternative,
    quantity_panel,
    quantity_sentences,
)
from analysis.figures.drawing.style import GRID, MUTED
from analysis.study import POINT
from analysis.text import chart_number

TITLE = "difference of the {score} to 1 worker"
SECTION = "iou"
# A tick closer to zero than this is zero but for rounding.
ZERO = 1e-12


def draw(inputs: Inputs) -> list[Panel]:
    """Return the difference to 1 worker over the workers; a panel for each set of options."""
    tables = _with_differences(inputs)
    return [quantity_panel(tables, _quantity(inputs), options) for options in inputs.options]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no difference is known, or not on which test images."""
    if not inputs.study.provenance_known:
        return "the test images of these logs are unknown"
    differences = inputs.iou.loc[inputs.iou["workers"] > 1, "difference"]
    lacking = f"no run on several workers has {inputs.study.score.with_article} and one on 1 worker"
    return None if differences.notna().any() else lacking


def caption(inputs: Inputs) -> str:
    """Return what the marks are, and what the differences are to."""
    margin = chart_number(inputs.study.criteria.iou_margin)
    band = f"Differences are to the same seed on 1 worker; the grey band is the margin of {margin}."
    return caption_text(inputs, *quantity_sentences(_with_differences(inputs), ["difference"]), band)


def alternative(inputs: Inputs) -> str:
    """Return the difference of every series at its most workers."""
    opening = f"{_quantity(inputs).title} against workers. Difference"
    return quantity_alternative(opening, _with_differences(inputs), _quantity(inputs))


def _with_differences(inputs: Inputs) -> Inputs:
    """Return the inputs with the differences to 1 worker and their intervals among the points."""
    differences = inputs.iou[[*POINT, "difference", "difference_low", "difference_high"]]
    return replace(inputs, points=inputs.points.merge(differences, on=POINT, how="left"))


def _draw_margin(axes: Axes, inputs: Inputs, options: str) -> list[Label]:
    """Draw the margin as a band, in an axis with zero in its middle that holds it and all values."""
    margin = inputs.study.criteria.iou_margin
    values = np.abs(drawn_values(inputs, "difference", options))
    reach = 1.12 * float(np.nanmax(np.append(values, 1.6 * margin)))
    axes.set_ylim(-reach, reach)
    axes.yaxis.set_major_formatter(lambda value, _: chart_number(value, ".6g") if abs(value) > ZERO else "0")
    axes.axhspan(-margin, margin, color=GRID, alpha=0.9, linewidth=0, zorder=0.5)
    axes.axhline(0, color=MUTED, linewidth=0.9, zorder=1)
    _name_margin(axes, margin)
    return []


def _name_margin(axes: Axes, margin: float) -> None:
    text = f"margin {chart_number(margin)}"
    beside = axes.get_yaxis_transform()
    axes.text(0.99, margin, text, color=MUTED, transform=beside, ha="right", va="bottom")


def _difference_text(point: "pd.Series[Any]") -> str:
    return chart_number(float(point["difference"]), "+.3f")


def _quantity(inputs: Inputs) -> Quantity:
    return Quantity(
        column="difference",
        title=f"Difference of the {inputs.study.score.title} to 1 worker",
        label=_difference_text,
        guide=_draw_margin,
        form="+.3f",
    )
