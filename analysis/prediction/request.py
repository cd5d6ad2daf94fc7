"""What to know before asking for nodes: speed, efficiency and cost of counts measured, and of some beyond.

analysis/prediction/request_sentences.py has it in words.

Efficiency is against 1 worker of the same series. Predicted counts reach twice as far as measured ones: the
models are held against measurements over such a step, and not over a longer one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.prediction.extrapolation import SERIES_AT_ONCE
from analysis.prediction.predictor import Forecast, Predictor
from analysis.prediction.scaling_laws import Counts, Vector, term_matrix
from analysis.prediction.series import Series, all_series, count_at, why_unpredictable
from analysis.prediction.step_time import EDGES, STEP_TERMS, StepTime
from analysis.processes import parallel_map
from analysis.stats import (
    CONFIDENCE,
    FEWEST_REPEATS,
    RESAMPLING_SEED,
    UNKNOWN_INTERVAL,
    coverage,
    replicates,
)
from analysis.study import NAN, POINT, SECONDS_PER_HOUR, SERIES, Study
from analysis.text import Row

_BOUNDED = ("step_seconds", "efficiency", "worker_hours")
REQUEST_COLUMNS = (
    *POINT, "source", *(f"{name}{end}" for name in _BOUNDED for end in ("", "_low", "_high")),
    "coverage", "largest_term", "largest_term_share", "why",
)  # fmt: skip
AS_MEASURED = "measured"
AS_PREDICTED = "predicted"
# Of counts between the largest measured and twice as many.
MOST_PREDICTED_POINTS = 8
EXACT_BASELINE = (
    f"fewer than {FEWEST_REPEATS} launches on 1 worker: intervals of the efficiency take their speed as exact"
)
TERM_NAMES: Mapping[str, str] = {
    "transfer": "bytes on the link",
    "transfer_between_nodes": "bytes on the link between nodes",
    "latency": "messages one after the other",
    "imbalance": "waiting for the slowest worker",
}

_Cells = dict[str, Any]


def request_table(study: Study, points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per count of every series, measured or predicted: REQUEST_COLUMNS.

    `points` are those of `speedup.summarise`. `worker_hours` are of one training, its epochs as in the
    series, each as fast as those after the warm-up; NaN of emulated runs, which train nothing. `coverage` is
    the confidence that the interval of the efficiency can promise: of a measured one by its launches and
    those on 1 worker, of a predicted one the nominal one of the model. `largest_term` of the sum of terms
    takes most of what is lost to linear scaling, `largest_term_share` of it; in a sum of terms, names are no
    causes.
    """
    every = []
    known = points[points["throughput"].notna()].sort_values("workers")
    for series in all_series(study):
        alike = known[(known[SERIES] == list(series.key)).all(axis=1)]
        every.append((series, alike.to_dict("records"), _epochs(study, series)))
    rows = [row for of in parallel_map(_rows, every, chunk=SERIES_AT_ONCE) for row in of]
    return pd.DataFrame(rows, columns=list(REQUEST_COLUMNS))


def _rows(known: tuple[Series, Sequence[Row], float]) -> list[_Cells]:
    series, points, epochs = known
    measured = [_measured(series, row, epochs) | {"coverage": _coverage(row, points)} for row in points]
    return [*measured, *_predicted_rows(series, points, epochs)]


def _epochs(study: Study, series: Series) -> float:
    """Return how many epochs a training of this series has; NaN where nothing is trained."""
    if study.is_emulated:
        return NAN
    runs = study.runs.loc[(study.runs[SERIES] == list(series.key)).all(axis=1), "run"]
    epochs = study.epochs[study.epochs["run"].isin(runs)]
    return float(epochs.groupby("run", observed=True)["epoch"].max().median() + 1)


def _coverage(point: Row, points: Sequence[Row]) -> float:
    """Return the confidence that the interval of an efficiency can promise; NaN where there is none."""
    fewest = min(row["repeats"] for row in points if row["workers"] in (1, point["workers"]))
    return coverage(fewest) if fewest >= FEWEST_REPEATS else NAN


