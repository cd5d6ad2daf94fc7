"""All figures of a study in reading order, and the reason for each that its data cannot carry."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure

from analysis.figures.budget import budget_figure, difference_figure, waterfall_figure
from analysis.figures.cost import cost_figure
from analysis.figures.learning import loss_figure, time_to_iou_figure
from analysis.figures.looks import STYLE
from analysis.figures.network import wire_figure
from analysis.figures.over_workers import (
    DEVIATION,
    EFFICIENCY,
    SPEEDUP,
    Quantity,
    quantity_figure,
    throughput_quantity,
)
from analysis.figures.prediction import prediction_figure
from analysis.figures.quality import iou_figure
from analysis.figures.scaling import scaling_figure
from analysis.figures.series import Inputs
from analysis.figures.words import alternative_text, caption
from analysis.findings.cost import iou_curves


@dataclass(frozen=True)
class Page:
    """One figure: how it is drawn, and why it cannot be, empty where it can."""

    draw: Callable[[Inputs], Figure]
    missing: Callable[[Inputs], str]


def drawable(inputs: Inputs) -> list[str]:
    """The names (file stems) of the figures that the data can carry, in reading order."""
    return [name for name, page in PAGES.items() if not page.missing(inputs)]


def figure(name: str, inputs: Inputs) -> Figure:
    """One of the drawable figures, labelled with its alternative text."""
    with rc_context(STYLE):
        drawn = PAGES[name].draw(inputs)
    drawn.set_label(alternative_text(name, inputs.drawn))
    return drawn


def not_drawn(inputs: Inputs) -> dict[str, str]:
    """Why the other figures are not there, by file stem."""
    reasons = ((name, page.missing(inputs)) for name, page in PAGES.items())
    return {name: reason for name, reason in reasons if reason}


def _nothing(_inputs: Inputs) -> str:
    return ""


def _no_speedup(inputs: Inputs) -> str:
    points = inputs.points[inputs.points["speedup"].notna()]
    if points.empty:
        return "no run on 1 worker, so the speed-up is not known"
    return "" if (points["workers"] > 1).any() else "all runs are on 1 worker"


def _no_throughput(inputs: Inputs) -> str:
    return "" if inputs.points["throughput"].notna().any() else "no throughput is known"


def _no_iou(inputs: Inputs) -> str:
    return "" if inputs.points["iou"].notna().any() else "no run has a known IoU"


def _no_loss(inputs: Inputs) -> str:
    return "" if inputs.study.epochs["loss"].notna().any() else "no run has a known loss"


def _no_curves(inputs: Inputs) -> str:
    if not inputs.study.provenance_known:
        return "the test images of these logs are unknown, and only the IoU after training is recorded"
    if (iou_curves(inputs.study).groupby("run").size() > 1).any():
        return ""
    cure = "evaluate_every in the study's table training evaluates during it"
    return f"every run was evaluated only after training; {cure}"


def _no_cost(inputs: Inputs) -> str:
    return "" if inputs.cost["training_seconds"].notna().any() else "no run has a known training time"


def _no_prediction(inputs: Inputs) -> str:
    return "" if len(inputs.predictions) else "a prediction needs at least 3 worker counts, 1 among them"


def _no_budget(inputs: Inputs) -> str:
    return "" if len(inputs.overhead.budget) else "no point of several workers has one; the notes say why"


def _no_difference(inputs: Inputs) -> str:
    return "" if len(inputs.overhead.differences) else "no worker count has a loss budget of both frameworks"


def _no_network(inputs: Inputs) -> str:
    return (
        "" if len(inputs.overhead.network) else "no run on several workers recorded its network and its wire"
    )


def _over_workers(inputs: Inputs, quantity: Quantity) -> Figure:
    return quantity_figure(inputs.drawn, quantity)


PAGES = {
    "scaling": Page(lambda inputs: scaling_figure(inputs.drawn, caption("scaling", inputs)), _nothing),
    "speedup": Page(lambda inputs: _over_workers(inputs, SPEEDUP), _no_speedup),
    "efficiency": Page(lambda inputs: _over_workers(inputs, EFFICIENCY), _no_speedup),
    "deviation": Page(lambda inputs: _over_workers(inputs, DEVIATION), _no_speedup),
    "throughput": Page(lambda inputs: _over_workers(inputs, throughput_quantity(inputs)), _no_throughput),
    "budget": Page(lambda inputs: budget_figure(inputs.drawn), _no_budget),
    "waterfall": Page(lambda inputs: waterfall_figure(inputs.drawn), _no_budget),
    "difference": Page(lambda inputs: difference_figure(inputs.drawn), _no_difference),
    "wire": Page(lambda inputs: wire_figure(inputs.drawn), _no_network),
    "iou": Page(lambda inputs: iou_figure(inputs.drawn), _no_iou),
    "loss_epochs": Page(lambda inputs: loss_figure(inputs.drawn, against="epochs"), _no_loss),
    "loss_seconds": Page(lambda inputs: loss_figure(inputs.drawn, against="seconds"), _no_loss),
    "time_to_iou": Page(lambda inputs: time_to_iou_figure(inputs.drawn), _no_curves),
    "cost": Page(lambda inputs: cost_figure(inputs.drawn), _no_cost),
    "prediction": Page(lambda inputs: prediction_figure(inputs.drawn), _no_prediction),
}
