"""What chance explains: whether two sides differ in what was dealt to each launch by more than it does.

A scheduler that starts each run as a job of its own deals out nodes, devices and hours. What it deals at
random is noise: each launch has its own share, and the interval over launches holds it. What one side has and
the other has not, however often it was dealt, is no noise. The sides are shuffled among launches of equal
size; how often a shuffled study differs as much as the real one is the probability (a permutation test; Good
2005, Permutation, Parametric and Bootstrap Tests of Hypotheses).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.numbers.check import Check, PointPair, no, withhold_claims, yes
from analysis.numbers.contrast import Sides, first_points
from analysis.numbers.stats import RESAMPLING_SEED
from analysis.study import Array
from analysis.text import Row, percent

PERMUTATIONS = 2000
# Below the first a difference is no chance and claims are withheld; below the second it is said. A report
# looks at some five such things; of honest studies it may refuse 2 % in all.
REFUSED, SAID = 0.005, 0.02
# Sums of equal parts may differ in their last bits.
_DIGITS = 9

# What may have been dealt unequally, by what is said of it: how much the sides differ, for each of `weights`.
Statistics = Mapping[str, Array]


@dataclass(frozen=True)
class Unlike:
    """Points of one series at which two frameworks differ in what was dealt, and how probable that is."""

    pairs: Sequence[PointPair]
    probability: float
    words: str


def unlike(
    sides: Mapping[PointPair, Sides], statistics: Callable[[Array, Sequence[Row], PointPair], Statistics]
) -> Iterator[Unlike]:
    """Yield for each series of points that differ in their workers alone what was dealt least equally.

    `statistics` are of the weights of the launches, (1 + PERMUTATIONS, launches), and of these.
    """
    series: dict[PointPair, list[PointPair]] = {}
    for pair in sides:
        series.setdefault(pair._replace(workers=0), []).append(pair)
    for pairs in series.values():
        launches = [
            (row, side == 0, pair.workers) for pair in pairs for side in (0, 1) for row in sides[pair][side]
        ]
        runs, is_first, strata = zip(*launches, strict=True)
        found = statistics(shuffled(is_first, strata), runs, pairs[0])
        probability, least = by_chance(list(found.values()))
        if found:
            yield Unlike(pairs, min(1.0, probability * len(series)), list(found)[least])


def unless_chance(found: Sequence[Unlike], fact: str, refused: float = REFUSED) -> Check:
    """Return a check that forbids claims where something was dealt as chance does not; `fact` if it holds.

    `refused`: what is less probable; a little more is said.
    """
    for most, check in ((refused, withhold_claims), (SAID, lambda words, _: no(words))):
        apart = [each for each in found if each.probability < most]
        if apart:
            words = [
                f"{each.words} (by chance in {percent(each.probability, 1)} of studies)" for each in apart
            ]
            return check(first_points(words), [pair for each in apart for pair in each.pairs])
    return yes(fact)


def shuffled(is_first: Sequence[bool], strata: Sequence[Hashable]) -> Array:
    """Return the weights of each launch in a difference of sides, (1 + PERMUTATIONS, launches).

    The first row is of the sides as they are, the others of sides as chance could have dealt them within each
    stratum. A stratum that has one side only does not count.
    """
    random = np.random.default_rng(RESAMPLING_SEED)
    sides = np.asarray(is_first, dtype=np.bool_)
    weights = np.zeros((1 + PERMUTATIONS, len(sides)))
    groups: dict[Hashable, list[int]] = {}
    for launch, stratum in enumerate(strata):
        groups.setdefault(stratum, []).append(launch)
    for members in groups.values():
        own = sides[members]
        first = int(own.sum())
        if 0 < first < len(own):
            order = random.random((PERMUTATIONS, len(own))).argsort(axis=1)
            dealt = np.concatenate([own[None], own[order]])
            weights[:, members] = np.where(dealt, 1 / first, -1 / (len(own) - first)) * len(own) / 2
    return weights


def by_chance(statistics: Sequence[Array]) -> tuple[float, int]:
    """Return how probable the least probable of these statistics is by chance, and which one that is.

    statistics  of the weights of `shuffled`, (1 + PERMUTATIONS,) each; the larger, the more the sides differ

    The probability is corrected for having looked at all of them (Westfall and Young 1993, Resampling-Based
    Multiple Testing). 1 where there is none.
    """
    if not statistics:
        return 1.0, 0
    alone = np.stack([_share_as_large(values) for values in statistics])
    least = alone.min(axis=0)
    return float((least <= least[0]).mean()), int(alone[:, 0].argmin())


def _share_as_large(values: Array) -> Array:
    """Return for each value the share of all that are at least as large."""
    rounded = np.round(values, _DIGITS)
    ordered = np.sort(rounded)
    return np.asarray(1 - np.searchsorted(ordered, rounded, side="left") / len(values), dtype=np.float64)


def unequal_use(weights: Array, use: NDArray[np.bool_]) -> Array:
    """Return how unequally the sides used some things, (1 + PERMUTATIONS,).

    use  (launches, things): which of them each launch had
    """
    return np.asarray(((weights @ use) ** 2).sum(axis=1), dtype=np.float64)
