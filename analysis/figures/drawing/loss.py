"""Training loss against epochs or seconds: the chart of two figures."""

from matplotlib.figure import Figure

from analysis.figures.drawing.curve_chart import CurveChart, curve_figure
from analysis.figures.drawing.curves import loss_curves
from analysis.figures.drawing.inputs import Inputs

# Fewer epochs, or a smaller ratio of the largest to the smallest loss, do not need logarithmic axes.
FEWEST_LOG_EPOCHS = 10
WIDE_LOSS_RATIO = 3


def loss_figure(inputs: Inputs, title: str, x: str, x_label: str) -> Figure:
    """Draw the loss against the column `x` of the loss curves."""
    curves = loss_curves(inputs)
    epochs = curves.medians["trained"].max()
    loss = curves.medians["loss"].dropna()
    falls = bool((loss > 0).all()) and loss.max() >= WIDE_LOSS_RATIO * loss.min()
    log = bool(epochs >= FEWEST_LOG_EPOCHS and falls)
    return curve_figure(inputs, CurveChart(title, x, "loss", x_label, log_x=log, log_y=log), curves)


def loss_missing(inputs: Inputs) -> str | None:
    """Return why no figure of the loss can be drawn."""
    return None if inputs.study.epochs["loss"].notna().any() else "no run has a known loss"
