"""Differences of IoU between two points, paired by repeat: their answer, and the evidence in words."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.findings.headers import COUNTS
from analysis.stats import (
    FEWEST_REPEATS,
    RECOMMENDED_REPEATS,
    SHARE,
    UNKNOWN_INTERVAL,
    Interval,
    coverage,
    median_intervals,
)
from analysis.study import NAN, POINT, Study
from analysis.text import Row, bracketed, count, number, with_interval

MarginAnswer = Literal["yes", "no", "not shown"]
Learned = Literal["yes", "no", "not known"]
# A constant prediction is to training what the placebo is to a drug: no margin may give away more than this
# share of what was gained over it. A score that is 0.1 above the constant keeps the usual margin of 0.01.
MARGIN_SHARE = 0.1


@dataclass(frozen=True)
class PointSeeds:
    """The IoU of each repeat of one point, how many images it is of, and how many of its runs diverged.

    `constant` is the score of the best constant prediction; NaN where it is not known.
    """

    options: str
    framework: str
    knobs: str
    workers: int
    ious: Mapping[int, float]
    test_images: float
    diverged: int
    constant: float = NAN

    @property
    def values(self) -> Array:
        """IoU of its runs."""
        return np.array(list(self.ious.values()), dtype=np.float64)


@dataclass(frozen=True)
class Learning:
    """What was learned: a score, its lower bound, and that of the best constant prediction; NaN: not known.

    `least` is the margin of the study: a gain that it calls negligible is none.
    """

    least: float
    score: float = NAN
    low: float = NAN
    constant: float = NAN

    @property
    def learned(self) -> Learned:
        """Whether the score, with its interval, lies above that of a constant prediction by the margin."""
        low = self.score if math.isnan(self.low) else self.low
        if math.isnan(low) or math.isnan(self.constant):
            return "not known"
        return "yes" if low > self.constant + self.least else "no"

    @property
    def margin(self) -> float:
        """The margin of the study, or MARGIN_SHARE of what was learned where that is less."""
        gain = self.score - self.constant
        return min(self.least, MARGIN_SHARE * gain) if self.learned == "yes" else self.least


def learning_of(points: Sequence[PointSeeds | None], least: float) -> list[Learning]:
    """Return what was learned at each point; nothing is known of None."""
    intervals = median_intervals([np.array([]) if point is None else point.values for point in points], SHARE)
    return [
        Learning(least, float(np.median(point.values)), low, point.constant)
        if point and point.ious
        else Learning(least)
        for point, (low, _) in zip(points, intervals, strict=True)
    ]


def not_learned_words(row: Row, title: str) -> str:
    """Return that 1 worker learned nothing, from its row of the table of IoU; empty where it learned."""
    if row["learned"] != "no":
        return ""
    nothing = row["iou"] <= row["constant_iou"] + row["margin"]
    found = "nothing was learned" if nothing else "it is not shown that anything was learned"
    score = f"{title} {with_interval(row, 'iou', '.3f')} on 1 worker"
    return f"{found}: {score}, a constant prediction scores {number(row['constant_iou'], '.3f')}"


@dataclass(frozen=True)
class Difference:
    """Paired differences of IoU: their number, median and its interval."""

    pairs: int = 0
    median: float = NAN
    interval: Interval = UNKNOWN_INTERVAL

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.median:+.4f} {bracketed(low, high, '+.4f')}"


@dataclass(frozen=True)
class MarginTest:
    """Answer of the differences to a question with the margin of what was learned.

    `diverged` counts the diverged runs of each owner.
    """

    difference: Difference
    answer: MarginAnswer
    learning: Learning
    diverged: Mapping[str, int]

    @property
    def shown(self) -> MarginAnswer:
        """The answer; diverged runs have no IoU, so the others alone cannot show that nothing is lost.

        Where nothing was learned, nothing can be lost or kept.
        """
        diverged = self.answer == "yes" and any(self.diverged.values())
        return "not shown" if diverged or self.learning.learned == "no" else self.answer


def seeds_of(study: Study) -> list[PointSeeds]:
    """Return every point with the IoU of its repeats, in the order of the study's runs."""
    lost = study.left_out[study.left_out["state"] == "diverged"]
    diverged = {point: set(runs["repeat"]) for point, runs in lost.groupby(POINT)}
    all_runs = study.runs.assign(constant=study.runs["run"].map(_constant_scores(study)).astype(float))
    return [
        _seeds_of_point(point, runs, diverged.get(point, set()))
        for point, runs in all_runs.groupby(POINT, sort=False)
    ]


def _constant_scores(study: Study) -> "pd.Series[float]":
    """Return by run what the best constant prediction scores on its test set, NaN where no count tells it.

    The IoU of "all foreground" is the share of foreground, that of "all background" 0. The counts of a task
    of its own do not say which answer is the most frequent.
    """
    last = study.evaluations.drop_duplicates("run", keep="last").set_index("run")[COUNTS].astype(float)
    return (last["true_positive"] + last["false_negative"]) / last.sum(axis="columns", skipna=False)


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
        constant=float(runs["constant"].median()),
    )


def differences_of(pairs: Sequence[tuple[PointSeeds, PointSeeds] | None]) -> list[Difference]:
    """Return IoU of the first point of each pair minus that of the second, in the repeats that both have."""
    values = [np.array([]) if pair is None else _paired(*pair) for pair in pairs]
    intervals = median_intervals(values)
    return [_difference(paired, interval) for paired, interval in zip(values, intervals, strict=True)]


def _difference(values: Array, interval: Interval) -> Difference:
    if len(values) < 2:
        return Difference(len(values), float(values[0]) if len(values) else NAN)
    return Difference(len(values), float(np.median(values)), interval)


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
    yield f"difference {difference}, margin {margin_words(test.learning)}"
    yield f"{100 * coverage(difference.pairs):.0f} % interval over {difference.pairs} seeds"
    if test.learning.learned == "no":
        yield "1 worker learned no more than a constant prediction, so nothing can be lost or kept"
    elif test.learning.learned == "not known":
        yield "what a constant prediction scores is not known"


def margin_words(learning: Learning) -> str:
    """Return the margin that was used, and why where it is not that of the study."""
    if learning.margin == learning.least:
        return f"{learning.margin:g}"
    gain = learning.score - learning.constant
    return f"{learning.margin:.2g} ({MARGIN_SHARE:.0%} of what was learned, {gain:.2g})"


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
