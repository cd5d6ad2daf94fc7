"""What a point costs: worker-hours and node-hours per run, per epoch and to a stated IoU, and the Pareto set.

Time is the training clock of the record: the seconds of the epochs, the warm-up included, without start,
evaluation and checkpoints. Worker-hours are workers times these hours, node-hours distinct hosts times them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.intervals import NOT_NEGATIVE, Interval, median_intervals
from analysis.statistics.timed import timed
from analysis.study import NAN, POINT, Study

CLOCK = "training seconds only: without start, evaluation and checkpoints"
SECONDS_PER_HOUR = 3600
STEPS_OF_IOU = 100
DIGITS_COMPARED = 9
CURVE_COLUMNS = [*POINT, "repeat", "run", "training_seconds", "worker_hours", "iou"]
PER_RUN = ("training_seconds", "worker_hours", "node_hours")
TO_TARGET = ("seconds_to_target", "worker_hours_to_target", "node_hours_to_target")
PER_EPOCH = ("worker_hours_per_epoch", "node_hours_per_epoch")

Floats = NDArray[np.float64]
RunConfig = Mapping[str, Floats]


@dataclass(frozen=True)
class Target:
    """The IoU to reach (NaN: none can be stated), where it comes from, and what the time to it means."""

    iou: float
    source: str
    meaning: str


def cost_table(study: Study) -> pd.DataFrame:
    """One row per point, in the order of the study's runs.

    Columns: options, framework, knobs, workers, `nodes` (NaN where unknown or where repeats differ); with
    `_low` and `_high`, 95 % over launches: PER_RUN and TO_TARGET; PER_EPOCH (from the epochs after the
    warm-up); `target_iou`, `runs_to_target` (how many runs reached it), `pareto` and `pareto_of` (the pair
    of numbers that the set is of). Medians over launches; seconds and hours.

    A run that never reaches the target is censored: it takes longer than it trained. The median is still
    known where more than half of the runs reach the target and no censored run stopped before that median;
    otherwise it is NaN. Its interval is unknown as soon as one run is censored. Runs are those that count
    for speed; the target is one that every run reaches.
    """
    target = target_of(study).iou
    study = timed(study)
    runs = {name: _values(study.runs[name]) for name in ("workers", "nodes", "training_seconds")}
    runs["epoch_seconds"] = 1 / _values(study.runs["epochs_per_second"])
    runs["to_target"] = _seconds_to(study, target)
    members: dict[tuple[object, ...], list[int]] = {}
    for place, key in enumerate(zip(*(study.runs[name] for name in POINT), strict=True)):
        members.setdefault(key, []).append(place)
    points = [{name: values[places] for name, values in runs.items()} for places in members.values()]
    rows: list[dict[str, object]] = [
        dict(zip(POINT, key, strict=True)) | _epoch(point) | {"target_iou": target}
        for key, point in zip(members, points, strict=True)
    ]
    for names, seconds in ((PER_RUN, "training_seconds"), (TO_TARGET, "to_target")):
        for row, costs in zip(rows, _costs(points, names, seconds), strict=True):
            row.update(costs)
    return _with_pareto(pd.DataFrame(rows, columns=_columns()), study)


def target_of(study: Study) -> Target:
    """The IoU that times and costs are measured to.

    It is `target_iou` of the study's claims, or the highest multiple of 0.01 that every used run reaches at
    its best evaluation. There is none where one run has no known IoU, or the test images are unknown.
    """
    if not study.provenance_known:
        return Target(NAN, "none: the test images of these logs are unknown", "")
    stated = study.criteria.target_iou
    if stated is not None:
        return Target(stated, "stated by the study", _meaning(study))
    best = study.evaluations.groupby("run")["iou"].max().reindex(study.runs["run"])
    lowest = float(best.min(skipna=False)) if len(best) else NAN
    reached = [step / STEPS_OF_IOU for step in range(1, STEPS_OF_IOU + 1) if step / STEPS_OF_IOU <= lowest]
    if not reached:
        return Target(NAN, "none: not every run has an IoU of at least 0.01", "")
    return Target(reached[-1], "the highest multiple of 0.01 that every run reaches", _meaning(study))


def iou_curves(study: Study) -> pd.DataFrame:
    """IoU of every evaluation of every run, over training seconds and worker-hours: CURVE_COLUMNS.

    Empty where the test images are unknown.
    """
    evaluations = study.evaluations if study.provenance_known else study.evaluations.iloc[:0]
    curves = study.runs[[*POINT, "repeat", "run"]].merge(
        evaluations[["run", "training_seconds", "iou"]], on="run"
    )
    curves["worker_hours"] = curves["workers"] * curves["training_seconds"] / SECONDS_PER_HOUR
    return curves[CURVE_COLUMNS]


def pareto(times: Floats, costs: Floats) -> NDArray[np.bool_]:
    """Which of these points no other point beats: none is as fast and as cheap, and better in one of both.

    Values are compared to nine digits, so that rounding does not decide between equals. A point with an
    unknown value is neither in the set nor compared.
    """
    time, cost = _rounded(times), _rounded(costs)
    no_worse = (time[:, None] <= time) & (cost[:, None] <= cost)
    better = (time[:, None] < time) | (cost[:, None] < cost)
    known: NDArray[np.bool_] = ~np.isnan(time) & ~np.isnan(cost)
    return known & ~(no_worse & better).any(axis=0)


def _rounded(values: Floats) -> Floats:
    return np.array([float(f"{value:.{DIGITS_COMPARED}g}") for value in values], dtype=np.float64)


def _meaning(study: Study) -> str:
    """What a time to the target is: a run's IoU is known only where it was evaluated."""
    if (study.evaluations.groupby("run").size() <= 1).any():
        return (
            "an upper bound: some runs were evaluated only after training; "
            "evaluate_every in the study's table training evaluates during it"
        )
    return "until the first evaluation that reaches it, so up to one evaluation interval late"


