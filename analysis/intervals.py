"""Intervals over launches, by bootstrap. The unit of replication is the launch, never the epoch.

The percentile method is used: BCa needs a jackknife, and the jackknife of a median of few values is
degenerate. Few launches bound what any interval of a median can promise: the range of n launches
holds the median of all possible launches with probability 1 - 2^(1-n), which is 75 % for 3, 88 % for
4 and 94 % for 5 (David and Nagaraja, Order Statistics, section 7.1). A percentile bootstrap of so few
gives about that range, so `coverage` says what it is worth and the reports repeat it.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

FEWEST_REPEATS = 3
RECOMMENDED_REPEATS = 5
CONFIDENCE = 0.95
RESAMPLES = 9999
SEED = 0

Values = Sequence[float] | NDArray[np.float64]
Interval = tuple[float, float]
UNKNOWN: Interval = (float("nan"), float("nan"))


def coverage(repeats: int) -> float:
    """The confidence that an interval over so many launches can have, at most 0.95."""
    return float(min(CONFIDENCE, 1 - 2.0 ** (1 - repeats)))


def median_interval(values: Values) -> Interval:
    """Interval of the median over launches; unknown for fewer than 3, or where a value is unknown."""
    return _bootstrap((values,), _median, paired=False)


def ratio_interval(numerator: Values, denominator: Values, *, paired: bool) -> Interval:
    """Interval of the ratio of two medians over launches.

    `paired`: both list the same repeats in the same order, and each resampling draws repeats, so that
    what a repeat's two launches have in common cancels. Otherwise both are drawn independently.
    """
    return _bootstrap((numerator, denominator), _ratio_of_medians, paired=paired)


def _bootstrap(samples: tuple[Values, ...], statistic: Callable[..., object], *, paired: bool) -> Interval:
    if any(len(sample) < FEWEST_REPEATS or np.isnan(sample).any() for sample in samples):
        return UNKNOWN
    interval = stats.bootstrap(
        samples,
        statistic,
        paired=paired,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _median(values: NDArray[np.float64], axis: int = -1) -> object:
    return np.median(values, axis=axis)


def _ratio_of_medians(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], axis: int = -1
) -> object:
    return np.median(numerator, axis=axis) / np.median(denominator, axis=axis)
