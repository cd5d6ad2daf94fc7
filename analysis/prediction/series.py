"""The points of a series: seconds per step of every launch, by worker count.

Logs without steps give the time of the work of one worker's epoch instead, workers / (epochs per second), in
which dropped images pass for work.
"""

from dataclasses import dataclass

import numpy as np

from analysis.prediction.scaling_laws import Counts, Vector
from analysis.statistics.timed import timed
from analysis.study import NAN, SERIES, Names, Study
from analysis.text import count

# Two points and compute alone leave nothing to tell transfer from anything else.
FEWEST_COUNTS = 3


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

    def name(self, names: Names) -> str:
        """Return "native DDP, precision=bf16"."""
        options, framework, knobs = self.key
        name = next(name for known, name in names.items() if known == framework)
        return ", ".join(part for part in (name, options, knobs) if part)

    def splits(self) -> range:
        """Return how many of the smallest counts are fitted so that a larger one is left to check."""
        return range(FEWEST_COUNTS, len(self.launches))


def all_series(study: Study) -> list[Series]:
    """Return the series of a study, from the launches that count for speed."""
    numbers = ["workers", "nodes", "step_seconds", "images_per_epoch", "steps_per_epoch", study.throughput]
    groups = timed(study).runs.groupby(SERIES, sort=False)[numbers]
    return [
        _series(tuple(map(str, key)), runs.to_numpy(dtype=np.float64, na_value=NAN)) for key, runs in groups
    ]


def _series(key: tuple[str, ...], runs: Vector) -> Series:
    """Return a series from its runs, [runs, columns], the columns as `all_series` names them."""
    ordered = runs[np.argsort(runs[:, 0], kind="stable")]
    workers, _, step_seconds, images, steps, throughput = ordered.T
    has_steps = not np.isnan(step_seconds).any()
    counts, first = np.unique(workers, return_index=True)
    points = [columns.T for columns in np.split(ordered, first[1:])]
    return Series(
        key=key,
        counts=Counts(counts, np.array([median_known(nodes) for _, nodes, *_ in points])),
        launches=tuple(np.split(step_seconds if has_steps else workers / throughput, first[1:])),
        # Equal batches: in records the images per step and worker do not depend on the worker count.
        work=median_known(images / steps / workers) if has_steps else 1.0,
        measured=np.array([median_known(point[-1]) for point in points]),
    )


def median_known(values: Vector) -> float:
    """Return the median of the values that are known; NaN where none is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else NAN


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
