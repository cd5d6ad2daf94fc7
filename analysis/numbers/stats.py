"""Launches, blocks of their epochs, bootstrap intervals of medians, and tests for many comparisons at once.

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

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

# Not scipy.stats: to import it takes longer than a small report does.
from scipy import special  # type: ignore[import-untyped]

from analysis.study import (
    CONFIDENCE,
    FEWEST_REPEATS,
    NAN,
    Array,
    Integers,
    Study,
)
from unet_scaling.study.repeats import FIXED_SIGNIFICANCE

# From so many launches on this share is cut off at either end for Student's t: if a tenth of all launches are
# 30 % slower, a difference of 5 % is then found in 80 % of studies of 15 repeats, else in 36 %.
FEWEST_TRIMMED = 8
TRIMMED_SHARE = 0.2
# 50 replicates lie beyond each end of an interval.
RESAMPLES = 2000
RESAMPLING_SEED = 0
# Resamples drawn at once: the draws depend on it, so it must not depend on the number of points.
BATCH = 50
# Fewer epochs leave every epoch a block of its own; more blocks would take memory and say no more: the
# bootstrap of 20 blocks gives the variance of their mean within a third.
MOST_BLOCKS = 20
# One block resampled is itself: no deviation at all.
_FEWEST_BLOCKS = 2
# A divisor of RESAMPLES: each realisation of the deviations serves 100 resamples of the launches.
REALISATIONS = 20
# The usual convention for the chance to find a difference that is there (Cohen 1988).
POWER = 0.8
# By which normal noise needs more launches, as outliers decide less (`benchmarks.coverage --table power`).
COST_OF_ROBUSTNESS = 1.3
# Where an interval ends at 0 without 0: below what is shown.
ABOVE_ZERO = 1e-9
# Of a figure at a point: a report has dozens of them.
CHANCE_OF_APART = 0.001
CONTRAST_COLUMNS = ("median", "low", "high", "centre", "error", "freedom", "fewest")

Interval = tuple[float, float]
UNKNOWN_INTERVAL: Interval = (NAN, NAN)
# What a number can be at all. A bootstrap knows no bounds: at them it may reach beyond by a little.
ANY: Interval = (-math.inf, math.inf)
NOT_NEGATIVE: Interval = (0.0, math.inf)
SHARE: Interval = (0.0, 1.0)


def coverage(repeats: "pd.Series[int]") -> Array:
    """Return the confidence of an interval over so many launches, NaN where there is none."""
    return np.where(repeats >= FEWEST_REPEATS, CONFIDENCE, NAN)


def share_interval(some: int, of: int) -> Interval:
    """Return the exact interval of a share, that of Clopper and Pearson (1934); unknown of none."""
    if not of:
        return UNKNOWN_INTERVAL
    outside = (1 - CONFIDENCE) / 2
    low = special.betaincinv(some, of - some + 1, outside) if some else 0.0
    high = special.betaincinv(some + 1, of - some, 1 - outside) if some < of else 1.0
    return float(low), float(high)


def median_intervals(samples: Sequence[Array], possible: Interval = ANY) -> list[Interval]:
    """Return `Launches.interval` of each sample, which holds one number per launch.

    Samples of equal size are bootstrapped together: one by one they would take minutes in a large study.
    For paired differences, or logarithms of paired ratios, pass one value per pair. No interval reaches
    beyond what is `possible`. Unknown for fewer than 3 launches, or where a number is not finite.
    """
    low, high = np.clip(Launches.of_samples(samples).interval(_joined(samples)), *possible)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def contrasts_of(samples: Sequence[Array]) -> list[dict[str, float]]:
    """Return `contrast_of` each sample of paired differences, with the interval of its bootstrap."""
    ends = zip(*bounds(Launches.of_samples(samples).replicates(_joined(samples))), strict=True)
    return [contrast_of([values], of) for values, of in zip(samples, ends, strict=True)]


def _joined(samples: Sequence[Array]) -> Array:
    return np.concatenate([*samples, np.array([])])


def replicates(values: Array, deviations: Array | None = None, *, stream: int = 0) -> Array:
    """Return bootstrap replicates of the median over launches, (points, RESAMPLES).

    values      (points, launches), one number per launch
    deviations  (realisations, points, launches): bootstrapped over a launch's blocks, minus its value
    stream      points with equally many launches draw the same launches in one stream, so that the
                replicates of two points may be subtracted as pairs; other streams are independent

    NaN where there are fewer than 3 launches or one of them is unknown. All points are resampled alike, so
    that a point's interval does not depend on the others.
    """
    points, launches = values.shape
    replicated = np.full((points, RESAMPLES), np.nan)
    known = np.isfinite(values).all(axis=-1)
    if launches < FEWEST_REPEATS or not known.any():
        return replicated
    given = np.zeros((1, *values.shape)) if deviations is None else deviations
    random = np.random.default_rng((RESAMPLING_SEED, stream))
    within, between = _second_level(values[known], given[:, known])
    # Each draw takes a launch, the deviation of any launch's blocks and the residual of any launch.
    draws = (len(within), RESAMPLES // len(within) // BATCH, 3, BATCH, launches)
    launch, deviation, residual = random.integers(0, launches, draws).transpose(2, 0, 1, 3, 4)
    batch = 0
    for own, *chosen in zip(within, launch, deviation, residual, strict=True):
        for drawn, of_blocks, of_others in zip(*chosen, strict=True):
            sums = values[known][:, drawn] + own[:, of_blocks] + between[:, of_others]
            replicated[known, batch : batch + BATCH] = np.median(sums, axis=-1)
            batch += BATCH
    return replicated


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


def _quotient(above: Array | float, below: Array) -> Array:
    """Return above / below, 0 where nothing is below."""
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def bounds(replicated: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Return the bounds of the percentile interval, for each row of replicates; NaN where unknown."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(replicated, [outside, 1 - outside], axis=-1)
    return low, high


def student(values: Array) -> Array:
    """Return centre, standard error and degrees of freedom of Student's t, stacked, over the last axis.

    From 8 launches on of the trimmed mean, with the winsorised variance (Yuen 1974, Biometrika 61, 165).
    """
    launches = values.shape[-1]
    cut = int(TRIMMED_SHARE * launches) if launches >= FEWEST_TRIMMED else 0
    ordered = np.sort(values, axis=-1)
    kept = ordered[..., cut : launches - cut]
    winsorised = np.clip(ordered, kept[..., :1], kept[..., -1:])
    number = kept.shape[-1]
    # Infinite is what a run never reached; of it nothing is known.
    with np.errstate(invalid="ignore"):
        error = np.sqrt(winsorised.var(axis=-1) * launches / (number * (number - 1)))
    return np.stack(np.broadcast_arrays(kept.mean(axis=-1), error, number - 1.0))


def welch(first: Array, second: Array) -> Array:
    """Return the second less the first of two independent results of `student` (Welch 1947)."""
    one, other = first[1] ** 2, second[1] ** 2
    freedom = (one + other) ** 2 * _quotient(1.0, one**2 / first[2] + other**2 / second[2])
    freedom = np.where(freedom > 0, freedom, np.minimum(first[2], second[2]))
    return np.stack([second[0] - first[0], np.sqrt(one + other), freedom])


def probability(test: Array) -> Array:
    """Return the two-sided probability of results of `student`, 1 where all values are 0."""
    centre, error, freedom = test
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(centre == 0, 1.0, 2 * special.stdtr(freedom, -np.abs(centre) / error))


def wider(ends: Sequence[Array], of_student: Array, significance: Array | float = 1 - CONFIDENCE) -> Array:
    """Return the wider one, on each side, of an interval and that of Student's t: low and high."""
    centre, error, freedom = of_student
    reach = -special.stdtrit(freedom, significance / 2) * error
    return np.array([np.minimum(ends[0], centre - reach), np.maximum(ends[1], centre + reach)])


