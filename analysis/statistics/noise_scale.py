"""The gradient noise scale from squared norms of gradients, with jackknife intervals.

McCandlish et al., arXiv 1812.06162, appendix A.1. With g_i the gradient of worker i of N, and g their mean,

    S = N / (N - 1) (mean of |g_i|^2 - |g|^2)    variance of one worker's gradient, summed over the weights
    G = |g|^2 - S / N                            squared norm of the true gradient

are free of bias in every step, but noisy, and G may be negative. Both are averaged over the steps, and only
then divided: the noise scale S / G, here in workers. A mean over steps weighs each by its G, thus by how
much a small step along the gradient would lower the loss there. The intervals are Student's, with the
standard error of a jackknife that leaves out one block of steps at a time (Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, chapter 11). That of the ratio is on a logarithmic scale, as is the
jackknife's correction of its bias, so that neither can be negative. Where the interval of G holds 0 the
ratio has no upper bound, and only the lower one is given.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from analysis.arrays import Array, Integers
from analysis.statistics.intervals import CONFIDENCE, UNKNOWN_INTERVAL, Interval

# The quantile of Student's t is 2.8 for 5 blocks, but 4.3 for 3.
FEWEST_BLOCKS = 5
RESOLVED = "resolved"
UNRESOLVED = "not resolved"


@dataclass(frozen=True)
class NoiseScale:
    """What the sampled steps say: S and G of one worker's gradient, and the noise scale in workers."""

    noise: float
    signal: float
    signal_interval: Interval = UNKNOWN_INTERVAL
    workers: float = float("nan")
    workers_interval: Interval = UNKNOWN_INTERVAL
    answer: str = UNRESOLVED


def estimate_noise_scale(own: Array, mean: Array, workers: int, blocks: Integers) -> NoiseScale:
    """Return the noise scale of sampled steps; at least one.

    own      mean over the workers of the squared norm of their own gradient, one number per step
    mean     squared norm of the mean gradient, one number per step
    workers  whose gradients these are, at least 2
    blocks   number of the block that each step belongs to
    """
    steps = _noise_and_signal(own, mean, workers)
    without = _means_without_a_block(steps, blocks)
    means = _pair(steps.mean(axis=1))
    if without.shape[1] < FEWEST_BLOCKS:
        return NoiseScale(*means, answer=f"{UNRESOLVED}: fewer than {FEWEST_BLOCKS} samples")
    signal_interval = _interval(means[1], _half_width(without[1]))
    if signal_interval[0] > 0 and without.min() > 0:
        return _resolved(means, signal_interval, np.log(without[0] / without[1]))
    return _unresolved(means, signal_interval)


def _noise_and_signal(own: Array, mean: Array, workers: int) -> Array:
    """Return S and G of every step, [2, steps]."""
    noise = (own - mean) * workers / (workers - 1)
    return np.stack([noise, mean - noise / workers])


def _pair(values: Array) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def _unresolved(means: tuple[float, float], signal_interval: Interval) -> NoiseScale:
    """Return what the noise scale is at least, where G may be 0."""
    known = means[0] > 0 and signal_interval[1] > 0
    low = means[0] / signal_interval[1] if known else float("nan")
    return NoiseScale(*means, signal_interval, workers_interval=(low, float("nan")))


def _resolved(means: tuple[float, float], signal_interval: Interval, without: Array) -> NoiseScale:
    """Return the estimate, given the logarithms of the ratio without each block."""
    blocks = len(without)
    logarithm = blocks * np.log(means[0] / means[1]) - (blocks - 1) * without.mean()
    low, high = np.exp(_interval(logarithm, _half_width(without))).tolist()
    return NoiseScale(*means, signal_interval, float(np.exp(logarithm)), (low, high), RESOLVED)


def _means_without_a_block(values: Array, blocks: Integers) -> Array:
    """Return the means of each row of values without each block, [rows, blocks]."""
    numbers = np.unique(blocks, return_inverse=True)[1]
    sums = np.stack([np.bincount(numbers, weights=row) for row in values])
    left = len(blocks) - np.bincount(numbers)
    return np.asarray((values.sum(axis=1, keepdims=True) - sums) / np.maximum(left, 1), dtype=np.float64)


def _half_width(without: Array) -> float:
    """Return half the width of the interval, given the estimates without each block."""
    blocks = len(without)
    error = np.sqrt((blocks - 1) / blocks * ((without - without.mean()) ** 2).sum())
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, blocks - 1) * error)


def _interval(middle: float, half_width: float) -> Interval:
    return middle - half_width, middle + half_width
