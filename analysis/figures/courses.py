"""The courses of training that figures show: the median of every point at each step, and some runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.figures.series import Inputs, evenly
from analysis.findings.cost import iou_curves
from analysis.study import POINT
from unet_scaling.study.config import Framework

MOST_COUNTS = 6
MOST_THIN = 5
MOST_VERTICES = 400


@dataclass(frozen=True)
class Courses:
    """Rows have POINT, step (number of the epoch or evaluation) and the quantities drawn.

    medians  one row per point and step: medians over all runs of the point
    runs     one row per run and step, of the first 5 runs of every point that has more than one
    """

    medians: pd.DataFrame
    runs: pd.DataFrame


def loss_courses(inputs: Inputs) -> Courses:
    """Loss at every epoch: `trained` epochs, `elapsed` seconds of training, the warm-up included, `loss`."""
    runs = _runs_drawn(inputs)
    epochs = inputs.study.epochs
    numbers = pd.Index(runs["run"]).get_indexer(pd.Index(epochs["run"]))
    table = pd.DataFrame(
        {
            "number": numbers,
            "step": epochs["epoch"].to_numpy(),
            "seconds": epochs["seconds"].to_numpy(dtype=np.float64),
            "loss": epochs["loss"].to_numpy(dtype=np.float64),
        }
    )
    table = table[numbers >= 0].sort_values(["number", "step"])
    table["elapsed"] = table.groupby("number")["seconds"].cumsum()
    table["trained"] = table["step"] + 1
    return _courses(_thinned(table), runs, ["trained", "elapsed", "loss"])


def iou_courses(inputs: Inputs) -> Courses:
    """IoU at every evaluation: `elapsed` seconds of training before it, `iou`."""
    runs = _runs_drawn(inputs)
    curves = iou_curves(inputs.study)
    numbers = pd.Index(runs["run"]).get_indexer(pd.Index(curves["run"]))
    table = curves[["iou"]].assign(number=numbers, elapsed=curves["training_seconds"])[numbers >= 0]
    table = table.sort_values(["number", "elapsed"])
    table["step"] = table.groupby("number").cumcount()
    return _courses(table, runs, ["elapsed", "iou"])


def counts_drawn(inputs: Inputs, options: str, framework: Framework) -> Sequence[int]:
    """The worker counts whose lines are drawn: fewer where knobs multiply the lines."""
    points = inputs.points[(inputs.points["options"] == options) & (inputs.points["framework"] == framework)]
    settings = max(1, points["knobs"].nunique())
    counts = sorted({int(each) for each in points["workers"]})
    return evenly(counts, max(2, MOST_COUNTS // settings))


def _courses(table: pd.DataFrame, runs: pd.DataFrame, columns: list[str]) -> Courses:
    """`number` of the table is the place of a run among the runs."""
    point = runs.groupby(POINT, sort=False)
    points = runs.loc[~runs.duplicated(POINT), POINT].reset_index(drop=True)
    of_run, among = point.ngroup().to_numpy(), point.cumcount().to_numpy()
    several = (point["run"].transform("size") > 1).to_numpy()
    table = table.assign(point=of_run[table["number"]])
    medians = table.groupby(["point", "step"], as_index=False)[columns].median()
    thin = table[(several & (among < MOST_THIN))[table["number"]]]
    return Courses(
        medians.join(points, on="point")[[*POINT, "step", *columns]],
        thin.join(points, on="point")[[*POINT, "number", "step", *columns]],
    )


def _runs_drawn(inputs: Inputs) -> pd.DataFrame:
    """The runs of the series and worker counts that have a line, numbered from 0."""
    runs = inputs.study.runs[[*POINT, "run"]]
    parts = []
    for options in inputs.options:
        for series in inputs.series(options):
            part = series.of(runs)
            parts.append(part[part["workers"].isin(counts_drawn(inputs, options, series.framework))])
    return pd.concat(parts, ignore_index=True)


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    """At most 400 epochs of each run, denser at the start, as a logarithmic axis shows them."""
    longest = int(table["trained"].max()) if len(table) else 0
    if longest <= MOST_VERTICES:
        return table
    kept = np.unique(np.geomspace(1, longest, MOST_VERTICES).round())
    return table[table["trained"].isin(kept)]
