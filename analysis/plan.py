"""Time and worker-hours to the target IoU at every number of workers that was trained as or with.

Epochs to the target come from the IoU during training, of played and real runs alike; seconds of an epoch
only from real runs: measured, or predicted. Options that decide what is learned, but not how fast
(SPEED_NEUTRAL), may differ between both: a few epochs of real runs give the speed of a long training.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.options import OPERATIONAL, flat_options
from analysis.points import target_of
from analysis.predict import UNSEEN_LINK, Series, StepTime, all_series
from analysis.stats import NOT_NEGATIVE, UNKNOWN_INTERVAL, median_intervals
from analysis.study import NAN, POINT, SECONDS_PER_HOUR, SERIES, Study, bounded
from unet_scaling.study.record_lines import Header

PLAN_COLUMNS = [
    *POINT, "target_iou", "runs", "runs_to_target",
    *bounded("epochs_to_target", "seconds_per_epoch", "seconds_to_target", "worker_hours_to_target"),
    "speed", "why",
]  # fmt: skip
ONLY_AT_THE_END = "known only after training: set training.evaluate_every to see when it is reached"
NO_SPEED = "no real run of these data, model and batch gives the speed"
SPEED_NEUTRAL = frozenset((
    *OPERATIONAL, "data.split_seed", "training.epochs", "training.learning_rate", "training.rate_scaling",
    "training.warmup_epochs", "training.schedule", "training.evaluate_every", "training.plays",
))  # fmt: skip


@dataclass(frozen=True)
class KnownSpeed:
    """Images per second at a number of workers, with the interval; `source`: measured, predicted or none."""

    bounded: Sequence[float] = (NAN, NAN, NAN)
    source: str = ""
    why: str = NO_SPEED


class RealSpeeds:
    """The speeds that the real runs of a study give; `points` are those of `points.summarise`."""

    def __init__(self, study: Study, points: pd.DataFrame) -> None:
        self.keys: dict[tuple[str, ...], Hashable] = {}
        for part in filter(None, (study, study.played)):
            for row in part.runs.drop_duplicates(SERIES).to_dict("records"):
                key = tuple(str(row[name]) for name in SERIES)
                self.keys[key] = _speed_key(part.headers[row["run"]])
        self.real = [tuple(map(str, key)) for key in study.runs[SERIES].drop_duplicates().to_numpy()]
        known = points[points["images_per_second"].notna()].to_dict("records")
        self.measured = {tuple(row[name] for name in POINT): row for row in known}
        self.series = {each.key: each for each in all_series(study) if not each.why_unpredictable}
        self.fitted: dict[tuple[str, ...], StepTime] = {}

    def at(self, series: tuple[str, ...], workers: int) -> KnownSpeed:
        """Return the speed of a series (options, framework, knobs), or of one as fast, at so many workers."""
        alike = sorted(
            (key for key in self.real if self.keys[key] == self.keys.get(series)),
            key=lambda key: key != series,
        )
        for key in alike:
            row = self.measured.get((*key, workers))
            if row is not None:
                return KnownSpeed([row[name] for name in bounded("images_per_second")], "measured", "")
        for key in alike:
            if key in self.series:
                return self._predicted(self.series[key], workers)
        return KnownSpeed()

    def _predicted(self, series: Series, workers: int) -> KnownSpeed:
        if series.key not in self.fitted:
            self.fitted[series.key] = series.fit()
        forecast = self.fitted[series.key].at(series.counts.at(workers), series.work)
        within_one_node = bool((series.counts.nodes == 1).all())
        unseen = f"{UNSEEN_LINK}: it holds within one node only" if within_one_node else ""
        return KnownSpeed(forecast.throughputs, "predicted", unseen)


def _speed_key(header: Header) -> Hashable:
    """Return what decides the speed of a run besides its workers."""
    config = header.config
    options = {key: value for key, value in flat_options(config).items() if key not in SPEED_NEUTRAL}
    return config.framework, header.manifest_sha256, header.train_images, tuple(options.items())


def plan_table(
    study: Study, points: pd.DataFrame, diverged: Mapping[tuple[object, ...], int]
) -> pd.DataFrame:
    """Return one row per number of workers of every series that has played runs: PLAN_COLUMNS.

    `points` are those of `points.summarise`, `diverged` the runs of each point that diverged. Medians over
    runs with intervals. The bounds of a product of epochs and seconds are the products of their bounds: it
    holds at least as often as both together do.
    """
    if study.played is None:
        return pd.DataFrame(columns=PLAN_COLUMNS)
    parts = [
        part.evaluations[["run", "epochs", "iou"]]
        .merge(part.runs[[*POINT, "run", "images_per_epoch"]], on="run")
        .assign(played=part is study.played)
        for part in (study, study.played)
        if len(part.runs)
    ]
    if not parts:
        return pd.DataFrame(columns=PLAN_COLUMNS)
    evaluated = pd.concat(parts, ignore_index=True)
    speeds = RealSpeeds(study, points)
    rows = []
    for key, of_series in evaluated.groupby(SERIES, sort=False):
        series = tuple(map(str, key))
        for number, of in of_series.groupby("workers") if of_series["played"].any() else ():
            workers = int(str(number))
            point = (*series, workers)
            rows.append((*point, *_cells(study, of, speeds.at(series, workers), diverged.get(point, 0))))
    return pd.DataFrame(rows, columns=PLAN_COLUMNS)


def _cells(study: Study, evaluated: pd.DataFrame, speed: KnownSpeed, diverged: int) -> tuple[object, ...]:
    """Return the columns of a point behind its key."""
    first = evaluated.iloc[0]
    target = target_of(study, str(first["options"]))
    runs, reached, epochs = _epochs_to(target.iou, evaluated, diverged)
    images = float(evaluated["images_per_epoch"].median())
    per_second, low, high = speed.bounded
    seconds = [images / each for each in (per_second, high, low)]
    totals = [each * of_one for each, of_one in zip(epochs, seconds, strict=True)]
    hours = [int(first["workers"]) * total / SECONDS_PER_HOUR for total in totals]
    title = study.score.title
    no_target = f"no {title} to reach: {target.source}" if math.isnan(target.iou) else ""
    is_single = bool((evaluated.groupby("run").size() <= 1).any())
    lacking = (no_target, f"{title} {ONLY_AT_THE_END}" if is_single else "", speed.why)
    why = "; ".join(filter(None, lacking))
    return target.iou, runs, reached, *epochs, *seconds, *totals, *hours, speed.source, why


def _epochs_to(target: float, evaluated: pd.DataFrame, diverged: int) -> tuple[int, int, list[float]]:
    """Return the runs of a point, how many reach the target, and the median epochs to it with its interval.

    A diverged run never reaches it. The median is unknown where a run that stopped before may have been
    faster, its interval as soon as one run does not reach the target.
    """
    trained = evaluated.groupby("run")["epochs"].max().astype(float)
    needed = evaluated[evaluated["iou"] >= target].groupby("run")["epochs"].min().reindex(trained.index)
    if not math.isnan(target):
        needed = needed.fillna(math.inf)
    epochs = np.append(needed.to_numpy(float), np.full(diverged, math.inf))
    ended = np.append(trained.to_numpy(), np.full(diverged, math.inf))
    reached = int(np.isfinite(epochs).sum())
    median = float(np.median(epochs))
    if not (math.isfinite(median) and (ended[np.isinf(epochs)] >= median).all()):
        median = NAN
    interval = median_intervals([epochs], NOT_NEGATIVE)[0] if reached == len(epochs) else UNKNOWN_INTERVAL
    return len(epochs), reached, [median, *interval]
