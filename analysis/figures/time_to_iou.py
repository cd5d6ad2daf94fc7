"""IoU against seconds of training, one line per point, with the target IoU."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.curve_chart import (
    TIME_SENTENCE,
    CurveChart,
    curve_alternative,
    curve_figure,
    curve_sentence,
    undrawn_counts_sentence,
)
from analysis.figures.drawing.curves import iou_over_time
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.style import DASHED, MUTED, SMALL_POINTS
from analysis.findings.cost import iou_curves
from analysis.text import chart_number

TITLE = "IoU against training time"
SECTION = "cost"
# From this ratio of the last evaluation's time to the first one's.
WIDE_TIME_RATIO = 20


def draw(inputs: Inputs) -> Figure:
    """Draw the IoU over training time; a panel for each framework and set of options."""
    curves = iou_over_time(inputs)
    elapsed = curves.medians["elapsed"]
    chart = CurveChart(
        title="IoU against training time",
        x="elapsed",
        y="iou",
        x_label="seconds of training",
        log_x=bool(elapsed.max() >= WIDE_TIME_RATIO * elapsed.min()),
        log_y=False,
        least_top=1.04,
    )
    figure = curve_figure(inputs, chart, curves)
    for target in inputs.cost["target_iou"].dropna().iloc[:1]:
        for axes in figure.axes:
            _draw_target(axes, float(target))
    return figure


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
    return curve_alternative("IoU against seconds of training. Last IoU", inputs, "iou")


def _draw_target(axes: Axes, target: float) -> None:
    axes.axhline(target, color=MUTED, linewidth=1, linestyle=DASHED, zorder=1)
    text = f"target {chart_number(target, '.2f')}"
    across = axes.get_yaxis_transform()
    axes.text(0.01, target + 0.012, text, transform=across, color=MUTED, size=SMALL_POINTS)
