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
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Not scipy.stats: to import it takes longer than a small report does.
from scipy import special  # type: ignore[import-untyped]

from analysis.study import NAN, POINT, Array, Integers, Study
from unet_scaling.study.repeats import FIXED_SIGNIFICANCE

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
# Fewer epochs leave every epoch a block of its own; more blocks would take memory and say no more: the
# bootstrap of 20 blocks gives the variance of their mean within a third.
MOST_BLOCKS = 20
# One block resampled is itself: no deviation at all.
_FEWEST_BLOCKS = 2
# A divisor of RESAMPLES: each realisation of the deviations serves 100 resamples of the launches.
REALISATIONS = 20
# The usual convention for the chance to find a difference that is there (Cohen 1988).
POWER = 0.8
# Of a figure at a point: a report has dozens of them.
CHANCE_OF_APART = 0.001
CONTRAST_COLUMNS = ("median", "low", "high", "centre", "error", "freedom", "fewest", "needed")
NORMAL_QUANTILES = float(special.ndtri((1 + CONFIDENCE) / 2) + special.ndtri(POWER))

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
Interval = tuple[float, float]
UNKNOWN_INTERVAL: Interval = (NAN, NAN)
# What a number can be at all. A bootstrap knows no bounds: at them it may reach beyond by a little.
ANY: Interval = (-math.inf, math.inf)
NOT_NEGATIVE: Interval = (0.0, math.inf)
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
    outside = (1 - CONFIDENCE) / 2
    low = special.betaincinv(some, of - some + 1, outside) if some else 0.0
    high = special.betaincinv(some + 1, of - some, 1 - outside) if some < of else 1.0
    return float(low), float(high)


def median_intervals(samples: Sequence[Array], possible: Interval = ANY) -> list[Interval]:
    """Return the interval of the median of each sample, which holds one number per launch.

    Samples of equal size are bootstrapped together: one by one they would take minutes in a large study.
    For paired differences, or logarithms of paired ratios, pass one value per pair. No interval reaches
    beyond what is `possible`. Unknown for fewer than 3 launches, or where a number is not finite.
    """
    sizes = [len(sample) for sample in samples]
    point = np.repeat(np.arange(len(samples)), sizes)
    launches = Launches(point, len(samples), np.arange(len(point)))
    _, low, high = launches.bounded(np.concatenate([*samples, []]), possible)
    return list(zip(low.tolist(), high.tolist(), strict=True))


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


