"""Least squares of relative errors, without negative coefficients: of points, or of many draws of them."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize  # type: ignore[import-untyped]

from analysis.prediction.scaling_laws import Vector

# Places of the terms used.
TermColumns = tuple[int, ...]


def fit(matrix: Vector, seconds: Vector) -> Vector:
    """Return the coefficients, [terms], none negative, of the least squares of the relative errors.

    `matrix`: the terms at each count, [k, terms]; `seconds`: the times there, [k].
    """
    coefficients: Vector = optimize.nnls(matrix / seconds[:, None], np.ones_like(seconds))[0]
    return coefficients


def subsets(columns: TermColumns, most: int) -> list[TermColumns]:
    """Return the first column with each selection of the others, at most so many in all."""
    sizes = range(min(most, len(columns)))
    return [(columns[0], *more) for size in sizes for more in combinations(columns[1:], size)]


def refit(matrix: Vector, times: Vector, designs: Sequence[TermColumns], chosen: NDArray[np.int64]) -> Vector:
    """Return the coefficients, [draws, terms], none negative, of the design chosen for each draw.

    `matrix`: the terms at each count, [k, terms]; `times`: seconds, [draws, k]; `chosen`: a place in
    `designs` for each draw, [draws]. Least squares of the errors relative to the mean of the draws.
    Exact, and for many draws some ten times as fast as one nnls each: the best fit without negative
    coefficients is the ordinary best fit of the terms it uses, so every subset of terms is fitted to all
    draws at once, and the best allowed one is taken.
    """
    tried = sorted({part for design in designs for part in subsets(design, len(design))})
    weight = 1 / times.mean(axis=0)
    fits = [_ordinary_fit(columns, matrix * weight[:, None], times * weight) for columns in tried]
    coefficients, squares = map(np.stack, zip(*fits, strict=True))
    allowed = np.array([[set(columns) <= set(design) for design in designs] for columns in tried])
    best = np.where(allowed[:, chosen], squares, np.inf).argmin(axis=0)
    return np.asarray(coefficients[best, np.arange(len(times))])


def _ordinary_fit(columns: TermColumns, matrix: Vector, times: Vector) -> tuple[Vector, Vector]:
    """Return the coefficients of all terms, [draws, terms], 0 where not used, and sums of squares, [draws].

    A sum is infinite where a coefficient is negative.
    """
    used = matrix[:, columns]
    coefficients = times @ np.linalg.pinv(used).T
    squares = np.sum((coefficients @ used.T - times) ** 2, axis=1)
    every = np.zeros((len(times), matrix.shape[1]))
    every[:, columns] = coefficients
    return every, np.where((coefficients >= 0).all(axis=1), squares, np.inf)
