"""The IoU over the workers with every seed, and its difference to 1 worker beside the margin."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.axes import worker_axis
from analysis.figures.looks import GRID, MUTED, SMALL_POINTS, plain
from analysis.figures.marks import (
    Label,
    end_labels,
    interval_bars,
    last_known,
    line_with_gaps,
    say_unknown,
    sides,
    single_runs,
)
from analysis.figures.over_workers import IOU, draw_quantity
from analysis.figures.series import Inputs, Series
from analysis.figures.sheet import sheet
from analysis.study import SERIES

PANEL = (3.9, 3.1)


def iou_figure(inputs: Inputs) -> Figure:
    """IoU from zero to one; beside it, where test images are known, what each run loses to 1 worker."""
    differences = has_differences(inputs)
    titles = [
        ", ".join(part for part in (kind, options) if part)
        for options in inputs.options
        for kind in (["IoU", "Difference to 1 worker"] if differences else ["IoU"])
    ]
    series = [each for options in inputs.options for each in inputs.series(options)]
    columns = 2 if differences else min(len(titles), 3)
    figure, panels = sheet(f"IoU over the workers, {inputs.study.iou_scope}", series, titles, columns, PANEL)
    for number, options in enumerate(inputs.options):
        first, *second = panels[columns * number :][:columns] if differences else [panels[number]]
        draw_quantity(first, inputs, replace(IOU, title=""), options)
        for axes in second:
            _draw_differences(axes, inputs, options)
    return figure


def has_differences(inputs: Inputs) -> bool:
    """Whether some difference to 1 worker is known and means something."""
    table = inputs.iou
    return inputs.study.provenance_known and bool(table.loc[table["workers"] > 1, "difference"].notna().any())


def paired_differences(inputs: Inputs) -> pd.DataFrame:
    """Of every run drawn, its IoU minus that of the same repeat of its series on 1 worker."""
    alone = inputs.runs.loc[inputs.runs["workers"] == 1, [*SERIES, "repeat", "iou"]]
    runs = inputs.runs.merge(alone, on=[*SERIES, "repeat"], suffixes=("", "_alone"))
    return runs.assign(difference=runs["iou"] - runs["iou_alone"])


def _draw_differences(axes: Axes, inputs: Inputs, options: str) -> None:
    counts, drawn, margin = inputs.counts(options), inputs.series(options), inputs.study.criteria.iou_margin
    runs = paired_differences(inputs)
    worker_axis(axes, counts, room=1.26)
    _symmetric(axes, inputs, options, runs)
    axes.axhspan(-margin, margin, color=GRID, alpha=0.9, linewidth=0, zorder=0.5)
    axes.axhline(0, color=MUTED, linewidth=0.9, zorder=1)
    labels: list[Label] = []
    for series, side in zip(drawn, sides(len(drawn)), strict=True):
        labels += _draw_series(axes, inputs, series, series.of(runs), side)
    say_unknown(axes, [], nothing=not labels)
    beside = axes.get_yaxis_transform()
    text = f"margin {plain(margin)}"
    axes.text(0.99, margin, text, color=MUTED, size=SMALL_POINTS, transform=beside, ha="right", va="bottom")
    end_labels(axes, labels)


def _draw_series(axes: Axes, inputs: Inputs, series: Series, runs: pd.DataFrame, side: float) -> list[Label]:
    points = series.of(inputs.iou)
    beyond = runs[(runs["workers"] > 1) & (runs["repeats"] > 1)]
    single_runs(axes, series, beyond, "difference", side)
    interval_bars(axes, series, points, "difference", side)
    line_with_gaps(axes, series, inputs.counts(series.options), points, "difference")
    last = last_known(points[points["workers"] > 1], "difference")
    if last is None:
        return []
    value = float(last["difference"])
    text = ("+" if value > 0 else "") + plain(value, ".3f")
    return [Label(float(last["workers"]), value, text, series.look.colour)]


def _symmetric(axes: Axes, inputs: Inputs, options: str, runs: pd.DataFrame) -> None:
    """Zero in the middle, and room for the margin and all values."""
    points = inputs.iou[inputs.iou["options"] == options]
    columns = ("difference", "difference_low", "difference_high")
    values = [points[name].to_numpy(dtype=np.float64) for name in columns]
    values.append(runs.loc[runs["options"] == options, "difference"].to_numpy(dtype=np.float64))
    known = np.concatenate(values)
    furthest = float(np.abs(known[np.isfinite(known)]).max(initial=0.0))
    reach = 1.12 * max(furthest, 1.6 * inputs.study.criteria.iou_margin)
    axes.set_ylim(-reach, reach)
    axes.yaxis.set_major_formatter(lambda value, _: plain(value, ".6g") if abs(value) > 1e-12 else "0")
