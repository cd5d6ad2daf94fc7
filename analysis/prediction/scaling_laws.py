"""Growth of the terms of a step's time with the workers.

Time means the slowest worker's seconds for one step of equal work per worker: constant where scaling is
perfect.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Worker counts, [k], and the number of hosts of each, [k], NaN where not known."""

    workers: Vector
    nodes: Vector

    def __getitem__(self, chosen: slice) -> "Counts":
        return Counts(self.workers[chosen], self.nodes[chosen])


Term = Callable[[Counts], Vector]


def constant(at: Counts) -> Vector:
    """Return 1: what every worker does by itself."""
    return np.ones_like(at.workers)


def ring_bytes(at: Counts) -> Vector:
    """Return bytes that a ring all-reduce sends over each link, in gradients: 2 (N - 1) / N."""
    return 2 * (at.workers - 1) / at.workers


def ring_bytes_between_nodes(at: Counts) -> Vector:
    """Return the same where the ring leaves a node, else 0."""
    return np.where(at.nodes > 1, ring_bytes(at), 0.0)


def ring_messages(at: Counts) -> Vector:
    """Return the messages that a ring all-reduce sends one after the other: 2 (N - 1)."""
    return 2 * (at.workers - 1)


def slowest_of_normals(at: Counts) -> Vector:
    """Return the expected maximum of N independent standard normals; 0 at N = 1."""
    return np.array([_largest_of_normals(int(count)) for count in at.workers])


def term_matrix(terms: tuple[Term, ...], at: Counts) -> Vector:
    """Return every term at every count, [k, terms]."""
    return np.stack([term(at) for term in terms], axis=1)


@functools.cache
def _largest_of_normals(count: int) -> float:
    largest = stats.order_statistic(stats.Normal(), n=count, r=count)
    return float(largest.mean()) if count > 1 else 0.0
