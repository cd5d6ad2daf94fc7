"""Throughput at worker counts that were not used: predicted with an interval, and checked where measured.

A point's time is the median over its launches of the seconds per step (series.py). docs/prediction.md
explains the model and shows how far off it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.prediction.notes import prediction_notes
from analysis.prediction.predictor import Predictor
from analysis.prediction.scaling_laws import Counts
from analysis.prediction.series import (
    Series,
    all_series,
    count_at,
    count_range,
    median_known,
    why_unpredictable,
)
from analysis.prediction.step_time import STEP_TERMS
from analysis.processes import parallel_map
from analysis.study import NAN, SERIES, Study

# Handing fewer series to a process at a time costs more than it saves.
SERIES_AT_ONCE = 10
_SPLIT = (*SERIES, "fitted_on", "workers")
PREDICTION_COLUMNS = (
    *_SPLIT, "predicted", "predicted_low", "predicted_high", "measured", "error", "held_out", "why",
)  # fmt: skip
TERM_COLUMNS = tuple(f"{term}{end}" for term in STEP_TERMS for end in ("", "_low", "_high"))
CHECKED_COLUMNS = ("held_out_error", "last_efficiency_error", "held_out_points")
FIT_COLUMNS = (*SERIES, "fitted_on", *TERM_COLUMNS, *CHECKED_COLUMNS)

_Cells = dict[str, Any]
# The rows of predictions of a series, and its row of fits.
_Result = tuple[list[_Cells], _Cells]


@dataclass(frozen=True)
class Extrapolation:
    """All predictions of a study.

    predictions  one row for each prediction that the points allow: PREDICTION_COLUMNS. A series with a
                 1-worker point and at least 3 counts is fitted on its 3, 4, ... smallest counts
                 (`fitted_on`: "1-4"), and throughput (the study's own unit) is predicted at every larger
                 count that was measured (`held_out`; `error` = predicted / measured - 1). Fitted on all
                 counts, it is predicted at twice the largest, where `measured` and `error` are NaN. Nothing
                 measured beyond `fitted_on` goes into a prediction. `why` says why an interval is
                 NaN.
    fits         the model fitted on all counts of each series that can be predicted, one row each:
                 FIT_COLUMNS. Each of STEP_TERMS is in seconds (of one step, or in logs without steps of the
                 work of one worker's epoch), NaN where the points cannot tell it from the others;
                 `held_out_error` is the median absolute error at held-out counts, NaN without any,
                 `held_out_points` how many; `last_efficiency_error` is that of taking the efficiency at the
                 largest count fitted for all larger ones.
    notes        for each series how far predictions were off and what is expected beyond, or why there
                 are none
    """

    predictions: pd.DataFrame
    fits: pd.DataFrame
    notes: tuple[str, ...]


def extrapolate(study: Study) -> Extrapolation:
    """Return all predictions of a study, every model fitted only once."""
    every = all_series(study)
    known = [series for series in every if not why_unpredictable(series)]
    results = parallel_map(_of_series, known, chunk=SERIES_AT_ONCE)
    found = {series.key: result for series, result in zip(known, results, strict=True)}
    rows = [row for predictions, _ in found.values() for row in predictions]
    fits = [fit for _, fit in found.values()]
    return Extrapolation(
        pd.DataFrame(rows, columns=list(PREDICTION_COLUMNS)),
        pd.DataFrame(fits, columns=list(FIT_COLUMNS)),
        tuple(_notes(study, every, found)),
    )


def _notes(study: Study, every: Sequence[Series], found: Mapping[tuple[str, ...], _Result]) -> Iterator[str]:
    for series in every:
        if series.key in found:
            sentences = prediction_notes(series, study.unit, *found[series.key])
        else:
            sentences = iter([f"no prediction: {why_unpredictable(series)}"])
        yield from (f"{series.name(study.names)}: {sentence}" for sentence in sentences)


def _of_series(series: Series) -> _Result:
    """Return the predictions of a series, the last one beyond its counts, and its row of fits."""
    checks = list(_checks(series))
    predictor = Predictor(series, len(series.launches))
    beyond = count_at(series.counts, 2 * int(series.counts.workers[-1]))
    return [*checks, _row(predictor, beyond, NAN)], _fit_row(predictor, checks)


def _checks(series: Series) -> Iterator[_Cells]:
    """Yield the prediction of each fit at each larger count that was measured."""
    for size, larger in series.held_out():
        predictor = Predictor(series, size)
        for place in larger:
            yield _row(predictor, series.counts[place : place + 1], float(series.measured[place]))


def _row(predictor: Predictor, at: Counts, measured: float) -> _Cells:
    series = predictor.series
    forecast = predictor.at(at)
    predicted = series.throughput(at, forecast.seconds)
    low, high = series.throughputs(at, forecast.interval)
    split = (*series.key, count_range(predictor.counts), int(at.workers[0]))
    return dict(zip(_SPLIT, split, strict=True)) | {
        "predicted": predicted,
        "predicted_low": low,
        "predicted_high": high,
        "measured": measured,
        "error": predicted / measured - 1,
        "held_out": not np.isnan(measured),
        "why": forecast.why,
    }


def _fit_row(predictor: Predictor, checks: Sequence[_Cells]) -> _Cells:
    series = predictor.series
    fitted = predictor.fitted
    values = np.vstack([fitted.terms, fitted.term_intervals()])
    values[:, [place for place in range(len(STEP_TERMS)) if place not in fitted.known]] = NAN
    errors = (_typical([row["error"] for row in checks]), _typical([*_last_efficiency_errors(series)]))
    ends = (count_range(fitted.counts), *values.T.ravel(), *errors, len(checks))
    return dict(zip(FIT_COLUMNS, (*series.key, *ends), strict=True))


def _typical(errors: Sequence[float]) -> float:
    return median_known(np.abs(errors))


def _last_efficiency_errors(series: Series) -> Iterator[float]:
    """Yield the errors of the same checks where the efficiency at the largest count fitted stays."""
    for size, larger in series.held_out():
        for place in larger:
            kept = series.throughput(series.counts[place : place + 1], series.medians[size - 1])
            yield kept / series.measured[place] - 1
