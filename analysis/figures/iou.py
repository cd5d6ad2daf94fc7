"""IoU over the workers with every seed, and its difference to 1 worker beside the margin."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.artists import (
    Label,
    end_labels,
    interval_bars,
    last_known,
    line_with_gaps,
    say_unknown,
    sides,
    single_runs,
)
from analysis.figures.drawing.axes import worker_axis
from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import Inputs, Series
from analysis.figures.drawing.layout import new_figure
from analysis.figures.drawing.quantity import (
    AXES_SENTENCE,
    Quantity,
    draw_quantity,
    quantity_alternative,
    quantity_sentences,
)
from analysis.figures.drawing.style import GRID, MUTED, SMALL_POINTS
from analysis.study import SERIES
from analysis.text import chart_number

TITLE = "IoU"
SECTION = "iou"

PANEL_INCHES = (3.9, 3.1)
MOST_COLUMNS = 3
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
    kinds = ["IoU", "Difference to 1 worker"] if _has_differences(inputs) else ["IoU"]
    titles = [", ".join(filter(None, (kind, options))) for options in inputs.options for kind in kinds]
    columns = 2 if len(kinds) == 2 else min(len(titles), MOST_COLUMNS)
    title = f"IoU over the workers, {inputs.study.iou_scope}"
    figure, panels = new_figure(title, inputs.series, titles, columns, PANEL_INCHES)
    rows = iter(panels)
    for series in inputs.panels.values():
        draw_quantity(next(rows), inputs, replace(IOU, title=""), series)
        if len(kinds) == 2:
            _draw_differences(next(rows), inputs, series)
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


def _paired_differences(inputs: Inputs) -> pd.DataFrame:
    """Return the runs drawn with `difference`: IoU minus that of the same repeat on 1 worker."""
    alone = inputs.runs.loc[inputs.runs["workers"] == 1, [*SERIES, "repeat", "iou"]]
    runs = inputs.runs.merge(alone, on=[*SERIES, "repeat"], suffixes=("", "_alone"))
    return runs.assign(difference=runs["iou"] - runs["iou_alone"])


def _draw_differences(axes: Axes, inputs: Inputs, panel: Sequence[Series]) -> None:
    runs = _paired_differences(inputs)
    worker_axis(axes, inputs.counts(panel[0].options), stretch=1.26)
    _symmetric_axis(axes, inputs, panel[0].options, runs)
    _draw_margin(axes, inputs.study.criteria.iou_margin)
    labels: list[Label] = []
    for series, side in zip(panel, sides(len(panel)), strict=True):
        labels += _draw_series(axes, inputs, series, series.rows(runs), side)
    say_unknown(axes, [], nothing=not labels)
    end_labels(axes, labels)


def _draw_margin(axes: Axes, margin: float) -> None:
    axes.axhspan(-margin, margin, color=GRID, alpha=0.9, linewidth=0, zorder=0.5)
    axes.axhline(0, color=MUTED, linewidth=0.9, zorder=1)
    text = f"margin {chart_number(margin)}"
    beside = axes.get_yaxis_transform()
    axes.text(0.99, margin, text, color=MUTED, size=SMALL_POINTS, transform=beside, ha="right", va="bottom")


def _draw_series(axes: Axes, inputs: Inputs, series: Series, runs: pd.DataFrame, side: float) -> list[Label]:
    points = series.rows(inputs.iou)
    repeated = runs[(runs["workers"] > 1) & (runs["repeats"] > 1)]
    single_runs(axes, series, repeated, "difference", side)
    interval_bars(axes, series, points, "difference", side)
    line_with_gaps(axes, series, inputs.counts(series.options), points, "difference")
    last = last_known(points[points["workers"] > 1], "difference")
    if last is None:
        return []
    value = float(last["difference"])
    sign = "+" if value > 0 else ""
    return [Label(float(last["workers"]), value, sign + chart_number(value, ".3f"), series.style.colour)]


def _symmetric_axis(axes: Axes, inputs: Inputs, options: str, runs: pd.DataFrame) -> None:
    """Set up an axis with zero in its middle that holds the margin and all values."""
    points = inputs.iou[inputs.iou["options"] == options]
    of_points = points[["difference", "difference_low", "difference_high"]].to_numpy(dtype=np.float64)
    of_runs = runs.loc[runs["options"] == options, "difference"].to_numpy(dtype=np.float64)
    values = np.append(of_points.ravel(), of_runs)
    furthest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    reach = 1.12 * max(furthest, 1.6 * inputs.study.criteria.iou_margin)
    axes.set_ylim(-reach, reach)
    axes.yaxis.set_major_formatter(lambda value, _: chart_number(value, ".6g") if abs(value) > ZERO else "0")