def _measured(series: Series, point: Row, epochs: float) -> _Cells:
    workers = int(point["workers"])
    place = int(np.flatnonzero(series.counts.workers == workers)[0])
    at = series.counts[place : place + 1]
    medians = float(point["throughput"]), float(point["throughput_low"]), float(point["throughput_high"])
    seconds = _inverse(float(series.medians[place]) * medians[0], medians)
    hours = _inverse(workers * epochs * medians[0] / point["epochs_per_second"] / SECONDS_PER_HOUR, medians)
    efficiency = [point[f"efficiency{end}"] for end in ("", "_low", "_high")]
    return _row(
        series, at, AS_MEASURED, {"step_seconds": seconds, "efficiency": efficiency, "worker_hours": hours}
    )


def _inverse(product: float, values: Sequence[float]) -> list[float]:
    """Return product / value with its interval, of a value with its interval."""
    value, low, high = values
    return [product / value, product / high, product / low]


def _predicted_rows(series: Series, known: Sequence[Row], epochs: float) -> Iterator[_Cells]:
    """Yield the counts beyond the largest measured one, up to twice as many."""
    if why_unpredictable(series) or not known:
        return
    predictor = Predictor(series, len(series.launches))
    largest = known[-1]
    most = int(largest["workers"])
    # Epochs have as many images as those of the largest count.
    work = float(largest["throughput"] / largest["epochs_per_second"])
    for workers in sorted(
        {round(each) for each in np.linspace(most, 2 * most, MOST_PREDICTED_POINTS + 1)} - {most}
    ):
        at = count_at(series.counts, workers)
        forecast = predictor.at(at)
        yield _predicted(series, at, forecast, work * epochs / SECONDS_PER_HOUR) | _lost_to(
            predictor.fitted, at
        )


def _predicted(series: Series, at: Counts, forecast: Forecast, work_hours: float) -> _Cells:
    low, high = forecast.interval
    seconds = [forecast.seconds, low, high]
    workers = float(at.workers[0])
    hours = [workers * work_hours / series.throughput(at, each) for each in seconds]
    alone = series.launches[0]
    efficiency = _ratio(alone, forecast)
    values = {"step_seconds": seconds, "efficiency": efficiency, "worker_hours": hours}
    known = NAN if np.isnan(low) else CONFIDENCE
    why = forecast.why or ("" if len(alone) >= FEWEST_REPEATS else EXACT_BASELINE)
    return _row(series, at, AS_PREDICTED, values) | {"coverage": known, "why": why}


def _ratio(alone: Vector, forecast: Forecast) -> list[float]:
    """Return the seconds of a step on 1 worker over those predicted, with the interval of the ratio.

    `alone`: of each launch on 1 worker. Its median is drawn apart from what is predicted: both rest on the
    same launches, which would make the ratio vary less.
    """
    ratio = float(np.median(alone)) / forecast.seconds
    draws = forecast.draws
    if not len(draws):
        return [ratio, *UNKNOWN_INTERVAL]
    low, high = np.quantile(_medians_alone(alone, len(draws)) / draws, EDGES)
    return [ratio, min(float(low), ratio), max(float(high), ratio)]


def _medians_alone(alone: Vector, draws: int) -> Vector:
    """Return so many draws of the median over launches; always their median where they are too few."""
    if len(alone) < FEWEST_REPEATS:
        return np.full(draws, np.median(alone))
    (replicated,) = replicates(alone[None])
    return np.random.default_rng(RESAMPLING_SEED).choice(replicated, draws)


def _row(series: Series, at: Counts, source: str, values: Mapping[str, Sequence[float]]) -> _Cells:
    ends = ("", "_low", "_high")
    numbers = {f"{name}{end}": of[place] for name, of in values.items() for place, end in enumerate(ends)}
    key = dict(zip(POINT, (*series.key, int(at.workers[0])), strict=True))
    return key | {"source": source, "largest_term": "", "largest_term_share": NAN, "why": ""} | numbers


def _lost_to(fitted: StepTime, at: Counts) -> _Cells:
    """Return the term of the sum that takes most of the seconds beyond those of 1 worker, and its share."""
    seconds = (term_matrix(tuple(STEP_TERMS.values()), at)[0] * fitted.terms)[1:]
    if not seconds.any():
        return {}
    name = list(STEP_TERMS)[1:][int(seconds.argmax())]
    return {"largest_term": TERM_NAMES[name], "largest_term_share": float(seconds.max() / seconds.sum())}
