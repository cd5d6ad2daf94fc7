"""Numbers of a point, each with its interval: throughput, speed-up, efficiency, IoU and costs.

Time is the training clock of the record: the seconds of the epochs, the warm-up included, without start,
evaluation and checkpoints. Worker-hours are workers times these hours, node-hours distinct hosts times them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import stats
from analysis.study import NAN, POINT, SECONDS_PER_HOUR, SERIES, Array, Integers, Study

NO_BASELINE = "speed-up: no run on 1 worker"
# Of a point without a baseline: no row has this number.
NONE = -1
# Targets are multiples of 0.01: finer ones would differ between studies for no reason.
STEPS_OF_IOU = 100
# Of such a step: 0.58 - 0.01 is a little less than 0.57.
ROUNDING = 1e-6


def summarise(study: Study) -> pd.DataFrame:
    """Return the points of a study, in the order of its runs: medians over repeats, and the study's axes.

    `throughput` is in the study's own unit. Speed-up is over the same framework with the same options on 1
    worker; `_common` takes the faster one of all 1-worker points with the same options instead, and is known
    only where every framework has such a point. Its interval is paired where both points have the same
    repeats, and carries the baseline's uncertainty either way. Disturbed launches count for speed only where
    too few others of their point remain (stats.timed), for IoU always. `nodes` is unknown where runs of a
    point differ in it. What is not known is NaN, and `unknown` says why there is no speed-up.
    """
    runs = stats.timed(study).runs.reset_index(drop=True)
    launches = stats.launches_of(runs, POINT)
    groups = runs.groupby(launches.point)
    first = groups.first(skipna=False)
    points = first[[*POINT, *study.axes]].copy()
    points["repeats"] = launches.sizes
    for name in ("images_per_second", "epochs_per_second", "images_per_epoch", "seconds_per_epoch"):
        points[name] = launches.medians(_values(runs[name]))
    points["nodes"] = first["nodes"].where(groups["nodes"].nunique(dropna=False) == 1)
    stats.add_bounded(
        points, "iou", stats.launches_of(study.runs, POINT).bounded(_values(study.runs["iou"]), stats.SHARE)
    )
    speeds = _values(runs[study.throughput])
    logs = np.log(speeds)
    ends = np.exp(
        stats.bounds(launches.replicates(logs, stats.block_deviations(study, runs["run"].to_list())))
    )
    stats.add_bounded(points, "throughput", [launches.medians(speeds), *ends])
    in_images = ends if study.throughput == "images_per_second" else np.full_like(ends, np.nan)
    stats.add_bounded(points, "images_per_second", [points["images_per_second"], *in_images])
    replicated = launches.replicates(logs)

    def speedups(baseline: Integers) -> Array:
        """Return speed-up and its bounds, (3, points), against the rows that `baseline` names."""
        known = np.flatnonzero(baseline != NONE)
        ratios = replicated[known]
        ratios -= launches.baseline_replicates(logs, replicated, known, baseline[known])
        throughput = _values(points["throughput"])
        speedup = np.full((3, len(points)), np.nan)
        speedup[0, known] = throughput[known] / throughput[baseline[known]]
        speedup[1:, known] = np.exp(stats.bounds(ratios))
        return speedup

    own = baseline_rows(points)
    for suffix, baseline in (("", own), ("_common", _common_baseline(points))):
        speedup = speedups(baseline)
        stats.add_bounded(points, f"speedup{suffix}", speedup)
        stats.add_bounded(points, f"efficiency{suffix}", speedup / _values(points["workers"]))
    stats.add_bounded(points, "deviation", (1 - points[f"efficiency{end}"] for end in ("", "_high", "_low")))
    points["unknown"] = np.where(own == NONE, NO_BASELINE, "")
    return points


def _values(values: "pd.Series[float]") -> Array:
    return np.asarray(values, dtype=np.float64)


def baseline_rows(points: pd.DataFrame) -> Integers:
    """Return for each point the row of its series on 1 worker, or NONE."""
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
    if (repeats < stats.FEWEST_REPEATS).any():
        fewest = int(repeats.min())
        needed = stats.FEWEST_REPEATS
        yield f"an interval needs at least {needed} repeats of a point; the fewest here: {fewest}"
    enough = repeats[repeats >= stats.FEWEST_REPEATS]
    if len(enough) and stats.coverage(int(enough.min())) < stats.CONFIDENCE:
        percent = 100 * stats.coverage(int(enough.min()))
        yield (
            f"with {enough.min()} launches the intervals are right in about {percent:.0f} % of studies, "
            f"not in {100 * stats.CONFIDENCE:.0f} %"
        )


@dataclass(frozen=True)
class Target:
    """The IoU to reach (NaN: none can be stated), where it comes from or why there is none; what it means."""

    iou: float
    source: str
    meaning: str


def target_of(study: Study, options: str = "") -> Target:
    """Return the IoU that times and costs of a set of options are measured to.

    It is `target_iou` of the study's criteria, or what every run on 1 worker, real or played, reaches at
    its best evaluation, less the margin, to 0.01 below: what more workers must reach as well. There is none
    where one of these runs has no known IoU, or the test images are unknown.
    """
    if not study.provenance_known:
        return Target(NAN, "the test images of these logs are unknown", "")
    meaning = "until the first evaluation that reaches it, so up to one evaluation interval late"
    if (study.evaluations.groupby("run").size() <= 1).any():
        meaning = (
            "an upper bound: some runs were evaluated only after training; "
            "evaluate_every in the study's table training evaluates during it"
        )
    if study.criteria.target_iou is not None:
        return Target(study.criteria.target_iou, "stated by the study", meaning)
    best = pd.concat(
        part.runs[(part.runs["options"] == options) & (part.runs["workers"] == 1)]["run"].map(
            part.evaluations.groupby("run")["iou"].max()
        )
        for part in (study, study.played)
        if part is not None
    )
    least = float(best.min(skipna=False)) - study.criteria.iou_margin
    target = math.floor(STEPS_OF_IOU * least + ROUNDING) / STEPS_OF_IOU if least > 0 else 0.0
    if target == 0:
        return Target(NAN, f"not every run on 1 worker has {study.score.with_article} to spare", "")
    return Target(target, "what every run on 1 worker reaches, less the margin", meaning)


def cost_table(study: Study) -> pd.DataFrame:
    """Return one row per point, in the order of the study's runs, of the launches that count for speed.

    A run that never reaches the target is censored: it takes longer than it trained. The median is still
    known where more than half of the runs reach the target and no censored run stopped before that median;
    otherwise it is NaN. Its interval is unknown as soon as one run is censored.
    """
    targets = {options: target_of(study, options).iou for options in study.runs["options"].unique()}
    study = stats.timed(study)
    runs = study.runs.reset_index(drop=True)
    launches = stats.launches_of(runs, POINT)
    groups = runs.groupby(launches.point)
    table = groups[[*POINT, "nodes"]].first(skipna=False)
    table["nodes"] = table["nodes"].where(groups["nodes"].nunique(dropna=False) == 1)
    units = {"worker": runs["workers"] / SECONDS_PER_HOUR, "node": runs["nodes"] / SECONDS_PER_HOUR}
    trained = runs["training_seconds"]
    _add_cost(table, "training_seconds", launches, trained, trained)
    for unit, hours in units.items():
        _add_cost(table, f"{unit}_hours", launches, hours * trained, hours * trained)
    table["target_iou"] = table["options"].map(targets).astype(float)
    # Infinite for a run that never reaches its target.
    of_runs = runs["options"].map(targets).astype(float)
    of_evaluations = study.evaluations["run"].map(of_runs.set_axis(runs["run"])).astype(float)
    reached = study.evaluations[study.evaluations["iou"] >= of_evaluations]
    first = runs["run"].map(reached.groupby("run")["training_seconds"].min())
    to_target = first.astype(float).fillna(math.inf).where(of_runs.notna())
    _add_cost(table, "seconds_to_target", launches, to_target, trained)
    for unit, hours in units.items():
        _add_cost(table, f"{unit}_hours_to_target", launches, hours * to_target, hours * trained)
    table["runs_to_target"] = to_target.lt(math.inf).groupby(launches.point).sum()
    return table


def _add_cost(
    table: pd.DataFrame,
    name: str,
    launches: stats.Launches,
    values: "pd.Series[float]",
    at_least: "pd.Series[float]",
) -> None:
    """Add median and interval; the median holds whatever runs of infinite value need, at least these."""
    median, low, high = launches.bounded(_values(values), stats.NOT_NEGATIVE)
    # Of played runs no time is known, and the column may hold no number at all.
    censored = at_least.astype(float).where(np.isinf(_values(values)), math.inf).groupby(launches.point).min()
    known = np.isfinite(median) & (_values(censored) >= median)
    stats.add_bounded(table, name, [np.where(known, median, NAN), low, high])
