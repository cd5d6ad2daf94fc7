"""Differences between two studies at every point, with intervals that hold for all points together.

As in the comparison of frameworks (docs/statistics.md): a bootstrap interval over launches, never narrower
than Student's t at the significance that Holm's procedure asks for. Launches of two studies are no pairs,
since nothing ties a launch of one to a launch of the other: t is Welch's, and both studies are resampled
independently.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.arrays import Array
from analysis.stats import (
    ANY,
    FEWEST_REPEATS,
    NORMAL_QUANTILES,
    UNKNOWN_INTERVAL,
    Interval,
    Launches,
    bounds,
    holm,
    median_intervals,
)
from analysis.study import NAN

# Means of equal numbers differ by their rounding.
_ROUNDING = 1e-12
# The variance of the median of normal values over that of their mean.
_MEDIAN_OVER_MEAN = np.pi / 2


@dataclass(frozen=True)
class Sample:
    """One number per launch of one study, grouped into points; `deviations` are those of their blocks."""

    launches: Launches
    values: Array
    deviations: Array | None = None

    def of_points(self) -> list[Array]:
        """Return the values of each point."""
        return [self.values[self.launches.point == point] for point in range(self.launches.points)]

    def replicates(self, stream: int) -> Array:
        """Return replicates of each point's median; those of different streams are independent."""
        return self.launches.replicates(self.values, self.deviations, stream=stream)


@dataclass(frozen=True)
class Contrast:
    """B minus A at one point, before any correction for several points.

    median    difference of the medians, or median of the differences of pairs
    interval  its bootstrap interval
    mean, error, freedom  of Student's t; unknown for fewer than 3 launches of either study
    fewest    launches of the study that has fewer, or pairs
    needed    launches of each study, or pairs, with which such a difference would be found in 80 % of studies
    """

    median: float
    interval: Interval = UNKNOWN_INTERVAL
    mean: float = NAN
    error: float = NAN
    freedom: float = NAN
    fewest: int = 0
    needed: float = NAN


NO_CONTRAST = Contrast(NAN)


def unpaired_contrasts(a: Sample, b: Sample) -> list[Contrast]:
    """Return B minus A at each point; swapping the studies changes nothing but the sign."""
    one, other = (b.replicates(stream) - a.replicates(1 - stream) for stream in (0, 1))
    low, high = bounds(np.concatenate([one, other], axis=-1))
    intervals = zip(low.tolist(), high.tolist(), strict=True)
    return list(map(_unpaired, a.of_points(), b.of_points(), intervals))


def paired_contrasts(differences: Sequence[Array]) -> list[Contrast]:
    """Return the contrast of each sample of differences, B minus A, of launches that are pairs."""
    intervals = median_intervals(differences)
    return [_paired(values, interval) for values, interval in zip(differences, intervals, strict=True)]


def _unpaired(a: Array, b: Array, interval: Interval) -> Contrast:
    fewest = min(len(a), len(b))
    median = float(np.median(b) - np.median(a)) if fewest else NAN
    if fewest < FEWEST_REPEATS:
        return Contrast(median, fewest=fewest)
    mean = float(b.mean() - a.mean())
    error, freedom = _welch(a, b)
    needed = _launches_needed(median, _variance(a) + _variance(b), fewest)
    return Contrast(median, interval, mean, error, freedom, fewest, needed)


def _welch(a: Array, b: Array) -> tuple[float, float]:
    """Return the standard error of a difference of means, and its degrees of freedom (Welch 1947)."""
    of_a, of_b = (_variance(values) / len(values) for values in (a, b))
    squares = of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1)
    freedom = (of_a + of_b) ** 2 / squares if squares > 0 else float(min(len(a), len(b)) - 1)
    return (of_a + of_b) ** 0.5, freedom


def _variance(values: Array) -> float:
    return float(values.var(ddof=1))


def _paired(values: Array, interval: Interval) -> Contrast:
    pairs = len(values)
    median = float(np.median(values)) if pairs else NAN
    if pairs < FEWEST_REPEATS:
        return Contrast(median, fewest=pairs)
    variance = _variance(values)
    needed = _launches_needed(median, variance, pairs)
    return Contrast(
        median, interval, float(values.mean()), (variance / pairs) ** 0.5, pairs - 1.0, pairs, needed
    )


def _launches_needed(difference: float, variance: float, have: int) -> float:
    """Return how many launches would show a difference like this; `variance` is that of one difference."""
    if not abs(difference) > 0:
        return NAN
    needed = _MEDIAN_OVER_MEAN * variance * (NORMAL_QUANTILES / difference) ** 2
    return float(max(have + 1, np.ceil(needed)))


def corrected(contrasts: Sequence[Contrast], possible: Interval = ANY) -> pd.DataFrame:
    """Return low, high, p_adjusted and comparisons of each contrast, corrected by Holm for all of them.

    An interval excludes 0 only where that holds for all points together; none reaches beyond what is
    `possible`. NaN where a study has fewer than 3 launches.
    """
    columns = _holm_of_known(np.array(list(map(_probability, contrasts)), dtype=np.float64))
    table = pd.DataFrame(list(map(_interval, contrasts, columns[0])), columns=["low", "high"], dtype=float)
    return table.clip(*possible).assign(p_adjusted=columns[1], comparisons=columns[2])


def _holm_of_known(probability: Array) -> Array:
    """Return significance, adjusted probability and number of comparisons, (3, points)."""
    known = np.flatnonzero(np.isfinite(probability))
    columns = np.full((3, len(probability)), NAN)
    columns[:, known] = holm(probability[known])
    return columns


def _probability(contrast: Contrast) -> float:
    """Return the two-sided probability of Student's t; 1 without any difference."""
    if not np.isfinite(contrast.mean):
        return NAN
    if abs(contrast.mean) < _ROUNDING:
        return 1.0
    if contrast.error == 0:
        return 0.0
    return float(2 * stats.t.sf(abs(contrast.mean) / contrast.error, contrast.freedom))


def _interval(contrast: Contrast, significance: float) -> Interval:
    """Return the wider of the bootstrap and Student's t interval, on each side."""
    if not np.isfinite(significance):
        return UNKNOWN_INTERVAL
    reach = float(stats.t.isf(significance / 2, contrast.freedom)) * contrast.error
    low, high = contrast.interval
    mean = 0.0 if abs(contrast.mean) < _ROUNDING else contrast.mean
    return min(low, mean - reach), max(high, mean + reach)
