"""Student's t on paired logarithms, corrected for all comparisons of a study; the repeats a result needs."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.arrays import Array, Integers
from analysis.statistics.intervals import CONFIDENCE, FEWEST_REPEATS
from analysis.study import NAN
from unet_scaling.study.repeats import FIXED_SIGNIFICANCE

# The usual convention for the chance to find a difference that is there (Cohen 1988).
POWER = 0.8
NORMAL_QUANTILES = float(stats.norm.ppf((1 + CONFIDENCE) / 2) + stats.norm.ppf(POWER))


def repeats_needed(logarithms: Array) -> float:
    """Return the repeats with which a difference like the one seen would be significant in 80 % of studies.

    Assumes that the median of the paired logarithms is the true difference, and that their standard
    deviation s stays: the median of n normal values has the variance pi / 2 * s^2 / n. At least one more
    than there are; NaN for fewer than 3 pairs or no difference at all.
    """
    centre = abs(float(np.median(logarithms))) if len(logarithms) >= FEWEST_REPEATS else 0.0
    if not centre > 0:
        return NAN
    deviation = float(np.std(logarithms, ddof=1))
    needed = math.pi / 2 * (NORMAL_QUANTILES * deviation / centre) ** 2
    return float(max(len(logarithms) + 1, math.ceil(needed)))


def holm_in_families(
    tests: pd.DataFrame, family: Sequence[str], significance: float = FIXED_SIGNIFICANCE
) -> pd.DataFrame:
    """Return the columns of `holm` for tests that have `pairs`, `centre` and `error`, corrected by family.

    Tests that agree in the columns `family` are one; without columns all are. NaN for fewer than 3 pairs.
    """
    probability = _probability(tests)
    families = tests.groupby(list(family), sort=False).indices.values() if family else [np.arange(len(tests))]
    corrected = np.full((3, len(tests)), NAN)
    for members in families:
        known = members[np.isfinite(probability[members])]
        corrected[:, known] = holm(probability[known], significance)
    return pd.DataFrame(dict(zip(("significance", "p_adjusted", "comparisons"), corrected, strict=True)))


def _probability(tests: pd.DataFrame) -> Array:
    """Two-sided, of Student's t; 1 where all logarithms are 0."""
    error, centre, pairs = (tests[name].to_numpy(dtype=np.float64) for name in ("error", "centre", "pairs"))
    with np.errstate(divide="ignore", invalid="ignore"):
        probability = np.where(centre == 0, 1.0, 2 * stats.t.sf(np.abs(centre) / error, pairs - 1))
    return np.where(pairs >= FEWEST_REPEATS, probability, NAN)


def holm(probability: Array, alpha: float = FIXED_SIGNIFICANCE) -> tuple[Array, Array, Array]:
    """Return the significance of each test's interval, its adjusted probability, and the number of tests.

    By Holm's procedure the k-th smallest of m probabilities is compared with alpha / (m - k + 1), until one
    is too large; all from there on keep its significance. So an interval excludes "no difference" just
    where Holm's procedure rejects it.
    """
    tests = len(probability)
    order = np.argsort(probability, kind="stable")
    steps = tests - np.arange(tests)
    significance, adjusted = np.empty((2, tests))
    significance[order] = alpha / np.maximum(steps, _step_kept(probability[order], steps, alpha))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps * probability[order]))
    return significance, adjusted, np.full(tests, float(tests))


def _step_kept(ordered: Array, steps: Integers, alpha: float) -> int:
    """Return the number of comparisons with which Holm's procedure stops; 1 where it rejects all."""
    kept = np.flatnonzero(ordered > alpha / steps)
    return int(steps[kept[0]]) if len(kept) else 1
