"""The step-time model: computing, all-reduce, waiting for the slowest; fitted with what it is uncertain of.

docs/prediction.md explains the terms, their sources and how often the intervals hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.prediction.least_squares import TermColumns, fit, refit, subsets
from analysis.prediction.scaling_laws import (
    Counts,
    Term,
    Vector,
    constant,
    ring_bytes,
    ring_bytes_between_nodes,
    ring_messages,
    slowest_of_normals,
    term_matrix,
)
from analysis.stats import CONFIDENCE, FEWEST_REPEATS, RESAMPLING_SEED, Interval

# Coefficients are seconds: of one worker's step; of sending all gradients once over a link; what the link
# between nodes adds to that; of one message; standard deviation of a worker's step.
STEP_TERMS: Mapping[str, Term] = {
    "compute": constant,
    "transfer": ring_bytes,
    "transfer_between_nodes": ring_bytes_between_nodes,
    "latency": ring_messages,
    "imbalance": slowest_of_normals,
}
# 999 values leave 1000 ranks for a further one: 2.5 % are 25 of them (Davison and Hinkley 1997).
DRAWS = 999
EDGES = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
# Relative. No clock and no model agree better; it keeps one lucky fit from getting all the weight.
SMALLEST_MISFIT = 1e-3
# Relative. A misfit of a factor e tells nothing any more; the bound keeps the numbers finite.
LARGEST_NOISE = 1.0


@dataclass(frozen=True)
class Design:
    """One choice of step terms, fitted.

    columns       the terms used, by their place in STEP_TERMS
    coefficients  of all step terms, [terms]; 0 for those not used
    weight        share in the prediction; the weights of all designs of a fit sum to 1
    misfit        relative standard deviation of the points around the fit
    freedom       degrees of freedom: points - terms used
    """

    columns: TermColumns
    coefficients: Vector
    weight: float
    misfit: float
    freedom: int


@dataclass(frozen=True)
class StepTime:
    """The step-time model fitted to some points.

    counts  of the points
    known   the terms that these points can tell from the others, by their place in STEP_TERMS
    terms   coefficients of STEP_TERMS, [terms]
    drawn   the same for every resampling, [DRAWS, terms]
    noise   logarithm of measured over modelled seconds for every resampling, [DRAWS]
    """

    counts: Counts
    known: TermColumns
    terms: Vector
    drawn: Vector
    noise: Vector

    def seconds(self, at: Counts) -> Vector:
        """Return the modelled seconds of a step at each count, [k]."""
        return np.asarray(_step_matrix(at) @ self.terms)

    def draws(self, at: Counts) -> Vector:
        """Return seconds that may be measured at one count, [DRAWS]."""
        return np.asarray((self.drawn @ _step_matrix(at)[0]) * np.exp(self.noise))

    def interval(self, at: Counts) -> Interval:
        """Return the 95 % interval of the seconds that would be measured, at one count."""
        low, high = np.quantile(self.draws(at), EDGES)
        return float(low), float(high)

    def term_intervals(self) -> Vector:
        """Return 95 % intervals of the coefficients, [2, terms]."""
        return np.quantile(self.drawn, EDGES, axis=0)


@dataclass(frozen=True)
class _Draws:
    """The draws of the resamplings: of points and their launches.

    medians   of the launches drawn, [DRAWS, points]
    variance  of the logarithms of these medians
    design    the design drawn, [DRAWS]
    scale     standard deviation of a point around that design, [DRAWS]
    """

    medians: Vector
    variance: float
    design: NDArray[np.int64]
    scale: Vector


def fit_step_time(counts: Counts, launches: tuple[Vector, ...]) -> StepTime:
    """Return the model fitted to the median seconds of each count, and fitted again to resampled ones.

    `launches`: seconds per step of every launch, one array for each count. A resampling draws launches
    of every count, a design, and the deviation of every point from that design: normal, with the
    design's misfit less what the launches explain of it, and the uncertainty that few points leave in
    a misfit (its square over a chi-square variate). Designs are drawn by the square root of their
    weights: among few points the best design is partly luck, and drawn by the weights themselves the
    intervals held too few simulated truths. Needs 3 counts.
    """
    random = np.random.default_rng(RESAMPLING_SEED)
    matrix = _step_matrix(counts)
    designs = fit_designs(counts, np.array([np.median(times) for times in launches]))
    draws = _draw(designs, launches, random)
    times = draws.medians * np.exp(draws.scale[:, None] * random.standard_normal(draws.medians.shape))
    return StepTime(
        counts=counts,
        known=(0, *_different_terms(matrix)),
        terms=_average(designs),
        drawn=refit(matrix, times, [design.columns for design in designs], draws.design),
        noise=np.sqrt(draws.scale**2 + draws.variance) * random.standard_normal(DRAWS),
    )


def _draw(designs: Sequence[Design], launches: Sequence[Vector], random: np.random.Generator) -> _Draws:
    medians = np.stack([resampled_medians(times, random) for times in launches], axis=1)
    variance = launch_variance(medians, launches)
    chosen = _evenly_drawn(np.sqrt([design.weight for design in designs]))
    scale = _noise_scale(designs, variance, random)[np.arange(DRAWS), chosen]
    return _Draws(medians, variance, chosen, scale)


def fit_designs(counts: Counts, seconds: Vector) -> tuple[Design, ...]:
    """Return every design with fewer terms than points whose terms are all needed, with its Akaike weight.

    The weight is exp(-AIC / 2) = exp(-terms) / misfit^k (Burnham and Anderson 2002): a term must earn its
    place, and where the points cannot tell two designs apart both count. A design of which a term comes
    out as 0 is a smaller design and left out. Needs 2 points.
    """
    matrix = _step_matrix(counts)
    candidates = subsets((0, *_different_terms(matrix)), len(seconds) - 1)
    fitted = [_design(columns, matrix, seconds) for columns in candidates]
    needed = [design for design in fitted if (design.coefficients[list(design.columns)] > 0).all()]
    total = sum(design.weight for design in needed)
    return tuple(replace(design, weight=design.weight / total) for design in needed)


def launch_variance(medians: Vector, launches: Sequence[Vector]) -> float:
    """Return the mean variance of the resampled logarithms; 0 where a point has too few launches."""
    repeated = all(len(times) >= FEWEST_REPEATS for times in launches)
    return float(np.var(np.log(medians), axis=0).mean()) if repeated else 0.0


def _average(designs: tuple[Design, ...]) -> Vector:
    """Return the coefficients of all step terms, averaged by weight."""
    weighted = (design.weight * design.coefficients for design in designs)
    return np.asarray(sum(weighted, np.zeros(len(STEP_TERMS))))


def _step_matrix(at: Counts) -> Vector:
    return term_matrix(tuple(STEP_TERMS.values()), at)


def _different_terms(matrix: Vector) -> list[int]:
    """Return the terms of communication that are not 0 and not equal to an earlier one at all points."""
    first = np.unique(matrix, axis=1, return_index=True)[1]
    return sorted(int(column) for column in first if column > 0 and matrix[:, column].any())


def _design(columns: TermColumns, matrix: Vector, seconds: Vector) -> Design:
    """Return the design with a weight that is not yet divided by the sum of all."""
    coefficients = np.zeros(matrix.shape[1])
    coefficients[list(columns)] = fit(matrix[:, columns], seconds)
    squares = float(np.sum((matrix @ coefficients / seconds - 1) ** 2))
    freedom = len(seconds) - len(columns)
    weight = _akaike_weight(squares / len(seconds), len(columns), len(seconds))
    return Design(columns, coefficients, weight, float(np.sqrt(squares / freedom)), freedom)


def _akaike_weight(mean_square: float, terms: int, points: int) -> float:
    seen = np.hypot(np.sqrt(mean_square), SMALLEST_MISFIT)
    return float(np.exp(-terms) * (SMALLEST_MISFIT / seen) ** points)


def _evenly_drawn(chances: Vector) -> NDArray[np.int64]:
    """Return a design for every resampling, [DRAWS], each exactly as often as its chance says."""
    shares = np.cumsum(chances / chances.sum())
    places = np.searchsorted(shares, (np.arange(DRAWS) + 0.5) / DRAWS)
    return np.minimum(places, len(chances) - 1)


def _noise_scale(designs: Sequence[Design], variance: float, random: np.random.Generator) -> Vector:
    """Return standard deviations of a point around each design, drawn anew: [DRAWS, designs]."""
    freedom = np.array([design.freedom for design in designs], dtype=np.float64)
    misfit = np.array([design.misfit for design in designs])
    unexplained = np.sqrt(np.maximum(0.0, misfit**2 - variance))
    drawn = unexplained * np.sqrt(freedom / random.chisquare(freedom, (DRAWS, len(designs))))
    return np.asarray(np.minimum(drawn, LARGEST_NOISE))


def resampled_medians(times: Vector, random: np.random.Generator) -> Vector:
    """Return medians of launches drawn anew, [DRAWS]; always their median where they are too few."""
    if len(times) < FEWEST_REPEATS:
        return np.full(DRAWS, np.median(times))
    return np.asarray(np.median(random.choice(times, (DRAWS, len(times))), axis=1))
