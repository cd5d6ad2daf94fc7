"""One row per point: throughput, speed-up, efficiency, deviation and IoU, each with its interval."""

from collections.abc import Iterator
from typing import Union

import numpy as np
import pandas as pd

from analysis.arrays import Array, Integers
from analysis.findings.node_scaling import NONE, full_nodes, one_node
from analysis.stats import (
    CONFIDENCE,
    FEWEST_REPEATS,
    SHARE,
    Launches,
    add_bounded,
    block_deviations,
    bounds,
    coverage,
    launches_of,
    timed,
)
from analysis.study import POINT, SERIES, Study

SPEEDUP_COLUMNS = (
    "framework", "workers", "repeats", "images_per_second", "speedup", "speedup_low", "speedup_high",
    "efficiency", "deviation", "iou", "iou_low", "iou_high",
)  # fmt: skip
FURTHER_COLUMNS = (
    "images_per_second_low", "images_per_second_high", "epochs_per_second", "efficiency_low",
    "efficiency_high", "deviation_low", "deviation_high", "speedup_common", "speedup_common_low",
    "speedup_common_high", "efficiency_common", "efficiency_common_low", "efficiency_common_high",
    "images_per_epoch", "seconds_per_epoch", "nodes", "node_speedup", "node_speedup_low",
    "node_speedup_high", "node_efficiency", "node_efficiency_low", "node_efficiency_high", "unknown",
)  # fmt: skip
MEDIANS = ("images_per_second", "epochs_per_second", "images_per_epoch", "seconds_per_epoch")
_UNIT_COLUMNS = ("throughput", "throughput_low", "throughput_high")
NO_BASELINE = "speed-up: no run on 1 worker"

_Column = Union[Array, "pd.Series[float]"]


def summarise(study: Study) -> pd.DataFrame:
    """Return the points of a study, in the order of its runs.

    Columns: SPEEDUP_COLUMNS, FURTHER_COLUMNS, `throughput` with `_low` and `_high` (the study's own unit),
    `options`, `knobs` and the study's axes. Every number is a median over repeats. Speed-up is the median
    throughput over that of the same framework with the same options on 1 worker; `_common` takes the
    faster one of all 1-worker points with the same options instead, and is known only where every
    framework has such a point. Efficiency is speed-up / workers, deviation 1 - efficiency. Intervals
    (95 %, see stats.py) need 3 repeats; that of a speed-up is paired where both points have the same
    repeats, and carries the baseline's uncertainty either way. Disturbed launches count for speed only where
    too few others of their point remain (stats.timed), for IoU always. `nodes` is unknown where
    runs of a point differ in it; `node_` columns are of full nodes (node_scaling.py). What is not known is
    NaN, and `unknown` says why there is no speed-up.
    """
    runs = timed(study).runs.reset_index(drop=True)
    launches = launches_of(runs, POINT)
    points = _points(study, runs, launches)
    _add_iou(points, study)
    logs = np.log(_values(runs, study.throughput))
    deviations = block_deviations(study, runs["run"].to_list())
    _add_throughput(points, study, launches.replicates(logs, deviations))
    launched = PairedLaunches(launches, logs)
    own = own_baseline(points)
    for suffix, baseline in (("", own), ("_common", _common_baseline(points))):
        speedup = launched.speedups(points, baseline)
        _add(points, f"speedup{suffix}", *speedup)
        _add(points, f"efficiency{suffix}", *(speedup / _values(points, "workers")))
    _add(points, "deviation", *(1 - points[f"efficiency{end}"] for end in ("", "_high", "_low")))
    points["unknown"] = np.where(own == NONE, NO_BASELINE, "")
    nodes = full_nodes(study)
    speedup = launched.speedups(points, one_node(points, nodes))
    _add(points, "node_speedup", *np.where(np.isfinite(nodes), speedup, np.nan))
    _add(points, "node_efficiency", *(speedup / nodes))
    return points[[*SPEEDUP_COLUMNS, *FURTHER_COLUMNS, *_UNIT_COLUMNS, "options", "knobs", *study.axes]]


def unequal_work(study: Study) -> Iterator[str]:
    """Yield by how much the epochs of runs of equal options differ in images."""
    for options, runs in study.runs.groupby("options", sort=False):
        images = runs["images_per_epoch"]
        if images.notna().all() and images.min() < images.max():
            share = 100 * (1 - images.min() / images.max())
            prefix = f"{options!s}: " if options else ""
            numbers = f"{images.max():g} to {images.min():g}, {share:.1f} %"
            yield f"{prefix}{study.score.samples} per epoch: {numbers}"


