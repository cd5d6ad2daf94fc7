"""Time and worker-hours to the target IoU at every number of workers that was trained as or with.

Epochs to the target come from the IoU during training, of played and real runs alike; seconds of an epoch
only from real runs, measured or predicted (speeds.py).
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.findings.cost import Target, target_of
from analysis.played.points import points_of
from analysis.played.speeds import KnownSpeed, RealSpeeds
from analysis.score import Score
from analysis.stats import NOT_NEGATIVE, UNKNOWN_INTERVAL, Interval, median_intervals
from analysis.study import NAN, POINT, SECONDS_PER_HOUR, SERIES, Study

_BOUNDED = ("epochs_to_target", "seconds_per_epoch", "seconds_to_target", "worker_hours_to_target")
PLAN_COLUMNS = [
    *POINT, "target_iou", "runs", "runs_to_target",
    *(f"{name}{end}" for name in _BOUNDED for end in ("", "_low", "_high")), "speed", "why",
]  # fmt: skip
ONLY_AT_THE_END = "known only after training: set training.evaluate_every to see when it is reached"


@dataclass(frozen=True)
class TargetEpochs:
    """Epochs that each run of a point needs to the target IoU, infinite for never, and those it trained."""

    needed: Array
    trained: Array

    @property
    def reached(self) -> int:
        """How many runs reach the target."""
        return int(np.isfinite(self.needed).sum())

    @property
    def median(self) -> float:
        """Median over the runs; unknown where a run that stopped before may have been faster."""
        median = float(np.median(self.needed))
        known = math.isfinite(median) and (self.trained[np.isinf(self.needed)] >= median).all()
        return median if known else NAN

    @property
    def interval(self) -> Interval:
        """Interval of the median; unknown as soon as one run does not reach the target."""
        if self.reached < len(self.needed):
            return UNKNOWN_INTERVAL
        return median_intervals([self.needed], NOT_NEGATIVE)[0]


def plan_table(study: Study, points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per number of workers of every series that has played runs: PLAN_COLUMNS.

    `points` are those of `speedup.summarise`. Medians over runs with intervals. The bounds of a product of
    epochs and seconds are the products of their bounds: it holds at least as often as both together do.
    """
    evaluated = _evaluations(study)
    speeds = RealSpeeds(study, points)
    diverged = _diverged(study)
    rows = [
        row
        for key, of in evaluated.groupby(SERIES, sort=False)
        if of["played"].any()
        for row in _rows(study, speeds, tuple(map(str, key)), of, diverged)
    ]
    return pd.DataFrame(rows, columns=PLAN_COLUMNS)


def _evaluations(study: Study) -> pd.DataFrame:
    """Return every evaluation of played and real runs with the point of its run and images of an epoch."""
    parts = [
        part.evaluations[["run", "epochs", "iou"]]
        .merge(part.runs[[*POINT, "run", "images_per_epoch"]], on="run")
        .assign(played=part is study.played)
        for part in (study, study.played)
        if part is not None and len(part.runs)
    ]
    columns = ["run", "epochs", "iou", *POINT, "images_per_epoch", "played"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _rows(
    study: Study,
    speeds: RealSpeeds,
    series: tuple[str, ...],
    evaluated: pd.DataFrame,
    diverged: Counter[tuple[object, ...]],
) -> Iterator[dict[str, object]]:
    """Yield the row of each number of workers of a series."""
    target = target_of(study, series[0])
    for count, of in evaluated.groupby(evaluated["workers"].astype(int)):
        workers = int(str(count))
        point = (*series, workers)
        needed = _epochs_to(target.iou, of, diverged[point])
        key = dict(zip(POINT, point, strict=True))
        yield key | _row(study.score, target, needed, of, speeds.at(series, workers))


def _row(
    score: Score, target: Target, needed: TargetEpochs, evaluated: pd.DataFrame, speed: KnownSpeed
) -> dict[str, object]:
    """Return the columns of a point behind its key."""
    workers = int(evaluated["workers"].iloc[0])
    images = float(evaluated["images_per_epoch"].median())
    low, high = speed.interval
    seconds = (images / speed.images_per_second, images / high, images / low)
    no_target = f"no {score.title} to reach: {target.source}" if math.isnan(target.iou) else ""
    is_single = bool((evaluated.groupby("run").size() <= 1).any())
    lacking = (no_target, f"{score.title} {ONLY_AT_THE_END}" if is_single else "", speed.why)
    return (
        {"target_iou": target.iou, "runs": len(needed.needed), "runs_to_target": needed.reached}
        | _products(workers, (needed.median, *needed.interval), seconds)
        | {
            "speed": speed.source,
            "why": "; ".join(filter(None, lacking)),
        }
    )


def _diverged(study: Study) -> Counter[tuple[object, ...]]:
    """Return how many runs of each point diverged, of both kinds together."""
    diverged: Counter[tuple[object, ...]] = Counter()
    for point in points_of(study):
        diverged[(*point.series, point.seeds.workers)] += point.seeds.diverged
    return diverged


def _epochs_to(target: float, evaluated: pd.DataFrame, diverged: int) -> TargetEpochs:
    """Return the epochs to the target of all runs of a point; a diverged run never reaches it."""
    runs = evaluated.groupby("run")
    first = evaluated[evaluated["iou"] >= target].groupby("run")["epochs"].min()
    needed = first.reindex(runs["epochs"].max().index).astype(float)
    needed = needed.fillna(math.inf) if not math.isnan(target) else needed
    never = np.full(diverged, math.inf)
    trained = runs["epochs"].max().to_numpy(dtype=np.float64)
    return TargetEpochs(np.append(needed.to_numpy(), never), np.append(trained, never))


def _products(workers: int, epochs: Sequence[float], seconds: Sequence[float]) -> dict[str, float]:
    totals = [each * of_one for each, of_one in zip(epochs, seconds, strict=True)]
    values = {
        "epochs_to_target": epochs,
        "seconds_per_epoch": seconds,
        "seconds_to_target": totals,
        "worker_hours_to_target": [workers * total / SECONDS_PER_HOUR for total in totals],
    }
    return {
        f"{name}{end}": value
        for name, of in values.items()
        for end, value in zip(("", "_low", "_high"), of, strict=True)
    }
