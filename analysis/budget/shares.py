"""Shares of the workers' time that each part took: of each run, and medians of each point.

The parts are those of the overhead budget. A run's time is workers x the seconds of the slowest worker,
summed over the epochs after the warm-up. Each worker's phases sum to its own seconds; what it then waits
for the slowest worker is imbalance, so that the parts sum to the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.arrays import Array
from analysis.stats import SHARE, Interval, Launches, bounds
from analysis.study import Study

PARTS = ("data_wait", "compute", "wire", "imbalance", "optimizer", "unequal_work", "rest")
FRACTIONS = tuple(f"{part}_share" for part in PARTS)
UNEQUAL = "are not steps x workers x batch: the work of its workers was not equal"
OLDER = "these logs have no budget"


@dataclass(frozen=True)
class Shares:
    """Shares of points: `medians` (parts, points), `replicates` (parts, points, RESAMPLES)."""

    medians: Array
    replicates: Array

    def of_point(self, point: int) -> dict[str, float]:
        """Return the median share of each part at a point."""
        return dict(zip(PARTS, self.medians[:, point].tolist(), strict=True))

    def intervals_of_point(self, point: int) -> dict[str, Interval]:
        """Return the interval of each part's share at a point; unknown below 3 launches."""
        low, high = np.clip(bounds(self.replicates[:, point]), *SHARE).tolist()
        return dict(zip(PARTS, zip(low, high, strict=True), strict=True))


def run_shares(study: Study) -> pd.DataFrame:
    """Return one row per run, in the order of the study's runs: run, FRACTIONS, no_budget.

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
    first = study.budgets.groupby("run", sort=False, observed=True).first()
    parts = _part_seconds(study, first)
    table = pd.DataFrame({f"{part}_share": parts[part] / parts["all"] for part in PARTS}, dtype=float)
    table = table.where(table.notna().all(axis=1), np.nan)
    return _with_reasons(table, first, study)


def _part_seconds(study: Study, first: pd.DataFrame) -> Mapping[str, "pd.Series[float]"]:
    """Return the seconds of each of PARTS and of "all", summed over the workers of each run."""
    runs = study.budgets.groupby("run", sort=False, observed=True)
    total = runs.sum(numeric_only=True)
    everything = (runs.size() * first["seconds"]).astype(float)
    wire = runs.size() * first["wire_seconds"]
    return {
        "all": everything,
        "data_wait": total["data_wait_seconds"] + total["host_to_device_seconds"],
        "compute": total["forward_seconds"] + total["backward_seconds"],
        "wire": wire,
        "imbalance": total["sync_seconds"] - wire + everything - total["worker_seconds"],
        "optimizer": total["optimizer_seconds"],
        "unequal_work": _unequal_work(study, first),
        "rest": total["rest_seconds"],
    }


def share_array(shares: pd.DataFrame) -> Array:
    """Return the shares as an array (parts, runs)."""
    return shares[list(FRACTIONS)].to_numpy(dtype=np.float64).T


def shares_of(launches: Launches, shares: Array, stream: int = 0) -> Shares:
    """Return the shares of each point: medians over its launches, scaled to sum to 1.

    `shares` is (parts, launches). The replicates of one stream draw the same launches for points of
    equal size, so that those of two points are pairs.
    """
    medians = np.stack([launches.medians(part) for part in shares])
    replicated = np.stack([launches.replicates(part, stream=stream) for part in shares])
    return Shares(medians / medians.sum(axis=0), replicated / replicated.sum(axis=0))


def known_points(launches: Launches, shares: Array) -> NDArray[np.bool_]:
    """Return which points have a budget of every launch."""
    unknown = np.isnan(shares).any(axis=0)
    return np.asarray(np.bincount(launches.point, unknown, minlength=launches.points) == 0)


def _unequal_work(study: Study, runs: pd.DataFrame) -> "pd.Series[float]":
    """Return 0 seconds, or NaN where the images do not prove it."""
    if study.is_of_scripts:  # without equal work, the recorder writes no budget
        return pd.Series(0.0, index=runs.index)
    expected = []
    for run, steps in runs["steps"].items():
        point = study.headers[str(run)].config
        expected.append(steps * point.workers * point.passes_per_step * point.training.batch_per_worker)
    return pd.Series(0.0, index=runs.index).where(runs["images"] == expected)


def _with_reasons(table: pd.DataFrame, runs: pd.DataFrame, study: Study) -> pd.DataFrame:
    unequal = f"the {study.score.samples} {UNEQUAL}"
    recorded = runs["no_budget"].astype(object)
    table["no_budget"] = recorded.where(recorded.ne("") | table["wire_share"].notna(), unequal)
    table = table.reindex(pd.Index(study.runs["run"], name="run"))
    table["no_budget"] = table["no_budget"].astype(object).fillna(OLDER)
    return table.reset_index()
