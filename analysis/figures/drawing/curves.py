"""Training curves as tables: the median of every point at each step, and some single runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.figures.drawing.inputs import Inputs, evenly
from analysis.findings.cost import iou_curves
from analysis.study import POINT
from unet_scaling.study.config import Framework

# More lines in a panel than these can no longer be told apart; more vertices cannot be seen.
MOST_COUNTS = 6
MOST_RUN_CURVES = 5
MOST_VERTICES = 400


@dataclass(frozen=True)
class Curves:
    """Tables with POINT, step (number of the epoch or evaluation) and the quantities drawn.

    medians  one row per point and step: medians over all runs of the point
    runs     one row per run and step, of the first 5 runs of every point that has more than one
    """

    medians: pd.DataFrame
    runs: pd.DataFrame

    def of(self, options: str) -> pd.DataFrame:
        """Return the rows of both tables under one set of options."""
        both = pd.concat([self.medians, self.runs])
        return both[both["options"] == options]


def loss_curves(inputs: Inputs) -> Curves:
    """Return the loss at every epoch: `trained` epochs, `elapsed` seconds with the warm-up, `loss`."""
    runs = _runs_drawn(inputs)
    table = _numbered(inputs.study.epochs[["run", "epoch", "seconds", "loss"]], runs)
    table = table.rename(columns={"epoch": "step"}).sort_values(["number", "step"])
    table["elapsed"] = table.groupby("number")["seconds"].cumsum()
    table["trained"] = table["step"] + 1
    return _curves(_thinned(table), runs, ["trained", "elapsed", "loss"])


def iou_over_time(inputs: Inputs) -> Curves:
    """Return the IoU at every evaluation: `elapsed` seconds of training before it, `iou`."""
    runs = _runs_drawn(inputs)
    evaluations = iou_curves(inputs.study)[["run", "training_seconds", "iou"]]
    table = _numbered(evaluations, runs).rename(columns={"training_seconds": "elapsed"})
    table = table.sort_values(["number", "elapsed"])
    table["step"] = table.groupby("number").cumcount()
    return _curves(table, runs, ["elapsed", "iou"])


def counts_drawn(inputs: Inputs, options: str, framework: Framework) -> Sequence[int]:
    """Return the worker counts whose curves are drawn: fewer where knobs multiply them."""
    points = inputs.points[(inputs.points["options"] == options) & (inputs.points["framework"] == framework)]
    settings = max(1, points["knobs"].nunique())
    counts = sorted({int(workers) for workers in points["workers"]})
    return evenly(counts, max(2, MOST_COUNTS // settings))


def _runs_drawn(inputs: Inputs) -> pd.DataFrame:
    """Return the runs of the series and worker counts that have a curve.

    `point` numbers their points; `single` is true for the runs that have a curve of their own.
    """
    parts = []
    for series in inputs.series:
        part = series.rows(inputs.study.runs)[[*POINT, "run"]]
        parts.append(part[part["workers"].isin(counts_drawn(inputs, series.options, series.framework))])
    runs = pd.concat(parts, ignore_index=True)
    points = runs.groupby(POINT, sort=False)
    repeated = points["run"].transform("size") > 1
    return runs.assign(point=points.ngroup(), single=repeated & (points.cumcount() < MOST_RUN_CURVES))


def _numbered(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of these runs, with `number` for the position of the run among them."""
    table = table[table["run"].isin(runs["run"])]
    numbers = pd.Index(runs["run"]).get_indexer(pd.Index(table["run"]))
    return table.drop(columns="run").assign(number=numbers)


def _curves(table: pd.DataFrame, runs: pd.DataFrame, columns: list[str]) -> Curves:
    """Return the curves of a table of `number`, `step` and these columns."""
    table = table.join(runs[["point", "single"]], on="number")
    medians = table.groupby(["point", "step"], as_index=False)[columns].median()
    points = runs.drop_duplicates("point").set_index("point")[POINT]
    table = table.join(runs["run"], on="number")
    single = table[table["single"]]
    return Curves(
        medians.join(points, on="point")[[*POINT, "step", *columns]],
        single.join(points, on="point")[[*POINT, "run", "step", *columns]],
    )


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    """Return at most 400 epochs of each run, denser at the start, as a logarithmic axis shows them."""
    longest = int(table["trained"].max()) if len(table) else 0
    if longest <= MOST_VERTICES:
        return table
    kept = np.unique(np.geomspace(1, longest, MOST_VERTICES).round())
    return table[table["trained"].isin(kept)]
