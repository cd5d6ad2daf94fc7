"""Intervals of the medians of many points at once: one bootstrap each would take minutes in a large study."""

from collections.abc import Sequence

import numpy as np

from analysis.statistics.intervals import ANY, UNKNOWN, Array, Interval, bounds, replicates


def median_intervals(samples: Sequence[Array], possible: Interval = ANY) -> list[Interval]:
    """The interval of the median of each sample: the same as `intervals.median_interval` gives it alone.

    `samples` hold one number per launch and may differ in length. No interval reaches beyond
    what is `possible`. Unknown for fewer than 3 launches, or
    where a number is not finite.
    """
    found = [UNKNOWN] * len(samples)
    of_size: dict[int, list[int]] = {}
    for place, sample in enumerate(samples):
        of_size.setdefault(len(sample), []).append(place)
    for places in of_size.values():
        low, high = np.clip(bounds(replicates(np.stack([samples[place] for place in places]))), *possible)
        for place, *interval in zip(places, low, high, strict=True):
            found[place] = float(interval[0]), float(interval[1])
    return found
