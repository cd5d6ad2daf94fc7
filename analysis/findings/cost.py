"""Costs of a point: worker-hours and node-hours per run, per epoch and to a stated IoU, and the Pareto set.

Time is the training clock of the record: the seconds of the epochs, the warm-up included, without start,
evaluation and checkpoints. Worker-hours are workers times these hours, node-hours distinct hosts times them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.score import Score
from analysis.stats import NOT_NEGATIVE, Interval, median_intervals, timed
from analysis.study import NAN, POINT, SECONDS_PER_HOUR, Study

CLOCK = "training seconds only: without start, evaluation and checkpoints"
# Targets are multiples of 0.01: finer ones would differ between studies for no reason.
STEPS_OF_IOU = 100
# Of such a step: 0.58 - 0.01 is a little less than 0.57.
ROUNDING = 1e-6
# Sums of the same seconds in another order differ from the 15th digit on.
DIGITS_COMPARED = 9
LAUNCH_COLUMNS = ("workers", "nodes", "training_seconds", "epoch_seconds", "to_target")
CURVE_COLUMNS = [*POINT, "repeat", "run", "training_seconds", "worker_hours", "iou"]
PER_RUN = ("training_seconds", "worker_hours", "node_hours")
TO_TARGET = ("seconds_to_target", "worker_hours_to_target", "node_hours_to_target")
PER_EPOCH = ("worker_hours_per_epoch", "node_hours_per_epoch")

Floats = NDArray[np.float64]
# Of each launch of a point, in order: LAUNCH_COLUMNS.
PointLaunches = Mapping[str, Floats]


@dataclass(frozen=True)
class Target:
    """The IoU to reach (NaN: none can be stated), where it comes from or why there is none; what it means."""

    iou: float
    source: str
    meaning: str


def cost_table(study: Study) -> pd.DataFrame:
    """Return one row per point, in the order of the study's runs.

    Columns: options, framework, knobs, workers, `nodes` (NaN where unknown or where repeats differ); with
    `_low` and `_high`, 95 % over launches: PER_RUN and TO_TARGET; PER_EPOCH (from the epochs after the
    warm-up); `target_iou`, `runs_to_target` (how many runs reached it), `pareto` and `pareto_of` (the pair
    of numbers that the set is of). Medians over launches; seconds and hours.

    A run that never reaches the target is censored: it takes longer than it trained. The median is still
    known where more than half of the runs reach the target and no censored run stopped before that median;
    otherwise it is NaN. Its interval is unknown as soon as one run is censored. Runs are those that count
    for speed.
    """
    targets = {options: target_of(study, options).iou for options in study.runs["options"].unique()}
    study = timed(study)
    launches = _launches_by_point(study, targets)
    rows = [
        dict(zip(POINT, point, strict=True)) | _per_epoch(of_point) | {"target_iou": targets[str(point[0])]}
        for point, of_point in launches.items()
    ]
    table = pd.DataFrame(rows, columns=_columns())
    _add_costs(table, list(launches.values()), PER_RUN, "training_seconds")
    _add_costs(table, list(launches.values()), TO_TARGET, "to_target")
    return _with_pareto(table, study)


def target_of(study: Study, options: str = "") -> Target:
    """Return the IoU that times and costs of a set of options are measured to.

    It is `target_iou` of the study's criteria, or what every run on 1 worker, real or played, reaches at
    its best evaluation, less the margin, to 0.01 below: what more workers must reach as well. There is none
    where one of these runs has no known IoU, or the test images are unknown.
    """
    if not study.provenance_known:
        return Target(NAN, "the test images of these logs are unknown", "")
    if study.criteria.target_iou is not None:
        return Target(study.criteria.target_iou, "stated by the study", _meaning(study))
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
    return Target(target, "what every run on 1 worker reaches, less the margin", _meaning(study))


def iou_curves(study: Study) -> pd.DataFrame:
    """Return the IoU of every evaluation of every run, over training seconds and worker-hours: CURVE_COLUMNS.

    Empty where the test images are unknown.
    """
    evaluations = study.evaluations if study.provenance_known else study.evaluations.iloc[:0]
    curves = study.runs[[*POINT, "repeat", "run"]].merge(
        evaluations[["run", "training_seconds", "iou"]], on="run"
    )
    curves["worker_hours"] = curves["workers"] * curves["training_seconds"] / SECONDS_PER_HOUR
    return curves[CURVE_COLUMNS]


def pareto(times: Floats, costs: Floats) -> NDArray[np.bool_]:
    """Return which of these points no other beats: none is as fast and as cheap, and better in one of both.

    Values are compared to nine digits, so that rounding does not decide between equals. A point with an
    unknown value is neither in the set nor compared.
    """
    time = _rounded(times)
    cost = _rounded(costs)
    no_worse = (time[:, None] <= time) & (cost[:, None] <= cost)
    better = (time[:, None] < time) | (cost[:, None] < cost)
    known: NDArray[np.bool_] = ~np.isnan(time) & ~np.isnan(cost)
    return known & ~(no_worse & better).any(axis=0)


def _rounded(values: Floats) -> Floats:
    return np.array([float(f"{value:.{DIGITS_COMPARED}g}") for value in values], dtype=np.float64)


def _meaning(study: Study) -> str:
    """Return what a time to the target is: a run's IoU is known only where it was evaluated."""
    if (study.evaluations.groupby("run").size() <= 1).any():
        return (
            "an upper bound: some runs were evaluated only after training; "
            "evaluate_every in the study's table training evaluates during it"
        )
    return "until the first evaluation that reaches it, so up to one evaluation interval late"


