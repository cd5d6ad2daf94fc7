"""IoU over the workers with every seed, and its difference to 1 worker beside the margin."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.artists import Label
from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import new_figure
from analysis.figures.drawing.quantity import (
    AXES_SENTENCE,
    Quantity,
    draw_quantity,
    drawn_values,
    quantity_alternative,
    quantity_sentences,
)
from analysis.figures.drawing.style import GRID, MUTED, SMALL_POINTS
from analysis.study import POINT
from analysis.text import chart_number

TITLE = "IoU"
SECTION = "iou"

IOU_PANEL_INCHES = (3.9, 3.1)
# A tick closer to zero than this is zero but for rounding.
ZERO = 1e-12

IOU = Quantity(
    column="iou",
    title="IoU",
    label=lambda point: chart_number(float(point["iou"]), ".3f"),
    form=".3f",
    least_top=1.04,
)


def draw(inputs: Inputs) -> Figure:
    """Draw IoU from zero to one; beside it, where test images are known, the differences to 1 worker."""
    quantities = [IOU, DIFFERENCE] if _has_differences(inputs) else [IOU]
    kinds = [(options, quantity) for options in inputs.options for quantity in quantities]
    titles = [", ".join(filter(None, (quantity.title, options))) for options, quantity in kinds]
    columns = 2 if len(quantities) == 2 else min(len(titles), 3)
    title = f"IoU over the workers, {inputs.study.iou_scope}"
    figure, panels = new_figure(title, inputs.series, titles, columns, IOU_PANEL_INCHES)
    tables = _with_differences(inputs)
    for axes, (options, quantity) in zip(panels, kinds, strict=True):
        draw_quantity(axes, tables, quantity, inputs.panels[options])
    return figure


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no IoU is known."""
    return None if inputs.points["iou"].notna().any() else "no run has a known IoU"


def caption(inputs: Inputs) -> str:
    """Return what the marks are, and what the differences are to."""
    return caption_text(inputs, *_sentences(inputs))


def alternative(inputs: Inputs) -> str:
    """Return the IoU of every series at its most workers."""
    return quantity_alternative("IoU against workers. IoU", inputs, IOU)


def _sentences(inputs: Inputs) -> Iterator[str]:
    yield from quantity_sentences(inputs, ["iou"])
    if _has_differences(inputs):
        margin = chart_number(inputs.study.criteria.iou_margin)
        yield f"Difference: to the same seed on 1 worker; the grey band is the margin of {margin}."
    yield AXES_SENTENCE


def _has_differences(inputs: Inputs) -> bool:
    """Return whether some difference to 1 worker is known, on test images that are known."""
    differences = inputs.iou.loc[inputs.iou["workers"] > 1, "difference"]
    return inputs.study.provenance_known and bool(differences.notna().any())


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
    axes.text(0.99, margin, text, color=MUTED, size=SMALL_POINTS, transform=beside, ha="right", va="bottom")


def _difference_text(point: "pd.Series[Any]") -> str:
    difference = float(point["difference"])
    return ("+" if difference > 0 else "") + chart_number(difference, ".3f")


DIFFERENCE = Quantity(
    column="difference",
    title="Difference to 1 worker",
    label=_difference_text,
    guide=_draw_margin,
    stretch=1.26,
)
