"""The difference of IoU, B - A, at every point that both studies have: paired by seed where seeds agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.compare.contrast import (
    NO_CONTRAST,
    Contrast,
    Sample,
    corrected,
    paired_contrasts,
    unpaired_contrasts,
)
from analysis.compare.facts import why_no_difference
from analysis.compare.matching import PointMatch
from analysis.compare.sides import StudyPoint, StudySide
from analysis.contrast import NO_DIFFERENCE, NOT_ENOUGH
from analysis.iou import learning_of, seeds_of
from analysis.stats import FEWEST_REPEATS, Interval, Launches
from analysis.text import count

REFUSED = "refused"
A_HIGHER = "A higher"
B_HIGHER = "B higher"
NEITHER_LEARNED = "nothing learned"
# Between two shares.
_POSSIBLE: Interval = (-1.0, 1.0)


@dataclass(frozen=True)
class IouSamples:
    """IoU by seed at a matched point, why it is not compared, and how many runs of each study diverged."""

    a: Mapping[int, float]
    b: Mapping[int, float]
    refused: str
    diverged: Mapping[str, int]

    @property
    def common(self) -> list[int]:
        """Return the seeds that both studies have."""
        return [seed for seed in self.a if seed in self.b]

    @property
    def paired(self) -> bool:
        """Return whether enough seeds agree for differences of pairs."""
        return len(self.common) >= FEWEST_REPEATS

    @property
    def differences(self) -> Array:
        """Return B - A of each common seed."""
        return np.array([self.b[seed] - self.a[seed] for seed in self.common], dtype=np.float64)


def iou_differences(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> pd.DataFrame:
    """Return one row per match: seeds, medians, the difference with its interval, and the outcome.

    A difference of runs that saw other images or other masks has no meaning, and is refused.
    """
    points = [_samples(a, b, match) for match in matches]
    contrasts = _contrasts(points)
    intervals = corrected(contrasts, _POSSIBLE)
    return pd.DataFrame(list(map(_medians, points))).assign(
        iou_difference=[contrast.median for contrast in contrasts],
        iou_difference_low=intervals["low"],
        iou_difference_high=intervals["high"],
        iou_p_adjusted=intervals["p_adjusted"],
        iou_outcome=list(
            map(_outcome, points, _nothing_learned(a, b, matches), intervals["low"], intervals["high"])
        ),
        iou_remarks=list(map(_remarks, points)),
    )


def _nothing_learned(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> list[bool]:
    """Return where neither study is shown to score more than a constant prediction."""
    learned = []
    for side in (a, b):
        found = learning_of(seeds_of(side.study), side.study.criteria.iou_margin)
        learned.append({point.runs: own.learned for point, own in zip(side.points, found, strict=True)})
    return [learned[0][match.a.runs] == learned[1][match.b.runs] == "no" for match in matches]


def _medians(point: IouSamples) -> dict[str, float]:
    return {
        "seeds_a": len(point.a),
        "seeds_b": len(point.b),
        "seeds_paired": len(point.common) if point.paired else 0,
        "iou_a": _median(point.a),
        "iou_b": _median(point.b),
    }


def _samples(a: StudySide, b: StudySide, match: PointMatch) -> IouSamples:
    diverged = {"A": _diverged(a, match.a), "B": _diverged(b, match.b)}
    refused = why_no_difference(a, b, match)
    return IouSamples(_by_seed(a, match.a), _by_seed(b, match.b), refused, diverged)


def _by_seed(side: StudySide, point: StudyPoint) -> dict[int, float]:
    """Return the IoU of each run: disturbed ones learned as well as the others."""
    runs = side.study.runs
    own = runs[runs["run"].isin(point.runs) & runs["iou"].notna()]
    seeds = own["seed"].fillna(own["repeat"]).astype(int)
    return dict(zip(seeds.tolist(), own["iou"].astype(float).tolist(), strict=True))


def _diverged(side: StudySide, point: StudyPoint) -> int:
    runs = side.study.runs
    (options, knobs), *_ = runs.loc[runs["run"] == point.runs[0], ["options", "knobs"]].to_numpy()
    lost = side.study.left_out
    same = (lost["framework"] == point.framework) & (lost["workers"] == point.workers)
    same &= (lost["options"] == options) & (lost["knobs"] == knobs)
    return int((same & (lost["state"] == "diverged")).sum())


def _contrasts(points: Sequence[IouSamples]) -> list[Contrast]:
    """Return the contrast of each point; none where the comparison is refused."""
    allowed = [point for point in points if not point.refused]
    paired = iter(paired_contrasts([point.differences for point in allowed if point.paired]))
    apart = iter(_unpaired([point for point in allowed if not point.paired]))
    return [NO_CONTRAST if point.refused else next(paired if point.paired else apart) for point in points]


def _unpaired(points: Sequence[IouSamples]) -> list[Contrast]:
    if not points:
        return []
    return unpaired_contrasts(_sample([point.a for point in points]), _sample([point.b for point in points]))


def _sample(points: Sequence[Mapping[int, float]]) -> Sample:
    numbers = np.repeat(np.arange(len(points)), [len(point) for point in points])
    seeds = [seed for point in points for seed in point]
    values = [iou for point in points for iou in point.values()]
    launches = Launches(numbers.astype(np.int64), len(points), np.array(seeds, dtype=np.int64))
    return Sample(launches, np.array(values, dtype=np.float64))


def _median(ious: Mapping[int, float]) -> float:
    return float(np.median([*ious.values()])) if ious else float("nan")


def _outcome(point: IouSamples, nothing_learned: bool, low: float, high: float) -> str:
    if point.refused:
        return REFUSED
    if nothing_learned:
        return NEITHER_LEARNED
    if np.isnan(low):
        return NOT_ENOUGH
    if low <= 0 <= high:
        return NO_DIFFERENCE
    return B_HIGHER if low > 0 else A_HIGHER


def _remarks(point: IouSamples) -> str:
    """Return why there is no difference, or how the seeds were taken and what they lack."""
    if point.refused:
        return point.refused
    pairing = f"{len(point.common)} seeds as pairs" if point.paired else "seeds not paired"
    lost = [f"{count(runs, 'run')} of {of} diverged" for of, runs in point.diverged.items() if runs]
    return "; ".join([pairing, *lost])