@dataclass(frozen=True)
class Launches:
    """Integers of launches, one or more columns of them, grouped into points.

    point       (launches,) number of the point that each belongs to, counted from 0
    points      how many points there are
    repeats     (launches,) repeat of each: launches of one point are taken in this order
    """

    point: Integers
    points: int
    repeats: Integers

    @classmethod
    def of_samples(cls, samples: Sequence[Array]) -> "Launches":
        """Return the launches of samples, a point each."""
        point = np.repeat(np.arange(len(samples)), [len(sample) for sample in samples])
        return cls(point, len(samples), np.arange(len(point)))

    @cached_property
    def sizes(self) -> Integers:
        """The number of launches of each point, (points,)."""
        return np.asarray(np.bincount(self.point, minlength=self.points), dtype=np.int64)

    def medians(self, values: Array) -> Array:
        """Return the median over each point's launches; NaN where one of them is unknown."""
        grouped = pd.Series(values).groupby(self.point)
        medians = grouped.median().where(grouped.count() == grouped.size())
        return np.asarray(medians.reindex(range(self.points)), dtype=np.float64)

    def bounded(self, values: Array, possible: Interval = ANY) -> Array:
        """Return median and interval of a number without blocks, (3, points), within what is `possible`."""
        return np.array([self.medians(values), *np.clip(self.interval(values), *possible)], dtype=np.float64)

    def interval(self, values: Array, deviations: Array | None = None) -> Array:
        """Return the interval of their median, (2, points): the wider of bootstrap and Student's t."""
        return wider(bounds(self.replicates(values, deviations)), self.students(values))

    def students(self, values: Array) -> Array:
        """Return `student` of these values, (3, points)."""
        found = np.full((3, self.points), np.nan)
        for points, members in self.of_equal_size():
            found[:, points] = student(values[members])
        return found

    def differences(self, values: Array, points: Integers, baseline: Integers) -> Array:
        """Return the interval of the median of each of these points less that of its `baseline`, (2, points).

        Launches are pairs where both have the same repeats, else independent.
        """
        replicated = self.replicates(values)
        drawn = replicated[points] - self.baseline_replicates(values, replicated, points, baseline)
        of_student = self.students(values)
        tests = welch(of_student[:, baseline], of_student[:, points])
        place = np.empty_like(self.sizes)
        for own, members in self.of_equal_size():
            place[own] = np.arange(len(own))
            among = np.flatnonzero(np.isin(points, own) & np.isin(baseline, own))
            sides = [members[place[each[among]]] for each in (points, baseline)]
            is_paired = (self.repeats[sides[0]] == self.repeats[sides[1]]).all(axis=-1)
            pairs = values[sides[0][is_paired]] - values[sides[1][is_paired]]
            tests[:, among[is_paired]] = student(pairs)
        return wider(bounds(drawn), tests)

    def replicates(self, values: Array, deviations: Array | None = None, *, stream: int = 0) -> Array:
        """Return replicates of the median of these values, (points, RESAMPLES).

        `deviations` (realisations, launches) are those of the launches' blocks, where the values are
        logarithms of throughput. Leave them out where replicates of two points are to be subtracted:
        residuals of one repeat cancel as their launches do, deviations do not.
        """
        replicated = np.full((self.points, RESAMPLES), np.nan)
        for points, members in self.of_equal_size():
            within = None if deviations is None else deviations[:, members]
            replicated[points] = replicates(values[members], within, stream=stream)
        return replicated

    def baseline_replicates(
        self, values: Array, replicated: Array, points: Integers, baseline: Integers
    ) -> Array:
        """Return replicates of the baseline of each of these points, as pairs with those of the points.

        `replicated` are those of all points. Where the repeats differ, the baseline is drawn in another
        stream, so independently.
        """
        drawn = replicated[baseline]
        by_point = pd.Series(self.repeats).groupby(self.point)
        repeat_sets = pd.factorize(pd.Series([tuple(sorted(repeats)) for _, repeats in by_point]))[0]
        apart = np.flatnonzero(repeat_sets[points] != repeat_sets[baseline])
        if len(apart):
            drawn[apart] = self.replicates(values, stream=1)[baseline[apart]]
        return drawn

    def of_equal_size(self) -> Sequence[tuple[Integers, Integers]]:
        """Return points of equally many launches, (points,), and their launches, (points, number).

        Points of fewer than 3 launches are left out.
        """
        order = np.lexsort((self.repeats, self.point))
        first = np.cumsum(self.sizes) - self.sizes
        enough = [size for size in np.unique(self.sizes) if size >= FEWEST_REPEATS]
        groups = [(np.flatnonzero(self.sizes == size), size) for size in enough]
        return [(points, order[first[points][:, None] + np.arange(size)]) for points, size in groups]


