"""Differences of IoU between two points, paired by repeat: their answer, and the evidence in words."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.statistics.intervals import (
    FEWEST_REPEATS,
    RECOMMENDED_REPEATS,
    UNKNOWN_INTERVAL,
    Interval,
    coverage,
    median_intervals,
)
from analysis.study import NAN, POINT, Study
from analysis.text import bracketed, count

MarginAnswer = Literal["yes", "no", "not shown"]
# Of 95 %, two-sided.
NORMAL_QUANTILE = 1.96
# The standard error of the median of normal values over that of their mean.
MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2)
# A study of more is out of reach: the number would only pretend to a plan.
MOST_SEEDS_ADVISED = 100


@dataclass(frozen=True)
class PointSeeds:
    """The IoU of each repeat of one point, how many images it is of, and how many of its runs diverged."""

    options: str
    framework: str
    knobs: str
    workers: int
    ious: Mapping[int, float]
    test_images: float
    diverged: int

    @property
    def values(self) -> Array:
        """IoU of its runs."""
        return np.array(list(self.ious.values()), dtype=np.float64)


@dataclass(frozen=True)
class Difference:
    """Paired differences of IoU: their number, median, its interval, and their standard deviation."""

    pairs: int = 0
    median: float = NAN
    interval: Interval = UNKNOWN_INTERVAL
    deviation: float = NAN

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.median:+.4f} {bracketed(low, high, '+.4f')}"


@dataclass(frozen=True)
class MarginTest:
    """Answer of the differences to a question with a margin.

    `slack` is how far their median lies inside the margin; `diverged` counts the diverged runs of each owner.
    """

    difference: Difference
    answer: MarginAnswer
    slack: float
    diverged: Mapping[str, int]

    @property
    def shown(self) -> MarginAnswer:
        """The answer; diverged runs have no IoU, so the others alone cannot show that nothing is lost."""
        return "not shown" if self.answer == "yes" and any(self.diverged.values()) else self.answer


def seeds_of(study: Study) -> list[PointSeeds]:
    """Return every point with the IoU of its repeats, in the order of the study's runs."""
    lost = study.left_out[study.left_out["state"] == "diverged"]
    diverged = {point: set(runs["repeat"]) for point, runs in lost.groupby(POINT)}
    return [
        _seeds_of_point(point, runs, diverged.get(point, set()))
        for point, runs in study.runs.groupby(POINT, sort=False)
    ]


def _seeds_of_point(point: Sequence[Any], runs: pd.DataFrame, diverged: set[int]) -> PointSeeds:
    options, framework, knobs, workers = point
    ious = dict(zip(runs["repeat"].tolist(), runs["iou"].astype(float).tolist(), strict=True))
    return PointSeeds(
        options=str(options),
        framework=str(framework),
        knobs=str(knobs),
        workers=int(workers),
        ious=ious,
        test_images=float(runs["test_images"].iloc[-1]),
        diverged=len(diverged - ious.keys()),
    )


def differences_of(pairs: Sequence[tuple[PointSeeds, PointSeeds] | None]) -> list[Difference]:
    """Return IoU of the first point of each pair minus that of the second, in the repeats that both have."""
    values = [np.array([]) if pair is None else _paired(*pair) for pair in pairs]
    intervals = median_intervals(values)
    return [_difference(paired, interval) for paired, interval in zip(values, intervals, strict=True)]


def _difference(values: Array, interval: Interval) -> Difference:
    if len(values) < 2:
        return Difference(len(values), float(values[0]) if len(values) else NAN)
    return Difference(len(values), float(np.median(values)), interval, float(np.std(values, ddof=1)))


def _paired(first: PointSeeds, second: PointSeeds) -> Array:
    common = [repeat for repeat in first.ious if repeat in second.ious]
    return np.array([first.ious[repeat] - second.ious[repeat] for repeat in common], dtype=np.float64)


def reasons(study: Study, point: PointSeeds, test: MarginTest) -> Iterator[str]:
    """Yield the evidence about a point, in phrases: numbers, images evaluated, diverged runs."""
    if study.provenance_known:
        yield from _evidence(study, test)
    yield evaluated(study, point)
    yield from diverged_seeds(study, test)


def _evidence(study: Study, test: MarginTest) -> Iterator[str]:
    difference = test.difference
    if difference.pairs < FEWEST_REPEATS:
        have = f"{count(difference.pairs, 'repeat')} in common"
        yield f"{have}: at least {FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
        return
    if math.isnan(difference.median):
        yield f"the {study.score.title} of a run is not known: its counts give none"
        return
    yield f"difference {difference}, margin {study.criteria.iou_margin:g}"
    yield f"{100 * coverage(difference.pairs):.0f} % interval over {difference.pairs} seeds"
    if test.answer == "not shown":
        yield _advice(difference, test.slack)


def _advice(difference: Difference, slack: float) -> str:
    """Return how many seeds would bring the interval inside the margin, where these do not.

    The interval of the median of n normal values reaches about 1.96 sqrt(pi / 2) deviation / sqrt(n) to
    either side. A rough number, for planning.
    """
    if slack <= 0:
        return "the median lies outside the margin: more seeds would rather show a loss"
    needed = math.ceil((NORMAL_QUANTILE * MEDIAN_OVER_MEAN * difference.deviation / slack) ** 2)
    if needed > MOST_SEEDS_ADVISED:
        number = f"more than {MOST_SEEDS_ADVISED}"
    else:
        number = f"about {max(needed, difference.pairs + 1)}"
    return f"{number} seeds would be needed, if their standard deviation stays"


def evaluated(study: Study, point: PointSeeds) -> str:
    """Return on how many images the IoU was computed, or that this is not known."""
    images = point.test_images
    known = f"{images:.0f} test {study.score.samples}, {study.iou_scope}"
    return "test images unknown" if math.isnan(images) else known


def diverged_seeds(study: Study, test: MarginTest) -> Iterator[str]:
    """Yield how many runs diverged, and of what."""
    for owner, runs in test.diverged.items():
        if runs:
            yield f"{count(runs, 'run')} of {owner} diverged, so no {study.score.title} for that seed"
