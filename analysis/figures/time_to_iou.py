"""IoU against seconds of training, one line per point, with the target IoU."""

import numpy as np

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.curve_chart import (
    TIME_SENTENCE,
    CurveChart,
    curve_alternative,
    curve_panels,
    curve_sentence,
    undrawn_counts_sentence,
)
from analysis.figures.drawing.curves import iou_over_time
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel
from analysis.findings.cost import iou_curves

TITLE = "{score} against training time"
SECTION = "cost"
# From this ratio of the last evaluation's time to the first one's.
WIDE_TIME_RATIO = 20


def draw(inputs: Inputs) -> list[Panel]:
    """Return the IoU over training time; a panel for each framework and set of options."""
    curves = iou_over_time(inputs)
    elapsed = curves.medians["elapsed"]
    targets = inputs.cost["target_iou"].unique()
    chart = CurveChart(
        title=f"{inputs.study.score.heading} against training time",
        x="elapsed",
        y="iou",
        x_label="seconds of training",
        log_x=bool(elapsed.max() >= WIDE_TIME_RATIO * elapsed.min()),
        log_y=False,
        least_top=1.04,
        target=float(targets[0]) if len(targets) == 1 else np.nan,
    )
    return curve_panels(inputs, chart, curves)


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no run was evaluated during training."""
    if not inputs.study.provenance_known:
        return "the test images of these logs are unknown, and only the IoU after training is recorded"
    if (iou_curves(inputs.study).groupby("run").size() > 1).any():
        return None
    cure = "evaluate_every in the study's table training evaluates during it"
    return f"every run was evaluated only after training; {cure}"


def caption(inputs: Inputs) -> str:
    """Return what the lines and seconds are."""
    return caption_text(inputs, curve_sentence(inputs), TIME_SENTENCE, undrawn_counts_sentence(inputs))


def alternative(inputs: Inputs) -> str:
    """Return the last IoU of every series at its most workers."""
    score = inputs.study.score
    opening = f"{score.heading} against seconds of training. Last {score.title}"
    return curve_alternative(opening, inputs, "iou")