def launches_of(runs: pd.DataFrame, columns: list[str]) -> Launches:
    """Return the launches in `runs`; runs that agree in `columns` are one point, in order of appearance."""
    groups = runs.groupby(columns, sort=False, dropna=False)
    point = np.asarray(groups.ngroup(), dtype=np.int64)
    return Launches(point, int(point.max(initial=-1)) + 1, runs["repeat"].to_numpy(dtype=np.int64))


def add_bounded(table: pd.DataFrame, name: str, bounded: Iterable[Any]) -> None:
    """Add the columns `name`, `name`_low and `name`_high: a number and the ends of its interval."""
    table[name], table[f"{name}_low"], table[f"{name}_high"] = bounded


def kept_though_disturbed(study: Study) -> pd.DataFrame:
    """Return the disturbed launches that count for speed all the same."""
    runs = study.timed.runs
    return runs[runs["disturbed"] != ""]


@dataclass(frozen=True)
class Blocks:
    """Work (images, or epochs in logs that count no images) and seconds of each block of each launch.

    epochs  (launches,) number of epochs in use
    counts  (launches,) number of blocks: an epoch each, up to MOST_BLOCKS of several epochs each, so that
            what one epoch passes on to the next stays inside a block
    work, seconds  (launches, MOST_BLOCKS), 0 beyond `counts`
    """

    epochs: Integers
    counts: Integers
    work: Array
    seconds: Array


