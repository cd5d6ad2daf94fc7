"""Step time and throughput at worker counts that were not measured, with intervals, and how wrong they were.

The time of a step is a sum of terms: computing, an all-reduce, waiting for the slowest worker. Where logs
have no steps, a step is the work of one worker's epoch. docs/background/prediction.md explains terms,
intervals and errors. Requests of compute time reach twice as far as the largest count measured: the models
are held against measurements over such a step, and not over a longer one.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import special  # type: ignore[import-untyped]

from analysis.judge.decide import least_efficiency
from analysis.numbers import stats
from analysis.study import (
    CONFIDENCE,
    FEWEST_REPEATS,
    NAN,
    POINT,
    SECONDS_PER_HOUR,
    SERIES,
    Array,
    Integers,
    Names,
    Study,
    bounded,
)
from analysis.text import Row, count, lines, series_name
from unet_scaling.base.parallel import parallel_map
from unet_scaling.study.options import Criteria

# Two points and compute alone leave nothing to tell transfer from anything else.
FEWEST_COUNTS = 3
# 999 values leave 1000 ranks for a further one: 2.5 % are 25 of them (Davison and Hinkley 1997).
DRAWS = 999
EDGES = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
# Relative. No clock and no model agree better; it keeps one lucky fit from getting all the weight.
SMALLEST_MISFIT = 1e-3
# Relative. A misfit of a factor e tells nothing any more; the bound keeps the numbers finite.
LARGEST_NOISE = 1.0
# Handing fewer series to a process at a time costs more than it saves.
SERIES_AT_ONCE = 10
# The committed predictions, scored by their runs, go from 4 workers to 14.
FARTHEST_HELD_RATIO = 3.5
UNSEEN_LINK = "the link between nodes is not among the points fitted"
PREDICTION_COLUMNS = (
    *SERIES, "fitted_on", "workers",
    *bounded("predicted"), "measured", "error", "why",
)  # fmt: skip

# Places of the terms used in STEP_TERMS.
_Terms = tuple[int, ...]


@dataclass(frozen=True)
class Counts:
    """Worker counts, [k], and the number of hosts of each, [k], NaN where not known."""

    workers: Array
    nodes: Array

    def __getitem__(self, chosen: slice) -> "Counts":
        return Counts(self.workers[chosen], self.nodes[chosen])

    def at(self, workers: int) -> "Counts":
        """Return so many workers on as many nodes as they fill, if filled as these are; one if these are."""
        nodes = 1.0
        if not (self.nodes == 1).all():
            nodes = float(np.ceil(workers / np.max(self.workers / self.nodes)))
        return Counts(np.array([float(workers)]), np.array([nodes]))


def ring_bytes(at: Counts) -> Array:
    """Return what a ring all-reduce sends over each link, in gradients: 2 (N - 1) / N."""
    return 2 * (at.workers - 1) / at.workers


@functools.cache
def _largest_of_normals(number: int) -> float:
    """Return the expected maximum of so many independent standard normals; 0 of one."""
    # Only now, as below: a study of two worker counts needs no fit, and it takes long to import.
    from scipy import integrate

    def at(x: float) -> float:
        density = math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        return float(x * number * density * special.ndtr(x) ** (number - 1))

    return float(integrate.quad(at, -np.inf, np.inf, epsabs=1e-12)[0]) if number > 1 else 0.0


# Growth with the workers. Coefficients are seconds: of one worker's step; of sending all gradients once over
# a link; what the link between nodes adds to that; of one message; standard deviation of a worker's step.
STEP_TERMS: Mapping[str, Callable[[Counts], Array]] = {
    "compute": lambda at: np.ones_like(at.workers),
    "transfer": ring_bytes,
    "transfer_between_nodes": lambda at: np.where(at.nodes > 1, ring_bytes(at), 0.0),
    "latency": lambda at: 2 * (at.workers - 1),
    "imbalance": lambda at: np.array([_largest_of_normals(int(number)) for number in at.workers]),
}


def step_matrix(at: Counts) -> Array:
    """Return every step term at every count, [k, terms]."""
    return np.stack([term(at) for term in STEP_TERMS.values()], axis=1)


@dataclass(frozen=True)
class Forecast:
    """Seconds of a step at one count, and draws of what may be measured, [DRAWS]; `why` says why of none.

    `work` is what all workers do in a step, in the unit of the throughput.
    """

    seconds: float
    draws: Array
    work: float
    why: str = ""

    @property
    def bounded(self) -> list[float]:
        """Seconds with the 95 % interval of those that would be measured; unknown without draws."""
        low, high = np.quantile(self.draws, EDGES) if len(self.draws) else stats.UNKNOWN_INTERVAL
        return [self.seconds, float(np.minimum(low, self.seconds)), float(np.maximum(high, self.seconds))]

    @property
    def throughputs(self) -> list[float]:
        """The throughput of such steps, with its interval."""
        seconds, low, high = self.bounded
        return [self.work / seconds, self.work / high, self.work / low]


@dataclass(frozen=True)
class StepTime:
    """The step-time model fitted to the points of some counts.

    terms   coefficients of STEP_TERMS, [terms]
    drawn   the same for every resampling, [DRAWS, terms]
    noise   logarithm of measured over modelled seconds for every resampling, [DRAWS]
    """

    counts: Counts
    terms: Array
    drawn: Array
    noise: Array

    def at(self, at: Counts, work: float = 1.0) -> Forecast:
        """Return what the model says of one count, where a worker does so much `work` in a step.

        No interval where it uses a link that no point has.
        """
        (row,) = step_matrix(at)
        seconds, work = float(row @ self.terms), float(at.workers[0]) * work
        if (self.counts.nodes == 1).all() and at.nodes[0] > 1:
            return Forecast(seconds, np.empty(0), work, UNSEEN_LINK)
        return Forecast(seconds, np.asarray((self.drawn @ row) * np.exp(self.noise)), work)


@dataclass(frozen=True)
class _Design:
    """One choice of step terms, fitted: the terms used and the coefficients of all, [terms].

    `weight` is its share in the prediction, `misfit` the relative standard deviation of the points around it,
    `freedom` the number of points less that of terms.
    """

    columns: _Terms
    coefficients: Array
    weight: float
    misfit: float
    freedom: int


def fit_step_time(counts: Counts, launches: Sequence[Array]) -> StepTime:
    """Return the model fitted to the median seconds of each count, and fitted again to resampled ones.

    `launches`: seconds per step of every launch, one array for each count. A resampling draws launches
    of every count, a design, and the deviation of every point from that design: normal, with the
    design's misfit less what the launches explain of it, and the uncertainty that few points leave in
    a misfit (its square over a chi-square variate). Designs are drawn by the square root of their
    weights: among few points the best design is partly luck, and drawn by the weights themselves the
    intervals held too few simulated truths. Needs 3 counts.
    """
    random = np.random.default_rng(stats.RESAMPLING_SEED)
    matrix = step_matrix(counts)
    # Terms of communication that are not 0 and not equal to an earlier one at all points.
    first = np.unique(matrix, axis=1, return_index=True)[1]
    known = (0, *sorted(int(column) for column in first if column > 0 and matrix[:, column].any()))
    designs = _fit_designs(matrix, known, np.array([np.median(times) for times in launches]))
    weights = np.array([design.weight for design in designs])

    medians = np.stack([_resampled_medians(times, random) for times in launches], axis=1)
    repeated = all(len(times) >= FEWEST_REPEATS for times in launches)
    variance = float(np.var(np.log(medians), axis=0).mean()) if repeated else 0.0
    # Each design exactly as often as its chance says.
    shares = np.cumsum(np.sqrt(weights) / np.sqrt(weights).sum())
    chosen = np.minimum(np.searchsorted(shares, (np.arange(DRAWS) + 0.5) / DRAWS), len(designs) - 1)
    freedom = np.array([design.freedom for design in designs], dtype=np.float64)
    misfit = np.array([design.misfit for design in designs])
    unexplained = np.sqrt(np.maximum(0.0, misfit**2 - variance))
    scales = unexplained * np.sqrt(freedom / random.chisquare(freedom, (DRAWS, len(designs))))
    scale = np.minimum(scales, LARGEST_NOISE)[np.arange(DRAWS), chosen]
    times = medians * np.exp(scale[:, None] * random.standard_normal(medians.shape))
    return StepTime(
        counts=counts,
        terms=np.asarray(sum(design.weight * design.coefficients for design in designs)),
        drawn=_refit(matrix, times, [design.columns for design in designs], chosen),
        noise=np.sqrt(scale**2 + variance) * random.standard_normal(DRAWS),
    )


def _resampled_medians(times: Array, random: np.random.Generator) -> Array:
    """Return medians of launches drawn anew, [DRAWS]; always their median where they are too few."""
    if len(times) < FEWEST_REPEATS:
        return np.full(DRAWS, np.median(times))
    return np.asarray(np.median(random.choice(times, (DRAWS, len(times))), axis=1))


def _fit_designs(matrix: Array, known: _Terms, seconds: Array) -> list[_Design]:
    """Return every design with fewer terms than points whose terms are all needed, with its Akaike weight.

    Each is the least squares of the relative errors without negative coefficients. The weight is
    exp(-AIC / 2) = exp(-terms) / misfit^k (Burnham and Anderson 2002): a term must earn its place, and where
    the points cannot tell two designs apart both count. A design of which a term comes out as 0 is a smaller
    design and left out. Needs 2 points.
    """
    from scipy import optimize

    points = len(seconds)
    designs = []
    for columns in _subsets(known, points - 1):
        relative = matrix[:, columns] / seconds[:, None]
        found = optimize.nnls(relative, np.ones(points))[0]
        if not (found > 0).all():
            continue
        coefficients = np.zeros(matrix.shape[1])
        coefficients[list(columns)] = found
        squares = float(np.sum((matrix @ coefficients / seconds - 1) ** 2))
        seen = np.hypot(np.sqrt(squares / points), SMALLEST_MISFIT)
        weight = float(np.exp(-len(columns)) * (SMALLEST_MISFIT / seen) ** points)
        freedom = points - len(columns)
        designs.append(_Design(columns, coefficients, weight, float(np.sqrt(squares / freedom)), freedom))
    total = sum(design.weight for design in designs)
    return [replace(design, weight=design.weight / total) for design in designs]


def _subsets(columns: _Terms, most: int) -> list[_Terms]:
    """Return the first column with each selection of the others, at most so many in all."""
    sizes = range(min(most, len(columns)))
    return [(columns[0], *more) for size in sizes for more in combinations(columns[1:], size)]


def _refit(matrix: Array, times: Array, designs: Sequence[_Terms], chosen: Integers) -> Array:
    """Return the coefficients, [draws, terms], none negative, of the design chosen for each draw.

    `times`: seconds, [draws, k]. Least squares of the errors relative to the mean of the draws. Exact, and
    for many draws some ten times as fast as one nnls each: the best fit without negative coefficients is the
    ordinary best fit of the terms it uses, so every subset of terms is fitted to all draws at once, and the
    best allowed one is taken.
    """
    tried = sorted({part for design in designs for part in _subsets(design, len(design))})
    weight = 1 / times.mean(axis=0)
    weighted, relative = matrix * weight[:, None], times * weight
    coefficients = np.zeros((len(tried), len(times), matrix.shape[1]))
    squares = np.empty((len(tried), len(times)))
    for place, columns in enumerate(tried):
        used = weighted[:, columns]
        found = relative @ np.linalg.pinv(used).T
        errors = np.sum((found @ used.T - relative) ** 2, axis=1)
        coefficients[place][:, columns] = found
        squares[place] = np.where((found >= 0).all(axis=1), errors, np.inf)
    allowed = np.array([[set(columns) <= set(design) for design in designs] for columns in tried])
    best = np.where(allowed[:, chosen], squares, np.inf).argmin(axis=0)
    return np.asarray(coefficients[best, np.arange(len(times))])


@dataclass(frozen=True, eq=False)
class Series:
    """Points of one series, smallest count first.

    launches  seconds per step of every launch of each count
    work      throughput = workers x work / seconds per step
    measured  median throughput of each count
    """

    key: tuple[Any, ...]
    counts: Counts
    launches: tuple[Array, ...]
    work: float
    measured: Array

    @property
    def medians(self) -> Array:
        """Median seconds per step of each count."""
        return np.array([np.median(times) for times in self.launches])

    @cached_property
    def fitted(self) -> StepTime:
        """The model fitted to all counts."""
        return fit_step_time(self.counts, self.launches)

    def name(self, names: Names) -> str:
        """Return "native DDP, precision=bf16"."""
        options, framework, knobs = self.key
        return ", ".join(filter(None, (names[framework], options, knobs)))

    @property
    def why_unpredictable(self) -> str:
        """Why it cannot be predicted; empty where it can."""
        workers = self.counts.workers
        if 1 not in workers:
            return "no run on 1 worker"
        if len(workers) < FEWEST_COUNTS:
            return f"{count(len(workers), 'worker count')}, at least {FEWEST_COUNTS} needed"
        return ""

    def cautions(self) -> Iterator[str]:
        """Yield what to know of each prediction of this series."""
        if (self.counts.nodes == 1).all():
            yield f"{UNSEEN_LINK}: what is expected holds within one node only"
        if min(map(len, self.launches)) < FEWEST_REPEATS:
            few = f"a point has fewer than {FEWEST_REPEATS} launches"
            yield f"{few}: the intervals carry no launch-to-launch variation, only the misfit of the model"


def all_series(study: Study) -> list[Series]:
    """Return the series of a study, from the launches that count for speed."""
    return [
        _series(tuple(map(str, key)), runs.sort_values("workers", kind="stable"), study.throughput)
        for key, runs in study.timed.runs.groupby(SERIES, sort=False)
    ]


def _series(key: tuple[str, ...], runs: pd.DataFrame, throughput: str) -> Series:
    runs = runs.assign(measured=runs[throughput].astype(float))
    if runs["step_seconds"].isna().any():
        runs = runs.assign(times=runs["workers"] / runs["measured"] * SECONDS_PER_HOUR)
        work = SECONDS_PER_HOUR
    else:
        runs = runs.assign(times=runs["step_seconds"])
        # Equal batches: in records the images per step and worker do not depend on the worker count.
        work = float((runs["images_per_epoch"] / runs["steps_per_epoch"] / runs["workers"]).median())
    counts = runs.groupby("workers")
    return Series(
        key=key,
        counts=Counts(
            np.array(list(counts.groups), dtype=np.float64), counts["nodes"].median().to_numpy(float)
        ),
        launches=tuple(times.to_numpy(float) for _, times in counts["times"]),
        work=work,
        measured=counts["measured"].median().to_numpy(float),
    )


def extrapolate(study: Study) -> tuple[pd.DataFrame, list[str]]:
    """Return how far smaller counts predict larger ones, and notes on it: how far off, or why there are none.

    A series with a 1-worker point and at least 3 counts is fitted on its 3, 4, ... smallest counts and held
    against every larger one. Nothing measured beyond `fitted_on` goes into a prediction.
    """
    every = all_series(study)
    known = [series for series in every if not series.why_unpredictable]
    checks = dict(zip(known, parallel_map(_checks, known, chunk=SERIES_AT_ONCE), strict=True))
    rows = []
    notes = []
    for series in every:
        sentences = [f"no prediction: {series.why_unpredictable}"]
        if series in checks:
            own = pd.DataFrame(checks[series], columns=[*PREDICTION_COLUMNS, "last_efficiency_error"])
            medians = own[["error", "last_efficiency_error"]].abs().median()
            skill = lines("prediction", checks=len(own), error=medians.iloc[0], kept=medians.iloc[1])
            sentences = [*skill, *series.cautions()]
            rows += checks[series]
        notes += [f"{series.name(study.names)}: {sentence}" for sentence in sentences]
    return pd.DataFrame(rows, columns=list(PREDICTION_COLUMNS)), notes


def _checks(series: Series) -> list[dict[str, Any]]:
    """Return the predictions of a series by its smaller counts, and its error had efficiency been kept."""
    rows = []
    for size in range(FEWEST_COUNTS, len(series.launches)):
        fitted = fit_step_time(series.counts[:size], series.launches[:size])
        for place in range(size, len(series.launches)):
            at = series.counts[place : place + 1]
            measured = float(series.measured[place])
            forecast = fitted.at(at, series.work)
            kept = at.workers[0] * series.work / series.medians[size - 1]
            rows.append({
                **dict(zip(SERIES, series.key, strict=True)),
                **dict(zip(bounded("predicted"), forecast.throughputs, strict=True)),
                "fitted_on": f"{series.counts.workers[0]:.0f}-{series.counts.workers[size - 1]:.0f}",
                "workers": int(at.workers[0]),
                "measured": measured,
                "error": forecast.throughputs[0] / measured - 1,
                "why": forecast.why,
                "last_efficiency_error": kept / measured - 1,
            })  # fmt: skip
    return rows


REQUEST_COLUMNS = (
    *POINT, "source", *bounded("step_seconds", "efficiency", "worker_hours"),
    "coverage", "why",
)  # fmt: skip
# Of counts between the largest measured and twice as many.
MOST_PREDICTED_POINTS = 8
EXACT_BASELINE = (
    f"fewer than {FEWEST_REPEATS} launches on 1 worker: intervals of the efficiency take their speed as exact"
)


def request_table(study: Study, points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per count of every series, measured or predicted: REQUEST_COLUMNS.

    `points` are those of `points.summarise`. `worker_hours` are of one training, its epochs as in the
    series; NaN of emulated runs, which train nothing.
    """
    every = []
    known = points[points["throughput"].notna()].sort_values("workers")
    epochs = study.runs["run"].map(study.epochs.groupby("run", observed=True)["epoch"].max() + 1)
    for series in all_series(study):
        alike = known[(known[SERIES] == list(series.key)).all(axis=1)]
        own = (study.runs[SERIES] == list(series.key)).all(axis=1)
        trained = study.kind.of_training(float(epochs[own].median()))
        every.append((series, alike.to_dict("records"), trained))
    rows = [row for of in parallel_map(_rows, every, chunk=SERIES_AT_ONCE) for row in of]
    return pd.DataFrame(rows, columns=list(REQUEST_COLUMNS))