def interval_notes(points: pd.DataFrame) -> Iterator[str]:
    """Yield the confidence of intervals of so few repeats, where it is below the nominal one."""
    repeats = points["repeats"]
    if (repeats < FEWEST_REPEATS).any():
        fewest = int(repeats.min())
        yield f"an interval needs at least {FEWEST_REPEATS} repeats of a point; the fewest here: {fewest}"
    enough = repeats[repeats >= FEWEST_REPEATS]
    if len(enough) and coverage(int(enough.min())) < CONFIDENCE:
        percent = 100 * coverage(int(enough.min()))
        yield (
            f"an interval over {enough.min()} launches holds the median in about {percent:.0f} % of studies, "
            f"not {100 * CONFIDENCE:.0f} %: so few launches cannot promise more"
        )


def _points(study: Study, runs: pd.DataFrame, launches: Launches) -> pd.DataFrame:
    """Return one row per point: what identifies it, its repeats and its medians."""
    groups = runs.groupby(launches.point)
    first = groups.first(skipna=False)
    points = first[[*POINT, *study.axes]].copy()
    points["repeats"] = np.bincount(launches.point, minlength=launches.points)
    for name in MEDIANS:
        points[name] = launches.medians(_values(runs, name))
    points["throughput"] = launches.medians(_values(runs, study.throughput))
    points["nodes"] = first["nodes"].where(groups["nodes"].nunique(dropna=False) == 1)
    return points


def _add_iou(points: pd.DataFrame, study: Study) -> None:
    """Add medians and intervals over all launches: disturbed ones learned as well as the others."""
    runs = study.runs.reset_index(drop=True)
    launches = launches_of(runs, POINT)
    iou = _values(runs, "iou")
    add_bounded(points, "iou", launches.bounded(iou, SHARE))


def _add_throughput(points: pd.DataFrame, study: Study, replicated: Array) -> None:
    """Add the intervals of throughput, in the study's own unit and where that is known in images."""
    low, high = np.exp(bounds(replicated))
    counted = study.throughput == "images_per_second"
    unknown = np.full(len(points), np.nan)
    _add(points, "throughput", points["throughput"], low, high)
    images = (low, high) if counted else (unknown, unknown)
    _add(points, "images_per_second", points["images_per_second"], *images)


def own_baseline(points: pd.DataFrame) -> Integers:
    """Return for each point the row of the same series on 1 worker, or NONE."""
    rows = pd.Series(np.arange(len(points)), index=points.index).where(points["workers"] == 1)
    series = [points[name] for name in SERIES]
    return rows.groupby(series, sort=False).transform("max").fillna(NONE).to_numpy(dtype=np.int64)


def _common_baseline(points: pd.DataFrame) -> Integers:
    """Return for each point the row of the fastest 1-worker point with its options, or NONE."""
    baseline = np.full(len(points), NONE)
    for _, rows in points.reset_index(drop=True).groupby("options", sort=False):
        alone = rows[(rows["workers"] == 1) & rows["throughput"].notna()]
        if set(alone["framework"]) == set(rows["framework"]):
            baseline[rows.index] = alone["throughput"].idxmax()
    return baseline


class PairedLaunches:
    """Launches whose medians are compared: replicates that draw the same repeats in every point."""

    def __init__(self, launches: Launches, values: Array) -> None:
        self._launches = launches
        self._values = values
        self._replicated = launches.replicates(values)
        self._repeats = _repeats_key(launches)

    def of_baseline(self, points: Integers, baseline: Integers) -> Array:
        """Return replicates of the baseline of each point, paired with those of the point.

        Where the repeats differ, the baseline is drawn in another stream, so independently.
        """
        replicated = self._replicated[baseline]
        apart = np.flatnonzero(self._repeats[points] != self._repeats[baseline])
        if len(apart):
            independent = self._launches.replicates(self._values, stream=1)
            replicated[apart] = independent[baseline[apart]]
        return replicated

    def differences(self, points: Integers, baseline: Integers) -> Array:
        """Return replicates of points minus those of their baselines."""
        return np.asarray(self._replicated[points] - self.of_baseline(points, baseline))

    def speedups(self, points: pd.DataFrame, baseline: Integers) -> Array:
        """Return speed-up and its bounds against the rows that `baseline` names, (3, points); NaN at NONE.

        The values are logarithms of throughput.
        """
        throughput = _values(points, "throughput")
        known = np.flatnonzero(baseline != NONE)
        speedup = np.full((3, len(points)), np.nan)
        speedup[0, known] = throughput[known] / throughput[baseline[known]]
        speedup[1:, known] = np.exp(bounds(self.differences(known, baseline[known])))
        return speedup


def _repeats_key(launches: Launches) -> Integers:
    """Return a number for each point: equal where two points have the same repeats."""
    by_point = pd.Series(launches.repeats).groupby(launches.point)
    keys = [tuple(sorted(repeats)) for _, repeats in by_point]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.int64)


def _add(points: pd.DataFrame, name: str, value: _Column, low: _Column, high: _Column) -> None:
    points[name] = value
    points[f"{name}_low"] = low
    points[f"{name}_high"] = high


def _values(runs: pd.DataFrame, name: str) -> Array:
    return runs[name].to_numpy(dtype=np.float64)
