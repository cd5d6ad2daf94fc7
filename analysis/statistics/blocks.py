"""Blocks of contiguous epochs within each launch, and what a bootstrap of them says of its throughput."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.arrays import Array, Integers
from analysis.statistics.intervals import RESAMPLING_SEED
from analysis.study import Study

# Fewer than this leave every epoch a block of its own; more would take memory and say no more: the bootstrap
# of 20 blocks gives the variance of their mean within a third.
MOST_BLOCKS = 20
# One block resampled is itself: no deviation at all.
_FEWEST_BLOCKS = 2
# A divisor of RESAMPLES: each realisation of the deviations serves 100 resamples of the launches.
REALISATIONS = 20


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
    epochs, launch = _used_epochs(study, runs)
    sizes = np.bincount(launch, minlength=len(runs))
    counts = np.minimum(sizes, MOST_BLOCKS)
    cell = _cells(launch, sizes, counts)
    in_images = study.throughput == "images_per_second"
    work = epochs["images"] if in_images else pd.Series(1.0, index=epochs.index)
    return Blocks(sizes, counts, _sums(cell, work, len(runs)), _sums(cell, epochs["seconds"], len(runs)))


def _cells(launch: Integers, sizes: Integers, counts: Integers) -> Integers:
    """Return the block of each epoch, counted over all launches; epochs are in the order of their launch."""
    first = np.cumsum(sizes) - sizes
    position = np.arange(len(launch)) - first[launch]
    return np.asarray(launch * MOST_BLOCKS + position * counts[launch] // sizes[launch], dtype=np.int64)


def _used_epochs(study: Study, runs: Sequence[str]) -> tuple[pd.DataFrame, Integers]:
    """Return the epochs in use, by run and epoch, and the place in `runs` that each belongs to."""
    epochs = study.epochs[~(study.epochs["warmup"].astype(bool) | study.epochs["stalled"].astype(bool))]
    launch = np.asarray(pd.Index(runs).get_indexer(pd.Index(epochs["run"])), dtype=np.int64)
    order = np.lexsort((epochs["epoch"].to_numpy(), launch))
    order = order[launch[order] >= 0]
    return epochs.iloc[order], launch[order]


def _sums(cell: Integers, values: "pd.Series[float]", launches: int) -> Array:
    """Return the sum of the values in each block, (launches, MOST_BLOCKS)."""
    weights = values.to_numpy(dtype=np.float64)
    sums = np.bincount(cell, weights, minlength=launches * MOST_BLOCKS)
    return np.asarray(sums, dtype=np.float64).reshape(launches, MOST_BLOCKS)


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
        deviations[:, chosen] = _resampled(blocks.work[chosen, :count], blocks.seconds[chosen, :count])
    return deviations[:, launch]


def _resampled(work: Array, seconds: Array) -> Array:
    distribution = stats.bootstrap(
        (work, seconds),
        _log_throughput,
        paired=True,
        vectorized=True,
        axis=-1,
        n_resamples=REALISATIONS,
        batch=1,
        method="percentile",
        rng=np.random.default_rng(RESAMPLING_SEED),
    ).bootstrap_distribution
    return np.asarray(distribution.T - _log_throughput(work, seconds), dtype=np.float64)


def _log_throughput(work: Array, seconds: Array, axis: int = -1) -> Array:
    return np.asarray(np.log(work.sum(axis=axis) / seconds.sum(axis=axis)), dtype=np.float64)
