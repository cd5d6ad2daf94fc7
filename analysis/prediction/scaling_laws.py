"""How terms of a step's time grow with the workers, and the well-known laws made of them.

Time means the slowest worker's seconds for one step of equal work per worker: constant where scaling is
perfect. A law is a sum of known functions of the worker count with coefficients that are not negative,
fitted by least squares of the relative errors (scipy.optimize.nnls).
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats  # type: ignore[import-untyped]

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


def pairs(at: Counts) -> Vector:
    """Return the ordered pairs of workers: N (N - 1)."""
    return at.workers * (at.workers - 1)


SIMPLE_LAWS: Mapping[str, tuple[Term, ...]] = {
    "Amdahl": (constant, ring_messages),
    "USL": (constant, ring_messages, pairs),
    "b/N": (constant,),
}
# What needs no law at all: a step lasts as long as at the largest count fitted.
LAST_EFFICIENCY = "last efficiency"
LAWS = (*SIMPLE_LAWS, LAST_EFFICIENCY)


def term_matrix(terms: tuple[Term, ...], at: Counts) -> Vector:
    """Return every term at every count, [k, terms]."""
    return np.stack([term(at) for term in terms], axis=1)


def fit(matrix: Vector, seconds: Vector) -> Vector:
    """Return the coefficients, [terms], none negative, of the least squares of the relative errors.

    `matrix`: the terms at each count, [k, terms]; `seconds`: the times there, [k].
    """
    coefficients: Vector = optimize.nnls(matrix / seconds[:, None], np.ones_like(seconds))[0]
    return coefficients


def simple_law(name: str, counts: Counts, seconds: Vector) -> Callable[[Counts], Vector]:
    """Return the law of this name (one of LAWS) fitted to the points: a function from counts to seconds.

    Amdahl 1967 with serial share f: step time b (1 - f + f N). Universal Scalability Law (Gunther 1993)
    with contention s and coherency k: b (1 + s (N - 1) + k N (N - 1)). b/N, the seconds of an epoch
    without any loss: b. The last efficiency stays: the last point's seconds, whatever the count.
    """
    if name == LAST_EFFICIENCY:
        return lambda at: np.full(len(at.workers), seconds[-1])
    terms = SIMPLE_LAWS[name]
    coefficients = fit(term_matrix(terms, counts), seconds)
    return lambda at: np.asarray(term_matrix(terms, at) @ coefficients)


@functools.cache
def _largest_of_normals(count: int) -> float:
    largest = stats.order_statistic(stats.Normal(), n=count, r=count)
    return float(largest.mean()) if count > 1 else 0.0
