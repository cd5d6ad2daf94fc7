"""Simulated launches where the step-time model is the truth, and how often its intervals hold it.

benchmarks/prediction.py prints the coverage for many worker counts and noises.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analysis.prediction.scaling_laws import Counts, Vector, term_matrix
from analysis.prediction.step_time import STEP_TERMS, fit_step_time

# Milliseconds of compute, transfer, transfer between nodes, latency and imbalance, as in STEP_TERMS.
STEP_TIME_TRUTHS = {
    "perfectly linear": (100, 0, 0, 0, 0),
    "little transfer": (100, 10, 0, 0, 0),
    "much transfer": (100, 60, 0, 0, 0),
    "latency": (100, 0, 0, 1, 0),
    "imbalance": (100, 0, 0, 0, 6),
    "transfer and latency": (100, 15, 0, 1, 0),
    "transfer and imbalance": (100, 15, 0, 0, 5),
    "all three": (100, 15, 0, 0.6, 5),
}


@dataclass(frozen=True)
class LaunchNoise:
    """Relative normal noise of a launch about its point and of a point about the law; launches of a point."""

    launch: float
    point: float
    launches: int


def interval_coverage(workers: tuple[int, ...], noise: LaunchNoise, studies: int) -> dict[str, float]:
    """Return, by truth, the share of simulated studies whose 95 % interval holds what is measured.

    The interval is at the last of these worker counts, of the fit to all others.
    """
    at = Counts(np.array(workers, dtype=np.float64), np.full(len(workers), np.nan))
    random = np.random.default_rng(1)
    return {
        truth: float(np.mean(list(_held(at, terms, noise, studies, random))))
        for truth, terms in STEP_TIME_TRUTHS.items()
    }


def simulated_launches(
    at: Counts, terms: tuple[float, ...], noise: LaunchNoise, random: np.random.Generator
) -> tuple[Vector, ...]:
    """Return the step times of every launch at every count, in the unit of the terms."""
    exact = term_matrix(tuple(STEP_TERMS.values()), at) @ np.array(terms)
    points = exact * np.exp(noise.point * random.standard_normal(len(exact)))
    return tuple(point * np.exp(noise.launch * random.standard_normal(noise.launches)) for point in points)


def _held(
    at: Counts, terms: tuple[float, ...], noise: LaunchNoise, studies: int, random: np.random.Generator
) -> Iterator[bool]:
    for _ in range(studies):
        times = simulated_launches(at, terms, noise, random)
        low, high = fit_step_time(at[:-1], times[:-1]).interval(at[-1:])
        yield low <= float(np.median(times[-1])) <= high
