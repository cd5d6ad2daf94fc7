"""Training loss against epochs and against seconds of training, one line per point."""

import pandas as pd

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.curve_chart import (
    TIME_SENTENCE,
    CurveChart,
    curve_alternative,
    curve_panels,
    curve_sentence,
    undrawn_counts_sentence,
)
from analysis.figures.drawing.curves import loss_curves
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel

TITLE = "training loss"
SECTION = "loss"
# Fewer epochs, or a smaller ratio of the largest to the smallest loss, do not need logarithmic axes.
FEWEST_LOG_EPOCHS = 10
WIDE_LOSS_RATIO = 3
# Column of the curves -> name of its axis.
HORIZONTAL = {"trained": "epochs", "elapsed": "seconds of training"}


def draw(inputs: Inputs) -> list[Panel]:
    """Return the loss against both, side by side, for each framework and set of options."""
    curves = loss_curves(inputs)
    log = _is_wide(curves.medians)
    charts = [
        CurveChart(f"loss against {name}", column, "loss", name, log_x=log, log_y=log)
        for column, name in HORIZONTAL.items()
    ]
    pairs = zip(*(curve_panels(inputs, chart, curves) for chart in charts), strict=True)
    return [panel for pair in pairs for panel in pair]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no loss is known."""
    return None if inputs.study.epochs["loss"].notna().any() else "no run has a known loss"


def caption(inputs: Inputs) -> str:
    """Return what the lines and seconds are."""
    return caption_text(inputs, curve_sentence(inputs), TIME_SENTENCE, undrawn_counts_sentence(inputs))


def alternative(inputs: Inputs) -> str:
    """Return the last loss of every series at its most workers."""
    return curve_alternative("Training loss against epochs and seconds. Last loss", inputs, "loss")


def _is_wide(medians: pd.DataFrame) -> bool:
    """Return whether the loss falls so far, over so many epochs, that linear axes would hide most of it."""
    loss = medians["loss"].dropna()
    falls = bool((loss > 0).all()) and loss.max() >= WIDE_LOSS_RATIO * loss.min()
    return bool(medians["trained"].max() >= FEWEST_LOG_EPOCHS and falls)