def _seconds_to(study: Study, target: float) -> Floats:
    """Training seconds of each run until its first evaluation of at least this IoU; infinite for never."""
    if math.isnan(target):
        return np.full(len(study.runs), NAN)
    reached = study.evaluations[study.evaluations["iou"] >= target]
    first = reached.groupby("run")["training_seconds"].min()
    return _values(study.runs["run"].map(first).astype(float).fillna(math.inf))


def _epoch(point: RunConfig) -> dict[str, object]:
    """Nodes, costs of an epoch after the warm-up, and how many runs reach the target."""
    hours, nodes = point["epoch_seconds"] / SECONDS_PER_HOUR, point["nodes"]
    return {
        "nodes": float(nodes[0]) if (nodes == nodes[0]).all() else NAN,
        "worker_hours_per_epoch": float(np.median(point["workers"] * hours)),
        "node_hours_per_epoch": float(np.median(nodes * hours)),
        "runs_to_target": int(np.isfinite(point["to_target"]).sum()),
    }


def _costs(points: Sequence[RunConfig], names: tuple[str, ...], seconds: str) -> list[dict[str, float]]:
    """Median and interval of these seconds, worker-hours and node-hours, for each point."""
    found: list[dict[str, float]] = [{} for _ in points]
    intervals = median_intervals([point[seconds] for point in points], NOT_NEGATIVE)
    for name, unit in zip(names, (None, "workers", "nodes"), strict=True):
        factors = [np.ones(1) if unit is None else point[unit] / SECONDS_PER_HOUR for point in points]
        values = [factor * point[seconds] for factor, point in zip(factors, points, strict=True)]
        bounds = _scaled(intervals, factors, values)
        for row, point, factor, value, (low, high) in zip(
            found, points, factors, values, bounds, strict=True
        ):
            median = _median(value, factor * point["training_seconds"])
            row.update({name: median, f"{name}_low": low, f"{name}_high": high})
    return found


def _scaled(
    intervals: Sequence[Interval], factors: Sequence[Floats], values: Sequence[Floats]
) -> list[Interval]:
    """The intervals times their factor; drawn from the values where the factor differs between launches."""
    found = [
        (low * factor[0], high * factor[0]) for (low, high), factor in zip(intervals, factors, strict=True)
    ]
    varying = [place for place, factor in enumerate(factors) if not (factor == factor[0]).all()]
    for place, interval in zip(
        varying, median_intervals([values[each] for each in varying], NOT_NEGATIVE), strict=True
    ):
        found[place] = interval
    return found


def _median(values: Floats, at_least: Floats) -> float:
    """The median, if it is the same whatever the runs of infinite value would have needed, at least these."""
    median = float(np.median(values))
    known = math.isfinite(median) and bool((at_least[np.isinf(values)] >= median).all())
    return median if known else NAN


def _with_pareto(points: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Mark the points that no other of the same options beats in time and in worker-hours, by medians."""
    points = points.assign(pareto=False, pareto_of="")
    epochs = study.runs["run"].map(study.epochs.groupby("run").size())
    for options, group in points.groupby("options", sort=False):
        trained = epochs[study.runs["options"] == options].unique()
        time, name = _time_of(group, _values(pd.Series(trained, dtype=float)))
        points.loc[group.index, "pareto"] = pareto(time, time * _values(group["workers"]))
        points.loc[group.index, "pareto_of"] = f"seconds and worker-hours {name}"
    return points


def _time_of(points: pd.DataFrame, epochs: Floats) -> tuple[Floats, str]:
    """Seconds by which all these points may be compared, and what they are seconds of.

    That to the target where it is known for all of them; else that of a run, where all trained equally many
    epochs; else that of an epoch. One kind of time for all, never a mixture.
    """
    to_target = _values(points["seconds_to_target"])
    if np.isfinite(to_target).all():
        return to_target, f"to an IoU of {points['target_iou'].iloc[0]:g}"
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
