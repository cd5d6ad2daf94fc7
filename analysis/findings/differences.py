"""Differences of IoU between two points, paired by repeat: what they answer, and the evidence in words."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.statistics.intervals import (
    FEWEST_REPEATS,
    RECOMMENDED_REPEATS,
    UNKNOWN,
    Array,
    Interval,
    coverage,
    median_intervals,
)
from analysis.study import NAN, Study

Answer = Literal["yes", "no", "not shown"]
NORMAL_QUANTILE = 1.96
MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2)
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
        """The IoU of its runs."""
        return np.array(list(self.ious.values()), dtype=np.float64)


@dataclass(frozen=True)
class Difference:
    """Paired differences of IoU: their number, median, its interval, and their standard deviation."""

    pairs: int = 0
    median: float = NAN
    interval: Interval = UNKNOWN
    deviation: float = NAN


@dataclass(frozen=True)
class Finding:
    """What the differences answer.

    `room` is how far their median lies inside the margin; `lost` counts the diverged runs of each owner.
    """

    difference: Difference
    answer: Answer
    room: float
    lost: Mapping[str, int]

    @property
    def shown(self) -> Answer:
        """Runs that diverged have no IoU: the others alone cannot show that nothing is lost."""
        return "not shown" if self.answer == "yes" and any(self.lost.values()) else self.answer


def seeds_of(study: Study) -> list[PointSeeds]:
    """Every point with the IoU of its repeats, in the order of the study's runs."""
    diverged = _diverged_repeats(study)
    points: dict[tuple[str, str, str, int], dict[int, float]] = {}
    images: dict[tuple[str, str, str, int], float] = {}
    names = ("options", "framework", "knobs", "workers", "repeat", "iou", "test_images")
    for *point, repeat, iou, evaluated_on in zip(*(study.runs[name] for name in names), strict=True):
        options, framework, knobs, workers = point
        key = (str(options), str(framework), str(knobs), int(workers))
        points.setdefault(key, {})[int(repeat)] = float(iou)
        images[key] = float(evaluated_on)
    return [
        PointSeeds(*key, ious, images[key], len(diverged.get(key, set()) - ious.keys()))
        for key, ious in points.items()
    ]


def differences_of(pairs: Sequence[tuple[PointSeeds, PointSeeds] | None]) -> list[Difference]:
    """IoU of the first point of each pair minus that of the second, in the repeats that both have."""
    values = [np.array([]) if pair is None else _paired(*pair) for pair in pairs]
    return [
        Difference(len(each), float(np.median(each)), interval, float(np.std(each, ddof=1)))
        if len(each) > 1
        else Difference(len(each), float(each[0]) if len(each) else NAN)
        for each, interval in zip(values, median_intervals(values), strict=True)
    ]


def _paired(first: PointSeeds, second: PointSeeds) -> Array:
    common = [repeat for repeat in first.ious if repeat in second.ious]
    return np.array([first.ious[repeat] - second.ious[repeat] for repeat in common], dtype=np.float64)


def _diverged_repeats(study: Study) -> dict[tuple[str, str, str, int], set[int]]:
    lost = study.left_out[study.left_out["state"] == "diverged"]
    found: dict[tuple[str, str, str, int], set[int]] = {}
    names = ("options", "framework", "knobs", "workers", "repeat")
    for *point, repeat in zip(*(lost[name] for name in names), strict=True):
        options, framework, knobs, workers = point
        found.setdefault((options, framework, knobs, workers), set()).add(repeat)
    return found


def reasons(study: Study, point: PointSeeds, finding: Finding) -> Iterator[str]:
    """The evidence for a finding about a point, in phrases: numbers, images evaluated, diverged runs."""
    if study.provenance_known:
        yield from _evidence(study, finding)
    yield evaluated(study, point)
    yield from lost_seeds(finding)


def _evidence(study: Study, finding: Finding) -> Iterator[str]:
    difference = finding.difference
    if difference.pairs < FEWEST_REPEATS:
        have = f"{difference.pairs} repeat{'' if difference.pairs == 1 else 's'} in common"
        yield f"{have}: at least {FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
        return
    if math.isnan(difference.median):
        yield "the IoU of a run is not known: neither its masks nor its predictions have foreground"
        return
    low, high = difference.interval
    worth = f"{coverage(difference.pairs):.0%}".replace("%", " %")
    margin = study.criteria.iou_margin
    yield f"difference {difference.median:+.4f} [{low:+.4f}, {high:+.4f}], margin {margin:g}"
    yield f"{worth} interval over {difference.pairs} seeds"
    if finding.answer == "not shown":
        yield from _advice(difference, finding.room)


def _advice(difference: Difference, room: float) -> Iterator[str]:
    """How many seeds would bring the interval inside the margin, where these do not.

    The interval of the median of n normal values reaches about 1.96 sqrt(pi / 2) deviation / sqrt(n) to
    either side. A rough number, for planning.
    """
    if room <= 0:
        yield "the median lies outside the margin: more seeds would rather show a loss"
        return
    needed = math.ceil((NORMAL_QUANTILE * MEDIAN_OVER_MEAN * difference.deviation / room) ** 2)
    if needed > MOST_SEEDS_ADVISED:
        yield f"more than {MOST_SEEDS_ADVISED} seeds would be needed, if their spread stays"
    else:
        yield f"about {max(needed, difference.pairs + 1)} seeds would be needed, if their spread stays"


def evaluated(study: Study, point: PointSeeds) -> str:
    """On how many images the IoU was computed, or that this is not known."""
    images = point.test_images
    return "test images unknown" if math.isnan(images) else f"{images:.0f} test images, {study.iou_scope}"


def lost_seeds(finding: Finding) -> Iterator[str]:
    """How many runs diverged, and of what."""
    for owner, runs in finding.lost.items():
        if runs:
            yield f"{runs} run{'' if runs == 1 else 's'} of {owner} diverged, so no IoU for that seed"
