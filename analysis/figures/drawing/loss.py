"""Training loss against epochs or seconds: the chart of two figures."""

from analysis.figures.drawing.curve_chart import CurveChart, curve_panels
from analysis.figures.drawing.curves import loss_curves
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel

# Fewer epochs, or a smaller ratio of the largest to the smallest loss, do not need logarithmic axes.
FEWEST_LOG_EPOCHS = 10
WIDE_LOSS_RATIO = 3


def loss_panels(inputs: Inputs, title: str, x: str, x_label: str) -> list[Panel]:
    """Return panels of the loss against the column `x` of the loss curves."""
    curves = loss_curves(inputs)
    epochs = curves.medians["trained"].max()
    loss = curves.medians["loss"].dropna()
    falls = bool((loss > 0).all()) and loss.max() >= WIDE_LOSS_RATIO * loss.min()
    log = bool(epochs >= FEWEST_LOG_EPOCHS and falls)
    return curve_panels(inputs, CurveChart(title, x, "loss", x_label, log_x=log, log_y=log), curves)


def loss_missing(inputs: Inputs) -> str | None:
    """Return why no figure of the loss can be drawn."""
    return None if inputs.study.epochs["loss"].notna().any() else "no run has a known loss"