def epoch_blocks(epochs: pd.DataFrame, throughput: str, runs: Sequence[str]) -> Blocks:
    """Return the blocks of these runs, in their order, without warm-up and stalled epochs."""
    epochs = epochs[~(epochs["warmup"].astype(bool) | epochs["stalled"].astype(bool))]
    launch = pd.Index(runs).get_indexer(pd.Index(epochs["run"]))
    order = np.lexsort((epochs["epoch"].to_numpy(), launch))
    order = order[launch[order] >= 0]
    epochs, launch = epochs.iloc[order], launch[order]
    sizes = np.bincount(launch, minlength=len(runs))
    counts = np.minimum(sizes, MOST_BLOCKS)
    position = np.arange(len(launch)) - (np.cumsum(sizes) - sizes)[launch]
    block = launch * MOST_BLOCKS + position * counts[launch] // sizes[launch]

    def sums(weights: "pd.Series[float]") -> Array:
        flat = np.bincount(block, weights.to_numpy(dtype=np.float64), minlength=len(runs) * MOST_BLOCKS)
        return np.asarray(flat, dtype=np.float64).reshape(len(runs), MOST_BLOCKS)

    in_images = throughput == "images_per_second"
    work = epochs["images"] if in_images else pd.Series(1.0, index=epochs.index)
    return Blocks(sizes, counts, sums(work), sums(epochs["seconds"]))


def block_deviations(epochs: pd.DataFrame, throughput: str, runs: Sequence[str]) -> Array:
    """Return the logarithm of each launch's throughput over resampled blocks, minus that over all of them.

    (REALISATIONS, launches), in the order of `runs`, which may name a run more than once; zeros for a launch
    of fewer than 2 epochs, which says nothing about the noise within it.
    """
    launch, names = pd.factorize(pd.Index(runs))
    blocks = epoch_blocks(epochs, throughput, list(names))
    deviations = np.zeros((REALISATIONS, len(names)))
    for count in np.unique(blocks.counts[blocks.counts >= _FEWEST_BLOCKS]):
        chosen = np.flatnonzero(blocks.counts == count)
        work, seconds = blocks.work[chosen, :count], blocks.seconds[chosen, :count]
        draws = np.random.default_rng(RESAMPLING_SEED).integers(0, count, (REALISATIONS, count))
        resampled = _log_throughput(work[:, draws], seconds[:, draws])
        deviations[:, chosen] = (resampled - _log_throughput(work, seconds)[:, None]).T
    return deviations[:, launch]


def _log_throughput(work: Array, seconds: Array) -> Array:
    return np.asarray(np.log(work.sum(axis=-1) / seconds.sum(axis=-1)), dtype=np.float64)


def apart(first: Array, second: Array, least: float) -> bool:
    """Return whether two means differ by more than `least`, and than chance explains: Student's t, at 0.1 %.

    Dozens of figures and points are asked: at 5 % every report would name some.
    """
    freedom = len(first) + len(second) - 2
    chance = 0.0
    if freedom:
        squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (first, second))
        error = math.sqrt(squares / freedom * (1 / len(first) + 1 / len(second)))
        chance = -float(special.stdtrit(freedom, CHANCE_OF_APART / 2)) * error
    return bool(abs(first.mean() - second.mean()) > max(least, chance))


