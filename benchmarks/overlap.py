"""Truths in which all-reduce hides behind the backward pass until it no longer does: curves with a knee.

Every worker draws its own steps. A message starts when the slowest worker has its gradients ready, which is
not what the timeline of analysis/prediction assumes: that adds the slowest worker to the exposed time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from analysis.arrays import Array
from analysis.loading.ping_pongs import Link
from analysis.prediction.averaging import AverageForecast, Predictor
from analysis.prediction.scaling_laws import Counts
from analysis.prediction.series import Series
from analysis.prediction.step_time import EDGES
from analysis.prediction.timeline import Buckets, Cycles, Gradients, Schedule
from analysis.prediction.timeline_evidence import TimedLink, TimelineEvidence

FORWARD_SECONDS = 0.030
BACKWARD_SECONDS = 0.060
PARAMETER_POINTS = 20
# Bytes of a gradient over those of the one ready before it: most bytes are ready early, and can hide.
NEXT_SIZE_RATIO = 0.6
# Relative spread of a worker's steps.
STEP_SPREAD_SHARE = 0.03
PROFILE_STEPS = 50
TRUTH_STEPS = 2000
# Relative error with which a ping-pong times a link, and how many there are.
LINK_ERROR_SHARE = 0.05
PING_PONG_REPEATS = 5


@dataclass(frozen=True)
class OverlapTruth:
    """What every worker sends, how, and over which link."""

    gradient_bytes: float
    schedule: Schedule
    link: Link

    def steps(self, workers: int, count: int, random: np.random.Generator) -> tuple[Array, Gradients]:
        """Draw steps of so many workers: when the slowest of them began its backward pass, and its gradients.

        Times are those at which the slowest worker is done with each part.
        """
        pace = np.exp(STEP_SPREAD_SHARE * random.standard_normal((count, workers))).max(axis=1)
        ready = np.linspace(1 / PARAMETER_POINTS, 1, PARAMETER_POINTS) * BACKWARD_SECONDS
        share = NEXT_SIZE_RATIO ** np.arange(PARAMETER_POINTS)
        size = self.gradient_bytes * share / share.sum()
        return pace * FORWARD_SECONDS, Gradients(pace[:, None] * ready, size)

    def seconds(self, workers: int) -> float:
        """Return the mean seconds of a step."""
        forward, gradients = self.steps(workers, TRUTH_STEPS, np.random.default_rng(workers))
        last = gradients.ready.max(axis=1)
        exposed = self.schedule.exposed_seconds(gradients, workers, self.link) if workers > 1 else 0.0
        return float((forward + last + exposed).mean())


# Up to 4 workers nearly all is hidden; from 8 on it no longer is.
OVERLAP_TRUTHS: Mapping[str, OverlapTruth] = {
    "two buckets": OverlapTruth(30e6, Buckets((26e6,)), Link(1e-3, 1.2e9)),
    "many buckets": OverlapTruth(30e6, Buckets((2e6,)), Link(3e-4, 1.2e9)),
    "cycles of 5 ms": OverlapTruth(30e6, Cycles(period_seconds=0.005), Link(2.5e-4, 1.2e9)),
}


@cache
def _true_seconds(name: str, workers: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(OVERLAP_TRUTHS[name].seconds(count) for count in workers)


def overlap_series(
    name: str, workers: Sequence[int], noise: tuple[float, float, int], random: np.random.Generator
) -> Series:
    """Return a study of one series; `noise` is that of a launch and of a point, and launches of a point."""
    truth = OVERLAP_TRUTHS[name]
    of_launch, of_point, launches = noise
    seconds = np.array(_true_seconds(name, tuple(workers)))
    points = seconds * np.exp(of_point * random.standard_normal(len(seconds)))
    times = tuple(point * np.exp(of_launch * random.standard_normal(launches)) for point in points)
    counts = Counts(np.array(workers, dtype=np.float64), np.ones(len(workers)))
    measured = np.array([count / np.median(each) for count, each in zip(workers, times, strict=True)])
    return Series(("", "pytorch_native", ""), counts, times, 1.0, measured, _evidence(truth, random))


def _evidence(truth: OverlapTruth, random: np.random.Generator) -> TimelineEvidence:
    forward, gradients = truth.steps(1, PROFILE_STEPS, random)
    errors = np.exp(LINK_ERROR_SHARE * random.standard_normal((PING_PONG_REPEATS, 2)))
    links = (
        Link(truth.link.latency_seconds * error[0], truth.link.bytes_per_second * error[1])
        for error in errors
    )
    return TimelineEvidence(
        gradients=gradients,
        work_seconds=forward + gradients.ready.max(axis=1),
        schedule=truth.schedule,
        links=tuple(TimedLink(link, 2, between_nodes=False, is_probe=False) for link in links),
    )


def overlap_coverage(
    name: str, workers: Sequence[int], noise: tuple[float, float, int], studies: int
) -> dict[str, tuple[float, float]]:
    """Return, by model and for their average, the share of intervals that hold, and the median error.

    Predicted at the last of these counts from all others.
    """
    random = np.random.default_rng(1)
    held: dict[str, list[bool]] = {}
    errors: dict[str, list[float]] = {}
    for _ in range(studies):
        series = overlap_series(name, workers, noise, random)
        measured = float(np.median(series.launches[-1]))
        forecast = Predictor(series, len(workers) - 1).at(series.counts[-1:])
        for model, seconds, (low, high) in _said(forecast):
            held.setdefault(model, []).append(low <= measured <= high)
            errors.setdefault(model, []).append(abs(seconds / measured - 1))
    return {model: (float(np.mean(held[model])), float(np.median(errors[model]))) for model in held}


def _said(forecast: AverageForecast) -> Iterator[tuple[str, float, tuple[float, float]]]:
    for model in forecast.models:
        low, high = np.quantile(model.draws, EDGES)
        yield model.model, model.seconds, (float(low), float(high))
    yield "average", forecast.seconds, forecast.interval
