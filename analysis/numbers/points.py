"""Numbers of a point, each with its interval: throughput, speed-up, efficiency, IoU and costs.

Time is the training clock of the record: the seconds of the epochs, the warm-up included, without start,
evaluation and checkpoints. Worker-hours are workers times these hours, node-hours distinct hosts times them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.numbers import stats
from analysis.study import FEWEST_REPEATS, NAN, POINT, SECONDS_PER_HOUR, SERIES, Array, Integers, Study
from analysis.text import Row

NO_BASELINE = "speed-up: no run on 1 worker"
# In place of a row number: the point has no baseline.
NONE = -1
# The framework of the point that stands for all on 1 worker.
COMMON = "common"
COMPUTED = "they computed {:.0f} % longer per image than several workers"
CLOCKED = "a cycle of their cores lasted {:.0f} % longer than on several workers"
# Where a series on 1 worker is shown to be slower than the fastest. At 5 % more differences are missed, and
# the efficiency too high by half of them; at 20 % it is too low where there is none.
SLOWER_SIGNIFICANCE = 0.1
# Targets are multiples of 0.01: finer ones would differ between studies for no reason.
STEPS_OF_IOU = 100
# Of such a step: 0.58 - 0.01 is a little less than 0.57.
ROUNDING = 1e-6


def summarise(study: Study) -> pd.DataFrame:
    """Return the points of a study, in the order of its runs: medians over repeats, and the study's axes.

    `throughput` is in the study's own unit. Speed-up is over the same framework with the same options on 1
    worker; `_common` takes what all frameworks do there instead (`_common_launches`), and is known only where
    every framework has such a point. Its interval is paired where both points have the same
    repeats, and carries the baseline's uncertainty either way. Disturbed launches count for speed only where
    too few others of their point remain (Study.timed), for IoU always. `nodes` is unknown where runs of a
    point differ in it. What is not known is NaN, and `unknown` says why there is no speed-up.
    """
    runs = study.timed.runs.reset_index(drop=True)
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
    deviations = stats.block_deviations(study.epochs, study.throughput, runs["run"].to_list())
    ends = np.exp(launches.interval(np.log(speeds), deviations))
    stats.add_bounded(points, "throughput", [launches.medians(speeds), *ends])
    in_images = ends if study.throughput == "images_per_second" else np.full_like(ends, np.nan)
    stats.add_bounded(points, "images_per_second", [points["images_per_second"], *in_images])
    # A further point for each set of options: what all frameworks do on 1 worker.
    every = pd.concat([runs, *_common_launches(runs, study.throughput)], ignore_index=True)
    launches, speeds = stats.launches_of(every, POINT), _values(every[study.throughput])
    medians = launches.medians(speeds)
    own = baseline_rows(points)
    common = dict(zip(every["options"][len(runs) :], launches.point[len(runs) :], strict=True))
    of_options = points["options"].map(common).fillna(NONE).to_numpy(dtype=np.int64)
    for suffix, baseline in (("", own), ("_common", of_options)):
        known = np.flatnonzero(baseline != NONE)
        speedup = np.full((3, len(points)), np.nan)
        speedup[0, known] = medians[known] / medians[baseline[known]]
        speedup[1:, known] = np.exp(launches.differences(np.log(speeds), known, baseline[known]))
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


def _common_launches(runs: pd.DataFrame, throughput: str) -> Iterator[pd.DataFrame]:
    """Yield for each set of options the runs on 1 worker as one point: a launch for each repeat.

    Its throughput is the geometric mean over the series that are not shown to be slower than the fastest one:
    the faster of two equal medians lies 3 to 4 % too high at a noise of 10 %. Where there are fewer than 3
    launches the fastest series is taken alone. None where a framework has no known run on 1 worker.
    """
    for options, own in runs.groupby("options", sort=False):
        alone = own[own["workers"] == 1]
        if set(alone["framework"]) != set(own["framework"]) or alone[throughput].isna().any():
            continue
        logs = alone[throughput].astype(float).map(math.log)
        series = [each for _, each in logs.groupby([alone["framework"], alone["knobs"]], sort=False)]
        fastest = max(series, key=np.median)
        kept = [each for each in series if each is fastest or _is_as_fast(_values(each), _values(fastest))]
        of_repeats = pd.concat(kept).groupby(alone["repeat"]).mean()
        point = {"options": options, "framework": COMMON, "knobs": "", "workers": 1}
        yield pd.DataFrame({"repeat": of_repeats.index, throughput: np.exp(of_repeats.to_numpy())}).assign(
            **point
        )


def _is_as_fast(series: Array, fastest: Array) -> bool:
    if min(len(series), len(fastest)) < FEWEST_REPEATS:
        return False
    test = stats.welch(stats.student(series), stats.student(fastest))
    return bool(stats.probability(test) > SLOWER_SIGNIFICANCE)


def slowed_on_one(study: Study, row: Row) -> str:
    """Return what shows that 1 worker was slower than each worker of this point; "" where nothing does.

    Batches are equal, so computing an image takes as long; a smaller part of the data shortens its loading
    alone. What is shown explains half of an efficiency of more than 1, and is more than chance.
    """
    own = (study.runs["options"] == row["options"]) & (study.runs["framework"] == row["framework"])
    sides = [study.runs[own & (study.runs["workers"] == workers)] for workers in (1, row["workers"])]
    if set(sides[0]["run"]) & set(stats.kept_though_disturbed(study)["run"]):
        return "other programs or stalls disturbed them"
    budgets = study.budgets.assign(run=study.budgets["run"].astype(str))
    compute = budgets["forward_seconds"].astype(float) + budgets["backward_seconds"].astype(float)
    per_image = compute.groupby(budgets["run"]).sum(min_count=1) / budgets.groupby("run")["images"].first()
    clock = budgets["frequency_mhz"].astype(float).groupby(budgets["run"]).mean()
    least = math.log(row["efficiency_common"]) / 2
    for slowness, words in ((per_image, COMPUTED), (1 / clock, CLOCKED)):
        alone, several = (np.log(_values(side["run"].map(slowness).dropna())) for side in sides)
        longer = alone.mean() - several.mean() if len(alone) and len(several) else 0.0
        if longer > 0 and stats.apart(alone, several, least):
            return words.format(100 * math.expm1(longer))
    return ""


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
    """Yield that some points have too few repeats for an interval."""
    if points.empty:
        return
    fewest = int(points["repeats"].min())
    if fewest < FEWEST_REPEATS:
        needed = FEWEST_REPEATS
        yield f"an interval needs at least {needed} repeats of a point; the fewest here: {fewest}"


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
    study = study.timed
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
