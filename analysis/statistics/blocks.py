"""Blocks of contiguous epochs within each launch, and what a bootstrap of them says of its throughput."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from analysis.statistics.intervals import SEED
from analysis.study import Study

MOST_BLOCKS = 20
FEWEST_BLOCKS = 2
REALISATIONS = 20

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """Work (images, or epochs in logs that count no images) and seconds of each block of each launch.

    epochs  (launches,) number of epochs in use
    counts  (launches,) number of blocks: an epoch each, up to MOST_BLOCKS of several epochs each, so that
            what one epoch passes on to the next stays inside a block
    work, seconds  (launches, MOST_BLOCKS), 0 beyond `counts`
    """

    epochs: NDArray[np.int64]
    counts: NDArray[np.int64]
    work: Array
    seconds: Array


def epoch_blocks(study: Study, runs: Sequence[str]) -> Blocks:
    """The blocks of these runs, after the warm-up and without stalled epochs, in the order of `runs`."""
    unused = study.epochs["warmup"].to_numpy(dtype=bool) | study.epochs["stalled"].to_numpy(dtype=bool)
    epochs = study.epochs[~unused]
    code = pd.Index(runs).get_indexer(pd.Index(epochs["run"]))
    epochs, code = epochs[code >= 0], code[code >= 0]
    order = np.lexsort((epochs["epoch"].to_numpy(), code))
    epochs, code = epochs.iloc[order], code[order]
    sizes = np.bincount(code, minlength=len(runs))
    position = np.arange(len(code)) - (np.cumsum(sizes) - sizes)[code]
    counts = np.minimum(sizes, MOST_BLOCKS)
    cell = code * MOST_BLOCKS + position * counts[code] // sizes[code]
    counts_images = study.throughput == "images_per_second"
    work = epochs["images"].to_numpy(dtype=np.float64) if counts_images else np.ones(len(code))
    seconds = epochs["seconds"].to_numpy(dtype=np.float64)
    shape = (len(runs), MOST_BLOCKS)
    sums = [np.bincount(cell, each, minlength=shape[0] * shape[1]).reshape(shape) for each in (work, seconds)]
    return Blocks(sizes, counts, *(np.asarray(each, dtype=np.float64) for each in sums))


def block_deviations(study: Study, runs: Sequence[str]) -> Array:
    """Logarithm of each launch's throughput over resampled blocks, minus that over all of them.

    (REALISATIONS, launches), in the order of `runs`; zeros for a launch of fewer than 2 epochs, which
    says nothing about the noise within it.
    """
    blocks = epoch_blocks(study, runs)
    found = np.zeros((REALISATIONS, len(runs)))
    for count in np.unique(blocks.counts[blocks.counts >= FEWEST_BLOCKS]):
        chosen = np.flatnonzero(blocks.counts == count)
        found[:, chosen] = _resampled(blocks.work[chosen, :count], blocks.seconds[chosen, :count])
    return found


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
        rng=np.random.default_rng(SEED),
    ).bootstrap_distribution
    return np.asarray(distribution.T - _log_throughput(work, seconds), dtype=np.float64)


def _log_throughput(work: Array, seconds: Array, axis: int = -1) -> Array:
    return np.asarray(np.log(work.sum(axis=axis) / seconds.sum(axis=axis)), dtype=np.float64)
