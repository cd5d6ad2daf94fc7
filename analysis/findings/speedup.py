"""One row per point: throughput, speed-up, efficiency, deviation and IoU, each with its interval."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.blocks import block_deviations
from analysis.statistics.intervals import CONFIDENCE, FEWEST_REPEATS, SHARE, bounds, coverage
from analysis.statistics.launches import Launches, launches_of
from analysis.statistics.timed import timed
from analysis.study import POINT, SERIES, Study

COLUMNS = (
    "framework",
    "workers",
    "repeats",
    "images_per_second",
    "speedup",
    "speedup_low",
    "speedup_high",
    "efficiency",
    "deviation",
    "iou",
    "iou_low",
    "iou_high",
)
FURTHER_COLUMNS = (
    "images_per_second_low",
    "images_per_second_high",
    "epochs_per_second",
    "efficiency_low",
    "efficiency_high",
    "deviation_low",
    "deviation_high",
    "speedup_common",
    "speedup_common_low",
    "speedup_common_high",
    "efficiency_common",
    "efficiency_common_low",
    "efficiency_common_high",
    "images_per_epoch",
    "seconds_per_epoch",
    "nodes",
    "unknown",
)
MEDIANS = ("images_per_second", "epochs_per_second", "images_per_epoch", "seconds_per_epoch")
NO_BASELINE = "speed-up: no run on 1 worker"
NONE = -1

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]


def summarise(study: Study) -> pd.DataFrame:
    """The points of a study, in the order of its runs.

    Columns: COLUMNS, FURTHER_COLUMNS, `throughput` with `_low` and `_high` (the study's own unit),
    `options`, `knobs` and the study's axes. Every number is a median over repeats. Speed-up is the median
    throughput over that of the same framework with the same options on 1 worker; `_common` takes the
    faster one of all 1-worker points with the same options instead, and is known only where every
    framework has such a point. Efficiency is speed-up / workers, deviation 1 - efficiency. Intervals
    (95 %, see intervals.py) need 3 repeats; that of a speed-up is paired where both points have the same
    repeats, and carries the baseline's uncertainty either way. Disturbed launches count for speed only where
    too few others of their point remain (statistics/timed.py), for IoU always. `nodes` is unknown where
    runs of a point differ in it. What is not known is NaN, and `unknown` says why there is no speed-up.
    """
    runs = timed(study).runs.reset_index(drop=True)
    launches = launches_of(runs, POINT)
    points = _points(study, runs, launches)
    _add_iou(points, study)
    logs = np.log(_values(runs, study.throughput))
    _add_throughput(points, study, launches.replicates(logs, block_deviations(study, runs["run"].to_list())))
    replicated = launches.replicates(logs)
    own = own_baseline(points)
    for suffix, baseline in (("", own), ("_common", _common_baseline(points))):
        _add_speedups(points, logs, launches, replicated, suffix, baseline)
    points["deviation"] = 1 - points["efficiency"]
    _add(points, "deviation", (1 - points["efficiency_high"], 1 - points["efficiency_low"]))
    points["unknown"] = np.where(own == NONE, NO_BASELINE, "")
    throughput = ["throughput", "throughput_low", "throughput_high"]
    return points[[*COLUMNS, *FURTHER_COLUMNS, *throughput, "options", "knobs", *study.axes]]


def runs_with_speedup(study: Study) -> pd.DataFrame:
    """The runs with the throughput of each, and its speed-up over the median of the 1-worker runs."""
    runs = timed(study).runs
    runs = runs.assign(throughput=runs[study.throughput])
    alone = runs[runs["workers"] == 1].groupby(SERIES)["throughput"].median().rename("baseline")
    runs = runs.join(alone, on=SERIES)
    return runs.assign(speedup=runs["throughput"] / runs["baseline"])


def summary_table(points: pd.DataFrame) -> pd.DataFrame:
    """The columns of summary.csv: the agreed ones, what else is known of a point, the axes."""
    axes = [column for column in points.columns if "." in column]
    return points[[*COLUMNS, *FURTHER_COLUMNS, *axes]]


def unequal_work(study: Study) -> Iterator[str]:
    """Where the epochs of compared runs differ in images, by how much."""
    for options, runs in study.runs.groupby("options", sort=False):
        images = runs["images_per_epoch"]
        if images.notna().all() and images.min() < images.max():
            share = 100 * (1 - images.min() / images.max())
            prefix = f"{options!s}: " if options else ""
            yield f"{prefix}images per epoch: {images.max():g} to {images.min():g}, {share:.1f} %"


def interval_notes(points: pd.DataFrame) -> Iterator[str]:
    """What the intervals of so few repeats are worth."""
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
    """One row per point: what identifies it, its repeats and its medians."""
    first = runs.groupby(launches.point).first(skipna=False)
    points = first[[*POINT, *study.axes]].copy()
    points["repeats"] = np.bincount(launches.point, minlength=launches.points)
    for name in MEDIANS:
        points[name] = launches.medians(_values(runs, name))
    points["throughput"] = points[study.throughput]
    nodes = runs["nodes"].groupby(launches.point)
    points["nodes"] = first["nodes"].where(nodes.nunique(dropna=False) == 1)
    return points


def _add_iou(points: pd.DataFrame, study: Study) -> None:
    """Medians and intervals over all launches: disturbed ones learned as well as the others."""
    runs = study.runs.reset_index(drop=True)
    launches = launches_of(runs, POINT)
    points["iou"] = launches.medians(_values(runs, "iou"))
    _add(points, "iou", launches.intervals(_values(runs, "iou"), SHARE))


def _add_throughput(points: pd.DataFrame, study: Study, replicated: Array) -> None:
    """The intervals of throughput, in the study's own unit and where that is known in images."""
    _add(points, "throughput", _exponential(bounds(replicated)))
    counted = study.throughput == "images_per_second"
    for side in ("low", "high"):
        points[f"images_per_second_{side}"] = points[f"throughput_{side}"] if counted else np.nan


def own_baseline(points: pd.DataFrame) -> Numbers:
    """For each point the row of the same series on 1 worker, or NONE."""
    rows = pd.Series(np.arange(len(points)), index=points.index).where(points["workers"] == 1)
    series = [points[name] for name in SERIES]
    return rows.groupby(series, sort=False).transform("max").fillna(NONE).to_numpy(dtype=np.int64)


def _common_baseline(points: pd.DataFrame) -> Numbers:
    """For each point the row of the fastest 1-worker point with its options, or NONE."""
    found = np.full(len(points), NONE)
    for _, rows in points.reset_index(drop=True).groupby("options", sort=False):
        alone = rows[(rows["workers"] == 1) & rows["throughput"].notna()]
        if set(alone["framework"]) == set(rows["framework"]):
            found[rows.index] = alone["throughput"].idxmax()
    return found


def _add_speedups(
    points: pd.DataFrame, logs: Array, launches: Launches, replicated: Array, suffix: str, baseline: Numbers
) -> None:
    """Speed-up and efficiency against the points that `baseline` names."""
    medians, workers = (points[name].to_numpy(dtype=np.float64) for name in ("throughput", "workers"))
    known = np.flatnonzero(baseline != NONE)
    speedup, low, high = np.full((3, len(points)), np.nan)
    speedup[known] = medians[known] / medians[baseline[known]]
    difference = _differences(launches, logs, replicated, known, baseline[known])
    low[known], high[known] = _exponential(bounds(difference))
    points[f"speedup{suffix}"], points[f"efficiency{suffix}"] = speedup, speedup / workers
    _add(points, f"speedup{suffix}", (low, high))
    _add(points, f"efficiency{suffix}", (low / workers, high / workers))


def _differences(
    launches: Launches, logs: Array, replicated: Array, points: Numbers, baseline: Numbers
) -> Array:
    """Replicates of points minus those of their baselines: they drew the same repeats where these agree.

    Where the repeats differ, the baseline is drawn in another stream, so independently.
    """
    repeats = repeats_key(launches)
    difference = replicated[points] - replicated[baseline]
    apart = np.flatnonzero(repeats[points] != repeats[baseline])
    if len(apart):
        independent = launches.replicates(logs, stream=1)
        difference[apart] = replicated[points[apart]] - independent[baseline[apart]]
    return difference


def repeats_key(launches: Launches) -> Numbers:
    """A number for each point: equal where two points have the same repeats."""
    grouped = pd.Series(launches.repeats).groupby(launches.point)
    keys = [tuple(sorted(each)) for _, each in grouped]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.int64)


def _add(points: pd.DataFrame, name: str, interval: "tuple[Array | pd.Series, Array | pd.Series]") -> None:
    points[f"{name}_low"], points[f"{name}_high"] = interval


def _exponential(interval: tuple[Array, Array]) -> tuple[Array, Array]:
    return np.exp(interval[0]), np.exp(interval[1])


def _values(runs: pd.DataFrame, name: str) -> Array:
    return runs[name].to_numpy(dtype=np.float64)
