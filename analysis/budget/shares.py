"""Of each run, which share of its workers' time each part took; of each point, the median shares.

The parts are those of the overhead budget. A run's time is workers x the seconds of the slowest worker,
summed over the epochs after the warm-up. Each worker's phases sum to its own seconds; what it then waits
for the slowest worker is imbalance, so that the parts sum to the whole.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.launches import Launches
from analysis.study import Study

PARTS = ("data_wait", "compute", "wire", "imbalance", "optimizer", "unequal_work", "rest")
FRACTIONS = tuple(f"{part}_share" for part in PARTS)
UNEQUAL = "the images are not steps x workers x batch: the work of its workers was not equal"
OLDER = "these logs have no budget"

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Shares:
    """Shares of points: `medians` (parts, points), `replicates` (parts, points, RESAMPLES)."""

    medians: Array
    replicates: Array


def run_shares(study: Study) -> pd.DataFrame:
    """One row per run, in the order of the study's runs: run, FRACTIONS, no_budget.

    data wait includes host to device: both are what it takes until a batch is where it is used. compute
    is forward and backward. wire is the smallest sync of each step, for every worker. imbalance is what
    a worker syncs beyond it, and what it waits at the end of an epoch for the slowest. unequal_work is 0
    where the images prove that all workers had equally many, as the loader gives them; where they do not,
    nothing of the run is known, since the record does not say which worker had how many. FRACTIONS sum to
    1 and are NaN where the run has no budget; `no_budget` says why.
    """
    if study.budgets.empty:
        unknown = pd.DataFrame(dict.fromkeys(FRACTIONS, np.nan), index=range(len(study.runs)))
        return unknown.assign(run=study.runs["run"].to_numpy(), no_budget=OLDER)
    sums = study.budgets.groupby("run", sort=False, observed=True)
    workers, first = sums.size(), sums.first()
    total = sums.sum(numeric_only=True)
    whole = (workers * first["seconds"]).astype(float)
    wire = workers * first["wire_seconds"]
    seconds = {
        "data_wait": total["data_wait_seconds"] + total["host_to_device_seconds"],
        "compute": total["forward_seconds"] + total["backward_seconds"],
        "wire": wire,
        "imbalance": total["sync_seconds"] - wire + whole - total["worker_seconds"],
        "optimizer": total["optimizer_seconds"],
        "unequal_work": _unequal_work(study, first),
        "rest": total["rest_seconds"],
    }
    table = pd.DataFrame({f"{part}_share": seconds[part] / whole for part in PARTS}, dtype=float)
    table = table.where(table.notna().all(axis=1), np.nan)
    return _with_reasons(table, first, study.runs["run"])


def share_array(shares: pd.DataFrame) -> Array:
    """(parts, runs)"""
    return shares[list(FRACTIONS)].to_numpy(dtype=np.float64).T


def shares_of(launches: Launches, shares: Array, stream: int = 0) -> Shares:
    """The shares of each point: medians over its launches, scaled to sum to 1, as medians alone do not.

    `shares` is (parts, launches). The replicates of one stream draw the same launches for points of
    equal size, so that those of two points are pairs.
    """
    medians = np.stack([launches.medians(part) for part in shares])
    replicated = np.stack([launches.replicates(part, blocks=False, stream=stream) for part in shares])
    return Shares(medians / medians.sum(axis=0), replicated / replicated.sum(axis=0))


def known_points(launches: Launches, shares: Array) -> NDArray[np.bool_]:
    """Whether every launch of a point has a budget."""
    unknown = np.isnan(shares).any(axis=0)
    return np.asarray(np.bincount(launches.point, unknown, minlength=launches.points) == 0)


def _unequal_work(study: Study, runs: pd.DataFrame) -> "pd.Series[float]":
    """0 seconds, or NaN where the images do not prove it."""
    expected = []
    for run, steps in runs["steps"].items():
        point = study.headers[str(run)].config
        expected.append(steps * point.workers * point.training.batch_per_worker * point.training.accumulate)
    return pd.Series(0.0, index=runs.index).where(runs["images"] == expected)


def _with_reasons(table: pd.DataFrame, runs: pd.DataFrame, order: "pd.Series[str]") -> pd.DataFrame:
    said = runs["no_budget"].astype(object)
    table["no_budget"] = said.where(said.ne("") | table["wire_share"].notna(), UNEQUAL)
    table = table.reindex(pd.Index(order, name="run"))
    table["no_budget"] = table["no_budget"].astype(object).fillna(OLDER)
    return table.reset_index()
