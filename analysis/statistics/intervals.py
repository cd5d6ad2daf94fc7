"""Intervals of medians over launches, by a bootstrap of launches and of blocks of epochs within them.

The unit of replication is the launch, never the epoch. Plain nested resampling (draw launches, then
blocks within each) counts the noise of the epochs twice, since the launches' own values already differ
by it: its nominal 95 % covered up to 99.7 % in simulation. Resampling launches alone counts too little:
its variance is (n - 1) / n of the true one for n launches, and the median of an odd number of them
takes n values only, which covered 87 % at 7 launches. Both faults vanish when every drawn launch also
gets a deviation of the second level, weighted 1 / sqrt(n): the missing share of the variance, neither
more nor less (Davison and Hinkley, Bootstrap Methods, 1997, section 3.8; Hesterberg, What Teachers
Should Know About the Bootstrap, 2015, section 4.1.2). The deviation is what a bootstrap of the launch's
blocks says of its epochs, and for the rest of the spread a residual of another launch. It is drawn anew
for every drawn launch. `python -m benchmarks.coverage` prints how often these intervals hold the truth.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from analysis.arrays import Array

# The range of 2 launches holds the median in half of all cases: no interval worth the name.
FEWEST_REPEATS = 3
# The fewest whose range promises nearly the confidence below (see `coverage`).
RECOMMENDED_REPEATS = 5
CONFIDENCE = 0.95
# 50 replicates lie beyond each end of an interval.
RESAMPLES = 2000
RESAMPLING_SEED = 0
# Resamples drawn at once: the draws depend on it, so it must not depend on the number of points.
BATCH = 50

Interval = tuple[float, float]
UNKNOWN_INTERVAL: Interval = (float("nan"), float("nan"))
# What a number can be at all. A bootstrap knows no bounds: at them it may reach beyond by a little.
ANY: Interval = (-float("inf"), float("inf"))
NOT_NEGATIVE: Interval = (0.0, float("inf"))
SHARE: Interval = (0.0, 1.0)


def coverage(repeats: int) -> float:
    """Return the confidence that an interval over so many launches can promise for any noise, at most 0.95.

    The range of n launches holds the median of all possible ones with probability 1 - 2^(1-n): 75 % for
    3, 88 % for 4, 94 % for 5 (David and Nagaraja, Order Statistics, section 7.1). Nothing that is known
    from so few launches promises more without assuming a shape of the noise.
    """
    return float(min(CONFIDENCE, 1 - 2.0 ** (1 - repeats)))


def share_interval(some: int, of: int) -> Interval:
    """Return the exact interval of a share, that of Clopper and Pearson (1934); unknown of none."""
    if not of:
        return UNKNOWN_INTERVAL
    interval = stats.binomtest(some, of).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)


def median_intervals(samples: Sequence[Array], possible: Interval = ANY) -> list[Interval]:
    """Return the interval of the median of each sample, which holds one number per launch.

    Samples of equal size are bootstrapped together: one by one they would take minutes in a large study.
    For paired differences, or logarithms of paired ratios, pass one value per pair. No interval reaches
    beyond what is `possible`. Unknown for fewer than 3 launches, or where a number is not finite.
    """
    intervals = [UNKNOWN_INTERVAL] * len(samples)
    by_size: dict[int, list[int]] = {}
    for number, sample in enumerate(samples):
        by_size.setdefault(len(sample), []).append(number)
    for numbers in by_size.values():
        replicated = replicates(np.stack([samples[number] for number in numbers]))
        low, high = np.clip(bounds(replicated), *possible).tolist()
        for number, interval in zip(numbers, zip(low, high, strict=True), strict=True):
            intervals[number] = interval
    return intervals


def replicates(values: Array, deviations: Array | None = None, *, stream: int = 0) -> Array:
    """Return bootstrap replicates of the median over launches, (points, RESAMPLES).

    values      (points, launches), one number per launch
    deviations  (realisations, points, launches): bootstrapped over a launch's blocks, minus its value
    stream      points with equally many launches draw the same launches in one stream, so that the
                replicates of two points may be subtracted as pairs; other streams are independent

    NaN where there are fewer than 3 launches or one of them is unknown.
    """
    points, launches = values.shape
    replicated = np.full((points, RESAMPLES), np.nan)
    known = np.isfinite(values).all(axis=-1)
    if launches >= FEWEST_REPEATS and known.any():
        within = np.zeros((1, *values.shape)) if deviations is None else deviations
        random = np.random.default_rng((RESAMPLING_SEED, stream))
        replicated[known] = _replicates(values[known], within[:, known], random)
    return replicated


def bounds(replicated: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Return the bounds of the percentile interval, for each row of replicates; NaN where unknown."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(replicated, [outside, 1 - outside], axis=-1)
    return low, high


def _replicates(values: Array, deviations: Array, random: np.random.Generator) -> Array:
    """Resample all points alike, so that a point's interval does not depend on the others."""
    within, between = _second_level(values, deviations)
    resamples = RESAMPLES // len(within)
    parts = [
        stats.bootstrap(
            (values, realisation, between),
            _median_of_sum,
            vectorized=True,
            axis=-1,
            n_resamples=resamples,
            batch=BATCH,
            method="percentile",
            rng=random,
        ).bootstrap_distribution
        for realisation in within
    ]
    return np.concatenate(parts, axis=-1)


def _second_level(values: Array, deviations: Array) -> tuple[Array, Array]:
    """Return deviations of blocks and residuals of launches, scaled to sum to the variance over n."""
    launches = values.shape[-1]
    variance = values.var(axis=-1, ddof=1, keepdims=True)
    of_epochs = (deviations**2).mean(axis=(0, -1))[:, None]
    # Epochs explain at most what the launches vary by; the residuals carry the rest.
    share = np.minimum(1.0, _quotient(of_epochs, variance))
    scale = np.sqrt(_quotient(share * variance, of_epochs))
    residuals = values - values.mean(axis=-1, keepdims=True)
    return deviations * (scale / np.sqrt(launches)), residuals * np.sqrt((1 - share) / launches)


def _quotient(above: Array, below: Array) -> Array:
    """Return above / below, 0 where nothing is below."""
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def _median_of_sum(values: Array, within: Array, between: Array, axis: int = -1) -> Array:
    return np.asarray(np.median(values + within + between, axis=axis), dtype=np.float64)