def _seconds_to(study: Study, targets: Mapping[str, float]) -> "pd.Series[float]":
    """Return training seconds of each run until its first evaluation of its target; infinite for never."""
    of_runs = study.runs.set_index("run")["options"].map(targets).astype(float)
    of_evaluations = study.evaluations["run"].map(of_runs).astype(float)
    reached = study.evaluations[study.evaluations["iou"] >= of_evaluations]
    first = reached.groupby("run")["training_seconds"].min()
    seconds = study.runs["run"].map(first).astype(float).fillna(math.inf)
    return seconds.where(of_runs.notna().to_numpy())


def _launches_by_point(study: Study, targets: Mapping[str, float]) -> dict[tuple[object, ...], PointLaunches]:
    runs = study.runs.assign(
        epoch_seconds=1 / study.runs["epochs_per_second"], to_target=_seconds_to(study, targets)
    )
    return {
        point: {name: _values(launches[name]) for name in LAUNCH_COLUMNS}
        for point, launches in runs.groupby(POINT, sort=False)
    }


def _per_epoch(launches: PointLaunches) -> dict[str, object]:
    """Return nodes, costs of an epoch after the warm-up, and how many runs reach the target."""
    hours = launches["epoch_seconds"] / SECONDS_PER_HOUR
    nodes = launches["nodes"]
    return {
        "nodes": float(nodes[0]) if (nodes == nodes[0]).all() else NAN,
        "worker_hours_per_epoch": float(np.median(launches["workers"] * hours)),
        "node_hours_per_epoch": float(np.median(nodes * hours)),
        "runs_to_target": int(np.isfinite(launches["to_target"]).sum()),
    }


def _add_costs(
    table: pd.DataFrame, points: Sequence[PointLaunches], names: Sequence[str], clock: str
) -> None:
    """Add medians and intervals of the seconds, worker-hours and node-hours of this clock."""
    intervals = median_intervals([point[clock] for point in points], NOT_NEGATIVE)
    for name, unit in zip(names, (None, "workers", "nodes"), strict=True):
        factors = [_hours_per_second(point, unit) for point in points]
        values = _scaled_times(points, factors, clock)
        table[name] = list(map(_median, values, _scaled_times(points, factors, "training_seconds")))
        table[[f"{name}_low", f"{name}_high"]] = np.reshape(_scaled(intervals, factors, values), (-1, 2))


def _scaled_times(points: Sequence[PointLaunches], factors: Sequence[Floats], clock: str) -> list[Floats]:
    return [factor * point[clock] for factor, point in zip(factors, points, strict=True)]


def _hours_per_second(point: PointLaunches, unit: str | None) -> Floats:
    """Return worker-hours or node-hours per second of each launch; 1 for seconds themselves."""
    return np.ones(1) if unit is None else point[unit] / SECONDS_PER_HOUR


def _scaled(
    intervals: Sequence[Interval], factors: Sequence[Floats], values: Sequence[Floats]
) -> list[Interval]:
    """Return the intervals times their factor; of the values where the factor differs between launches."""
    first = [float(factor[0]) for factor in factors]
    scaled = [(low * factor, high * factor) for (low, high), factor in zip(intervals, first, strict=True)]
    varying = [point for point, factor in enumerate(factors) if not (factor == factor[0]).all()]
    resampled = median_intervals([values[point] for point in varying], NOT_NEGATIVE)
    for point, interval in zip(varying, resampled, strict=True):
        scaled[point] = interval
    return scaled


def _median(values: Floats, at_least: Floats) -> float:
    """Return the median, if it holds whatever runs of infinite value would have needed, at least these."""
    median = float(np.median(values))
    known = math.isfinite(median) and bool((at_least[np.isinf(values)] >= median).all())
    return median if known else NAN


def _with_pareto(points: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Mark the points that no other of the same options beats in time and in worker-hours, by medians."""
    points = points.assign(pareto=False, pareto_of="")
    epochs = study.runs["run"].map(study.epochs.groupby("run").size())
    for options, group in points.groupby("options", sort=False):
        trained = epochs[study.runs["options"] == options].unique()
        time, name = _time_of(group, _values(pd.Series(trained, dtype=float)), study.score)
        points.loc[group.index, "pareto"] = pareto(time, time * _values(group["workers"]))
        points.loc[group.index, "pareto_of"] = f"seconds and worker-hours {name}"
    return points


def _time_of(points: pd.DataFrame, epochs: Floats, score: Score) -> tuple[Floats, str]:
    """Return seconds by which all these points may be compared, and what they are seconds of.

    That to the target where it is known for all of them; else that of a run, where all trained equally many
    epochs; else that of an epoch. One kind of time for all, never a mixture.
    """
    to_target = _values(points["seconds_to_target"])
    if np.isfinite(to_target).all():
        return to_target, f"to {score.with_article} of {points['target_iou'].iloc[0]:g}"
    if len(epochs) == 1:
        return _values(points["training_seconds"]), f"of {epochs[0]:g} epochs"
    per_epoch = _values(points["worker_hours_per_epoch"]) * SECONDS_PER_HOUR / _values(points["workers"])
    return per_epoch, "of one epoch"


def _columns() -> list[str]:
    return [
        *POINT, "nodes", *_bounds_of(PER_RUN), *PER_EPOCH, "target_iou", *_bounds_of(TO_TARGET),
        "runs_to_target",
    ]  # fmt: skip


def _bounds_of(names: tuple[str, ...]) -> list[str]:
    return [f"{name}{suffix}" for name in names for suffix in ("", "_low", "_high")]


def _values(values: "pd.Series[float]") -> Floats:
    return np.asarray(values, dtype=np.float64)
