"""The points of a series: seconds per step of every launch, by worker count.

Logs without steps give the time of the work of one worker's epoch instead, workers / throughput, in which
dropped images pass for work; their throughput is in epochs / h.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.prediction.scaling_laws import Counts, Vector
from analysis.stats import Interval, timed
from analysis.study import NAN, SECONDS_PER_HOUR, SERIES, Names, Study
from analysis.text import count

# Two points and compute alone leave nothing to tell transfer from anything else.
FEWEST_COUNTS = 3
_NUMBERS = ["workers", "nodes", "step_seconds", "images_per_epoch", "steps_per_epoch"]


@dataclass(frozen=True)
class Series:
    """Points of one series, smallest count first.

    launches  seconds per step of every launch of each count
    work      throughput = workers x work / seconds per step
    measured  median throughput of each count
    """

    key: tuple[str, ...]
    counts: Counts
    launches: tuple[Vector, ...]
    work: float
    measured: Vector

    @property
    def medians(self) -> Vector:
        """Median seconds per step of each count."""
        return np.array([np.median(times) for times in self.launches])

    def throughput(self, at: Counts, seconds: float) -> float:
        """Return the throughput of steps of so many seconds, at one count."""
        return float(at.workers[0]) * self.work / float(seconds)

    def throughputs(self, at: Counts, seconds: Interval) -> Interval:
        """Return the interval of the throughput of steps whose seconds have this interval, at one count."""
        shortest, longest = seconds
        return self.throughput(at, longest), self.throughput(at, shortest)

    def name(self, names: Names) -> str:
        """Return "native DDP, precision=bf16"."""
        options, framework, knobs = self.key
        name = next(name for known, name in names.items() if known == framework)
        return ", ".join(part for part in (name, options, knobs) if part)

    def held_out(self) -> Iterator[tuple[int, range]]:
        """Yield how many of the smallest counts are fitted, with the places of the larger ones to check."""
        for fitted in range(FEWEST_COUNTS, len(self.launches)):
            yield fitted, range(fitted, len(self.launches))


def all_series(study: Study) -> list[Series]:
    """Return the series of a study, from the launches that count for speed."""
    numbers = [*_NUMBERS, study.throughput]
    return [
        _series(tuple(map(str, key)), runs[numbers].to_numpy(dtype=np.float64, na_value=NAN))
        for key, runs in timed(study).runs.groupby(SERIES, sort=False)
    ]


def _series(key: tuple[str, ...], runs: Vector) -> Series:
    """Return a series from its runs, [runs, columns]: _NUMBERS, then the throughput."""
    ordered = runs[np.argsort(runs[:, 0], kind="stable")]
    *columns, throughput = ordered.T
    workers, nodes, *_ = columns
    counts, first = np.unique(workers, return_index=True)
    seconds, work = _seconds_and_work(columns, throughput)
    return Series(
        key=key,
        counts=Counts(counts, _medians(nodes, first)),
        launches=tuple(np.split(seconds, first[1:])),
        work=work,
        measured=_medians(throughput, first),
    )


def _seconds_and_work(columns: Sequence[Vector], throughput: Vector) -> tuple[Vector, float]:
    """Return the seconds per step of each run, and the work of a worker's step."""
    workers, _, step_seconds, images, steps = columns
    if np.isnan(step_seconds).any():
        return workers / throughput * SECONDS_PER_HOUR, SECONDS_PER_HOUR
    # Equal batches: in records the images per step and worker do not depend on the worker count.
    return step_seconds, median_known(images / steps / workers)


def _medians(values: Vector, first: NDArray[np.int64]) -> Vector:
    """Return the median of each count's runs; `first` are the places of their first."""
    return np.array([median_known(of_count) for of_count in np.split(values, first[1:])])


def median_known(values: Vector) -> float:
    """Return the median of the values that are known; NaN where none is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else NAN


def count_at(counts: Counts, workers: int) -> Counts:
    """Return so many workers on as many nodes as they fill, if these are filled as those measured were.

    Where all counts are within one node, that is one node.
    """
    nodes = 1.0
    if not (counts.nodes == 1).all():
        nodes = float(np.ceil(workers / np.max(counts.workers / counts.nodes)))
    return Counts(np.array([float(workers)]), np.array([nodes]))


def why_unpredictable(series: Series) -> str:
    """Return why a series cannot be predicted; empty where it can."""
    counts = series.counts.workers
    if 1 not in counts:
        return "no run on 1 worker"
    if len(counts) < FEWEST_COUNTS:
        return f"{count(len(counts), 'worker count')}, at least {FEWEST_COUNTS} needed"
    return ""


def count_range(counts: Counts) -> str:
    """Return "1-8"."""
    return f"{counts.workers[0]:.0f}-{counts.workers[-1]:.0f}"
