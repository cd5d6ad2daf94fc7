"""Throughput at worker counts that were not used: predicted with an interval, and checked where measured.

A point's time is the median over its launches of the seconds per step (series.py). docs/prediction.md
explains the model and shows how far off it was.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.prediction.notes import UNSEEN_LINK, prediction_notes
from analysis.prediction.scaling_laws import LAST_EFFICIENCY, LAWS, Counts, Vector, simple_law
from analysis.prediction.series import Series, all_series, count_range, median_known, why_unpredictable
from analysis.prediction.step_time import STEP_TERMS, StepTime, fit_step_time
from analysis.processes import parallel_map
from analysis.statistics.intervals import UNKNOWN_INTERVAL, Interval
from analysis.study import NAN, SERIES, Study

# Handing fewer series to a process at a time costs more than it saves.
SERIES_AT_ONCE = 10
SPLIT = (*SERIES, "fitted_on", "workers")
CHECK_COLUMNS = (*SPLIT, "predicted", "measured", "error")
PREDICTION_COLUMNS = (
    *SPLIT, "predicted", "predicted_low", "predicted_high", "measured", "error",
    "held_out", "why",
)  # fmt: skip
TERM_COLUMNS = tuple(f"{term}{end}" for term in STEP_TERMS for end in ("", "_low", "_high"))
CHECKED_COLUMNS = ("held_out_error", "last_efficiency_error", "held_out_points")
FIT_COLUMNS = (*SERIES, "fitted_on", *TERM_COLUMNS, *CHECKED_COLUMNS)

_Cells = dict[str, Any]


@dataclass(frozen=True)
class Extrapolation:
    """All predictions of a study.

    predictions  one row for each prediction that the points allow: PREDICTION_COLUMNS. A series with a
                 1-worker point and at least 3 counts is fitted on its 3, 4, ... smallest counts
                 (`fitted_on`: "1-4"), and throughput (the study's own unit) is predicted at every larger
                 count that was measured (`held_out`; `error` = predicted / measured - 1). Fitted on all
                 counts, it is predicted at twice the largest, where `measured` and `error` are NaN. Nothing
                 measured beyond `fitted_on` goes into a prediction. `why` says why an interval is NaN.
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
    results = list(parallel_map(_of_series, known, chunk=SERIES_AT_ONCE))
    notes = {
        series.key: list(prediction_notes(series, study.unit, rows, fit))
        for series, (rows, fit) in zip(known, results, strict=True)
    }
    return Extrapolation(
        pd.DataFrame([row for rows, _ in results for row in rows], columns=list(PREDICTION_COLUMNS)),
        pd.DataFrame([fit for _, fit in results], columns=list(FIT_COLUMNS)),
        tuple(
            f"{series.name(study.names)}: {sentence}"
            for series in every
            for sentence in notes.get(series.key, [f"no prediction: {why_unpredictable(series)}"])
        ),
    )


def law_predictions(study: Study, law: str) -> pd.DataFrame:
    """Return held-out predictions of one of LAWS, on the splits of `extrapolate`: CHECK_COLUMNS."""
    rows = [
        row for series in all_series(study) if not why_unpredictable(series) for row in _law_rows(series, law)
    ]
    return pd.DataFrame(rows, columns=list(CHECK_COLUMNS))


def compare_laws(study: Study) -> pd.DataFrame:
    """Return, by split and held-out count, the errors of all laws in per cent and the model's interval."""
    model = extrapolate(study).predictions
    table = model[model["held_out"].astype(bool)].set_index(list(SPLIT))
    low, high, measured = (table[name] for name in ("predicted_low", "predicted_high", "measured"))
    errors = {"model": table["error"]}
    errors |= {law: law_predictions(study, law).set_index(list(SPLIT))["error"] for law in LAWS}
    comparison = pd.DataFrame({law: 100 * error for law, error in errors.items()})
    comparison["interval"] = [
        f"[{100 * (least / value - 1):+.0f}, {100 * (most / value - 1):+.0f}]"
        for least, most, value in zip(low, high, measured, strict=True)
    ]
    comparison["holds"] = np.where((low <= measured) & (measured <= high), "yes", "no")
    return comparison.reset_index()


def _of_series(series: Series) -> tuple[list[_Cells], _Cells]:
    """Return the predictions of a series, the last one beyond its counts, and its row of fits."""
    rows = []
    for size in series.splits():
        fitted = _fit(series, size)
        for place in range(size, len(series.launches)):
            rows.append(_row(series, fitted, series.counts[place : place + 1], float(series.measured[place])))
    fitted = _fit(series, len(series.launches))
    # Twice the workers need at least as many nodes.
    beyond = Counts(2 * series.counts.workers[-1:], series.counts.nodes[-1:])
    return [*rows, _row(series, fitted, beyond, NAN)], _fit_row(series, fitted, rows)


def _fit(series: Series, size: int) -> StepTime:
    return fit_step_time(series.counts[:size], series.launches[:size])


def _row(series: Series, fitted: StepTime, at: Counts, measured: float) -> _Cells:
    unseen_link = bool((fitted.counts.nodes == 1).all() and at.nodes[0] > 1)
    low, high = UNKNOWN_INTERVAL if unseen_link else _throughput_interval(series, fitted, at)
    further = {
        "predicted_low": low,
        "predicted_high": high,
        "held_out": not np.isnan(measured),
        "why": UNSEEN_LINK if unseen_link else "",
    }
    return _check(series, fitted.counts, fitted.seconds, at, measured) | further


def _check(
    series: Series, counts: Counts, seconds_at: Callable[[Counts], Vector], at: Counts, measured: float
) -> _Cells:
    """Return the prediction of a law that was fitted on some counts, at one other."""
    predicted = float((at.workers * series.work / seconds_at(at))[0])
    values = (count_range(counts), int(at.workers[0]), predicted, measured, predicted / measured - 1)
    return dict(zip(CHECK_COLUMNS, (*series.key, *values), strict=True))


def _throughput_interval(series: Series, fitted: StepTime, at: Counts) -> Interval:
    least, most = fitted.interval(at)
    images = float(at.workers[0]) * series.work
    return images / most, images / least


def _law_rows(series: Series, law: str) -> Iterator[_Cells]:
    for size in series.splits():
        counts = series.counts[:size]
        seconds_at = simple_law(law, counts, series.medians[:size])
        for place in range(size, len(series.launches)):
            at = series.counts[place : place + 1]
            yield _check(series, counts, seconds_at, at, float(series.measured[place]))


def _fit_row(series: Series, fitted: StepTime, checks: Sequence[_Cells]) -> _Cells:
    values = np.vstack([fitted.terms, fitted.term_intervals()])
    values[:, [place for place in range(len(STEP_TERMS)) if place not in fitted.known]] = NAN
    errors = (_typical_error(checks), _last_efficiency_error(series))
    ends = (count_range(fitted.counts), *values.T.ravel(), *errors, len(checks))
    return dict(zip(FIT_COLUMNS, (*series.key, *ends), strict=True))


def _typical_error(checks: Sequence[_Cells]) -> float:
    return median_known(np.abs([row["error"] for row in checks]))


def _last_efficiency_error(series: Series) -> float:
    """Return the median error of the same checks by keeping the last efficiency."""
    return _typical_error([*_law_rows(series, LAST_EFFICIENCY)])