def _rows(known: tuple[Series, Sequence[Row], float]) -> list[tuple[Any, ...]]:
    """Return the rows of a series from its points, smallest count first, and its epochs."""
    series, points, epochs = known
    rows: list[tuple[Any, ...]] = []
    for point in points:
        workers = int(point["workers"])
        throughputs = [point[f"throughput{end}"] for end in ("", "_high", "_low")]
        steps = float(series.medians[series.counts.workers == workers][0]) * throughputs[0]
        hours = workers * epochs * throughputs[0] / point["epochs_per_second"] / SECONDS_PER_HOUR
        fewest = min(row["repeats"] for row in points if row["workers"] in (1, workers))
        seconds, worker_hours = ([of / each for each in throughputs] for of in (steps, hours))
        efficiency = [point[name] for name in bounded("efficiency")]
        promised = CONFIDENCE if fewest >= FEWEST_REPEATS else NAN
        key = (*series.key, workers, "measured")
        rows.append((*key, *seconds, *efficiency, *worker_hours, promised, ""))
    return [*rows, *_predicted(series, points[-1], epochs)] if points else rows


def _predicted(series: Series, largest: Row, epochs: float) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the counts beyond the largest measured one, up to twice as many."""
    if series.why_unpredictable:
        return
    most = int(largest["workers"])
    # Epochs have as many images as those of the largest count.
    work = float(largest["throughput"] / largest["epochs_per_second"]) * epochs / SECONDS_PER_HOUR
    exact = EXACT_BASELINE if len(series.launches[0]) < FEWEST_REPEATS else ""
    counts = {round(each) for each in np.linspace(most, 2 * most, MOST_PREDICTED_POINTS + 1)} - {most}
    for workers in sorted(counts):
        at = series.counts.at(workers)
        forecast = series.fitted.at(at, series.work)
        seconds = forecast.bounded
        efficiency = _efficiency(series.launches[0], forecast)
        hours = [workers * work * each / forecast.work for each in seconds]
        promised = CONFIDENCE if len(forecast.draws) else NAN
        key = (*series.key, workers, "predicted")
        yield *key, *seconds, *efficiency, *hours, promised, forecast.why or exact


def _efficiency(alone: Array, forecast: Forecast) -> list[float]:
    """Return the seconds of a step on 1 worker, `alone` of each launch, over those predicted, with interval.

    The median of `alone` is drawn apart from what is predicted: both rest on the same launches, which would
    make the ratio vary less.
    """
    ratio = float(np.median(alone)) / forecast.seconds
    if not len(forecast.draws):
        return [ratio, *stats.UNKNOWN_INTERVAL]
    medians: Array = np.full(1, np.median(alone))
    if len(alone) >= FEWEST_REPEATS:
        (replicated,) = stats.replicates(alone[None])
        medians = np.random.default_rng(stats.RESAMPLING_SEED).choice(replicated, len(forecast.draws))
    low, high = np.quantile(medians / forecast.draws, EDGES)
    return [ratio, min(float(low), ratio), max(float(high), ratio)]


def request_sentences(study: Study, table: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield for every series its options, and up to which count it is efficient, by that of `request_table`.

    Nothing is said of a series without an efficiency on several workers.
    """
    for _, of in table.groupby(SERIES, sort=False):
        if of.loc[of["workers"] > 1, "efficiency"].notna().any():
            rows = of.to_dict("records")
            name = series_name(rows[0], study.names)
            reached = _efficient_counts(rows, study.criteria)
            (text,) = lines("request", study=study, name=name, rows=rows, reached=reached)
            yield str(rows[0]["options"]), text


def _efficient_counts(rows: Sequence[Row], criteria: Criteria) -> list[Row]:
    """Return the counts of several workers whose whole interval is above the floor, up to one of which not.

    A count without an interval shows nothing: it ends them where its efficiency itself is below the floor,
    and else stands in no other's way.
    """
    found = []
    for row in rows:
        floor = least_efficiency(int(row["workers"]), criteria)
        is_bounded = not math.isnan(row["efficiency_low"])
        if (row["efficiency_low"] if is_bounded else row["efficiency"]) < floor:
            break
        if is_bounded and row["workers"] > 1:
            found.append(row)
    return found