def _quotient(above: Array, below: Array) -> Array:
    """Return above / below, 0 where nothing is below."""
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def bounds(replicated: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Return the bounds of the percentile interval, for each row of replicates; NaN where unknown."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(replicated, [outside, 1 - outside], axis=-1)
    return low, high


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
        ends = np.clip(bounds(self.replicates(values)), *possible)
        return np.array([self.medians(values), *ends], dtype=np.float64)

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


def timed(study: Study) -> Study:
    """Return the study without disturbed launches, where enough others of their point remain.

    What a launch learned does not depend on its speed: of its IoU the whole study tells.
    """
    counted = counts_for_speed(study.runs, study.runs["disturbed"] != "", POINT)
    return study if counted.all() else replace(study, runs=study.runs[counted])


def counts_for_speed(
    launches: pd.DataFrame, disturbed: "pd.Series[bool]", columns: list[str]
) -> NDArray[np.bool_]:
    """Return which launches, or pairs of them, count: all of a group in which too few are undisturbed.

    A group is what agrees in `columns`. An interval needs 3 launches, so fewer are not preferred to more.
    """
    groups = [launches[name] for name in columns]
    quiet = (~disturbed).groupby(groups, sort=False, dropna=False).transform("sum")
    return np.asarray(~disturbed | (quiet < FEWEST_REPEATS), dtype=np.bool_)


def kept_though_disturbed(study: Study) -> pd.DataFrame:
    """Return the disturbed launches that count for speed all the same."""
    runs = timed(study).runs
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


def epoch_blocks(study: Study, runs: Sequence[str]) -> Blocks:
    """Return the blocks of these runs, in their order, without warm-up and stalled epochs."""
    epochs = study.epochs[~(study.epochs["warmup"].astype(bool) | study.epochs["stalled"].astype(bool))]
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

    in_images = study.throughput == "images_per_second"
    work = epochs["images"] if in_images else pd.Series(1.0, index=epochs.index)
    return Blocks(sizes, counts, sums(work), sums(epochs["seconds"]))


def block_deviations(study: Study, runs: Sequence[str]) -> Array:
    """Return the logarithm of each launch's throughput over resampled blocks, minus that over all of them.

    (REALISATIONS, launches), in the order of `runs`, which may name a run more than once; zeros for a launch
    of fewer than 2 epochs, which says nothing about the noise within it.
    """
    launch, names = pd.factorize(pd.Index(runs))
    blocks = epoch_blocks(study, list(names))
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
    centre, error, freedom  of Student's t, for two samples Welch's (1947)
    fewest  launches of the smaller sample; of fewer than 3 only this and the median are known
    needed  launches of each with which such a difference would be significant in 80 % of studies, if the
            median is the true one and the standard deviations s stay: the median of n normal values has the
            variance pi / 2 * s^2 / n. At least one more than there are; NaN without any difference
    """
    fewest = min(map(len, samples))
    medians = [float(np.median(values)) if fewest else NAN for values in samples]
    median = medians[-1] - sum(medians[:-1])
    found: dict[str, float] = dict.fromkeys(CONTRAST_COLUMNS, NAN) | {"median": median, "fewest": fewest}
    if fewest < FEWEST_REPEATS:
        return found
    variances = [float(values.var(ddof=1)) for values in samples]
    squares = [variance / len(values) for variance, values in zip(variances, samples, strict=True)]
    spread = sum(square**2 / (len(values) - 1) for square, values in zip(squares, samples, strict=True))
    means = [float(values.mean()) for values in samples]
    if abs(median) > 0:
        of_normal = math.pi / 2 * sum(variances) * (NORMAL_QUANTILES / median) ** 2
        found["needed"] = float(max(fewest + 1, math.ceil(of_normal)))
    return found | {
        "low": interval[0],
        "high": interval[1],
        "centre": means[-1] - sum(means[:-1]),
        "error": sum(squares) ** 0.5,
        "freedom": sum(squares) ** 2 / spread if spread > 0 else fewest - 1.0,
    }


def corrected(
    tests: pd.DataFrame, family: Sequence[str] = (), significance: float = FIXED_SIGNIFICANCE
) -> pd.DataFrame:
    """Return low, high, p_adjusted and comparisons of two-sided t-tests (centre, error, freedom), by Holm.

    Tests that agree in the columns `family` are corrected for each other; without columns all are. An
    interval is the wider of Student's t and the bootstrap's (`low`, `high`) on each side, and excludes 0
    only where that holds for all of a family together. Without a bootstrap interval nothing is known. The
    probability is 1 where all values are 0.
    """
    names = ("low", "high", "centre", "error", "freedom")
    low, high, centre, error, freedom = (tests[name].to_numpy(dtype=np.float64) for name in names)
    with np.errstate(divide="ignore", invalid="ignore"):
        probability = np.where(centre == 0, 1.0, 2 * special.stdtr(freedom, -np.abs(centre) / error))
    probability[np.isnan(low)] = NAN
    families = tests.groupby(list(family), sort=False).indices.values() if family else [np.arange(len(tests))]
    found = np.full((3, len(tests)), NAN)
    for members in families:
        known = members[np.isfinite(probability[members])]
        found[:, known] = holm(probability[known], significance)
    own_significance, adjusted, comparisons = found
    reach = -special.stdtrit(freedom, own_significance / 2) * error
    ends = {"low": np.minimum(low, centre - reach), "high": np.maximum(high, centre + reach)}
    return pd.DataFrame(ends | {"p_adjusted": adjusted, "comparisons": comparisons})


def holm(probability: Array, alpha: float = FIXED_SIGNIFICANCE) -> tuple[Array, Array, Array]:
    """Return the significance of each test's interval, its adjusted probability, and the number of tests.

    By Holm's procedure the k-th smallest of m probabilities is compared with alpha / (m - k + 1), until one
    is too large; all from there on keep its significance. So an interval excludes "no difference" just
    where Holm's procedure rejects it.
    """
    tests = len(probability)
    order = np.argsort(probability, kind="stable")
    ordered, steps = probability[order], tests - np.arange(tests)
    kept = np.flatnonzero(ordered > alpha / steps)
    step_kept = steps[kept[0]] if len(kept) else 1
    significance, adjusted = np.empty((2, tests))
    significance[order] = alpha / np.maximum(steps, step_kept)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps * ordered))
    return significance, adjusted, np.full(tests, float(tests))


# The function of a process beside this one. It is sent once, as it may hold the tables of a whole study.
_function: list[Callable[[Any], Any]] = []


def parallel_map(
    function: Callable[[_Item], _Result], items: Sequence[_Item], *, chunk: int = 1
) -> Iterator[_Result]:
    """Return `function` of each item, computed by one process per available core, `chunk` items at a time.

    They begin at once: the caller may do something else before it takes the results, but start no processes.
    None is started for a single chunk or on a single core. What `function` raises is raised as its result is
    taken.
    """
    processes = min(len(os.sched_getaffinity(0)), -(-len(items) // chunk))
    if processes < 2:
        return map(function, items)
    pool = ProcessPoolExecutor(processes, initializer=_keep, initargs=(function,))
    results = pool.map(_call, items, chunksize=chunk)

    def taken() -> Iterator[_Result]:
        with pool:
            yield from cast(Iterator[_Result], results)

    return taken()


def _keep(function: Callable[[Any], Any]) -> None:
    _function[:] = [function]


def _call(item: object) -> object:
    return _function[0](item)