def contrast_of(samples: Sequence[Array], interval: Interval) -> dict[str, float]:
    """Return a sample of differences, or the second sample less the first: a test for `corrected`.

    median  of the differences, or difference of the medians; low, high: `interval`, that of the bootstrap
    centre, error, freedom  of `student`, for two samples of `welch`
    fewest  launches of the smaller sample; of fewer than 3 only this and the median are known
    """
    fewest = min(map(len, samples))
    medians = [float(np.median(values)) if fewest else NAN for values in samples]
    median = medians[-1] - sum(medians[:-1])
    found: dict[str, float] = dict.fromkeys(CONTRAST_COLUMNS, NAN) | {"median": median, "fewest": fewest}
    if fewest < FEWEST_REPEATS:
        return found
    first, *second = map(student, samples)
    test = welch(first, *second) if second else first
    return found | dict(
        zip(("low", "high", "centre", "error", "freedom"), (*interval, *test.tolist()), strict=True)
    )


def corrected(
    tests: pd.DataFrame,
    family: Sequence[str] = (),
    significance: float = FIXED_SIGNIFICANCE,
    equal_within: float = 0.0,
) -> pd.DataFrame:
    """Return low, high, p_adjusted, comparisons and needed of two-sided t-tests of `contrast_of`.

    Tests that agree in the columns `family` are corrected for each other; without columns all are. Intervals
    hold for all of a family together (Bonferroni): on each side the wider of Student's t and the bootstrap's
    (`low`, `high`). Probabilities are Holm's, which finds more: where it finds a difference that an interval
    leaves open, that ends at 0 (Guilbaud 2008, Biometrical Journal 50, 678). Without a bootstrap interval
    nothing is known.

    `needed`: launches with which intervals exclude 0, or lie within +- `equal_within`, in 80 % of studies, if
    the median is the true one and the deviation stays (Guenther 1981); at least one more than there are.
    """
    columns = ["low", "high", "centre", "error", "freedom"]
    low, high, centre, *_ = of_tests = tests[columns].to_numpy(dtype=np.float64).T
    by_chance = np.where(np.isnan(low), NAN, probability(of_tests[2:]))
    families = tests.groupby(list(family), sort=False).indices.values() if family else [np.arange(len(tests))]
    adjusted, comparisons = np.full((2, len(tests)), NAN)
    for members in families:
        known = members[np.isfinite(by_chance[members])]
        adjusted[known] = holm(by_chance[known])
        comparisons[known] = np.isfinite(by_chance[members]).sum()
    each = significance / comparisons
    ends = wider((low, high), of_tests[2:], each)
    found = adjusted <= significance
    ends[0] = np.where(found & (np.minimum(low, centre) > 0), np.maximum(ends[0], ABOVE_ZERO), ends[0])
    ends[1] = np.where(found & (np.maximum(high, centre) < 0), np.minimum(ends[1], -ABOVE_ZERO), ends[1])
    quantile = -special.ndtri(each / 2)
    size = np.abs(tests["median"].to_numpy(dtype=np.float64))
    fewest = tests["fewest"].to_numpy(dtype=np.float64)
    # To be equal an interval has two ends to keep within: at 90 % each, both are in 80 % of studies.
    efforts = [(quantile + special.ndtri(POWER), size), (quantile + special.ndtri(0.9), equal_within - size)]
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = [np.where(distance > 0, width / distance, np.inf) for width, distance in efforts]
        needed = fewest * (of_tests[3] * np.minimum(*reach)) ** 2
    few = quantile**2 / 2
    needed = few + needed * np.where(needed + few < FEWEST_TRIMMED, 1.0, COST_OF_ROBUSTNESS)
    needed = np.where(np.isfinite(needed), np.maximum(fewest + 1, np.ceil(needed)), NAN)
    names = ("low", "high", "p_adjusted", "comparisons", "needed")
    return pd.DataFrame(dict(zip(names, (*ends, adjusted, comparisons, needed), strict=True)))


def holm(probability: Array) -> Array:
    """Return adjusted probabilities: the k-th smallest of m times m - k + 1, and at least the one before."""
    tests = len(probability)
    order = np.argsort(probability, kind="stable")
    adjusted = np.empty(tests)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate((tests - np.arange(tests)) * probability[order]))
    return adjusted
