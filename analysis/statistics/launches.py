"""The launches of each point, and the bootstrap replicates of the point's median over them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.arrays import Array, Integers
from analysis.statistics.intervals import FEWEST_REPEATS, RESAMPLES, Interval, bounds, replicates


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

    def medians(self, values: Array) -> Array:
        """Return the median over each point's launches; NaN where one of them is unknown."""
        grouped = pd.Series(values).groupby(self.point)
        medians = grouped.median().to_numpy(dtype=np.float64)
        return np.where(grouped.count() == grouped.size(), medians, np.nan)

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

    def intervals(self, values: Array, possible: Interval) -> tuple[Array, Array]:
        """Return the bounds of each point's median of a number that has no blocks, clipped to `possible`."""
        low = np.full(self.points, np.nan)
        high = low.copy()
        for points, members in self.of_equal_size():
            low[points], high[points] = np.clip(bounds(replicates(values[members])), *possible)
        return low, high

    def of_equal_size(self, fewest: int = FEWEST_REPEATS) -> Sequence[tuple[Integers, Integers]]:
        """Return points of equally many launches, (points,), and their launches, (points, number)."""
        order = np.lexsort((self.repeats, self.point))
        sizes = np.bincount(self.point, minlength=self.points)
        first = np.cumsum(sizes) - sizes
        groups = [np.flatnonzero(sizes == size) for size in np.unique(sizes) if size >= fewest]
        return [(points, order[first[points][:, None] + np.arange(sizes[points[0]])]) for points in groups]


def launches_of(runs: pd.DataFrame, columns: list[str]) -> Launches:
    """Return the launches in `runs`; runs that agree in `columns` are one point, in order of appearance."""
    groups = runs.groupby(columns, sort=False, dropna=False)
    point = np.asarray(groups.ngroup(), dtype=np.int64)
    return Launches(point, int(point.max(initial=-1)) + 1, runs["repeat"].to_numpy(dtype=np.int64))
