"""Throughput at worker counts that were not used: predicted with an interval, and checked where measured.

A point's time is the median over its launches of the seconds per step (analysis/step_time.py). Logs
without steps give the time of the work of one worker's epoch instead, workers / (epochs per second), in
which dropped images pass for work. docs/prediction.md explains the model and shows what it is worth.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.prediction.scaling_laws import LAST_EFFICIENCY, Counts, Vector, simple_law
from analysis.prediction.step_time import STEP_TERMS, StepTime, fit_step_time
from analysis.processes import parallel_map
from analysis.statistics.intervals import FEWEST_REPEATS, UNKNOWN, Interval
from analysis.statistics.timed import timed
from analysis.study import NAN, SERIES, Names, Study

FEWEST_COUNTS = 3
SERIES_AT_ONCE = 10
CHECK_COLUMNS = (*SERIES, "fitted_on", "workers", "predicted", "measured", "error")
PREDICTION_COLUMNS = (
    *SERIES, "fitted_on", "workers", "predicted", "predicted_low", "predicted_high", "measured", "error",
    "held_out", "why",
)  # fmt: skip
TERM_COLUMNS = tuple(f"{term}{end}" for term in STEP_TERMS for end in ("", "_low", "_high"))
CHECKED_COLUMNS = ("held_out_error", "last_efficiency_error", "held_out_points")
FIT_COLUMNS = (*SERIES, "fitted_on", *TERM_COLUMNS, *CHECKED_COLUMNS)
UNSEEN_LINK = "the link between nodes is not among the points fitted"

Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """The points of one series, smallest count first.

    launches  seconds per step of every launch of each count
    work      throughput = workers x work / seconds per step
    measured  median throughput of each count
    """

    key: tuple[str, ...]
    counts: Counts
    launches: tuple[Vector, ...]
    work: float
    measured: Vector

    def splits(self) -> range:
        """How many of the smallest counts are fitted so that a larger one is left to check."""
        return range(FEWEST_COUNTS, len(self.launches))


@dataclass(frozen=True)
class Outlook:
    """All that is predicted of a study.

    predictions  one row for each prediction that the points allow: PREDICTION_COLUMNS
    fits         one row for each series that can be predicted: FIT_COLUMNS
    notes        for each series how far predictions were off and what is expected beyond, or why there
                 are none
    """

    predictions: pd.DataFrame
    fits: pd.DataFrame
    notes: tuple[str, ...]


def outlook(study: Study) -> Outlook:
    """`predictions`, `fits` and `prediction_notes` at once: every model is fitted only once."""
    every = _all_series(study)
    known = [series for series in every if not _reason(series)]
    found = list(parallel_map(_of_series, known, chunk=SERIES_AT_ONCE))
    notes = {
        series.key: list(_sentences(series, study.unit, rows))
        for series, (rows, _) in zip(known, found, strict=True)
    }
    return Outlook(
        pd.DataFrame([row for rows, _ in found for row in rows], columns=list(PREDICTION_COLUMNS)),
        pd.DataFrame([fitted for _, fitted in found], columns=list(FIT_COLUMNS)),
        tuple(
            f"{_name(series, study.names)}: {sentence}"
            for series in every
            for sentence in notes.get(series.key, [f"no prediction: {_reason(series)}"])
        ),
    )


def predictions(study: Study) -> pd.DataFrame:
    """Every prediction that the points allow, one row each: PREDICTION_COLUMNS.

    A series with a 1-worker point and at least 3 counts is fitted on its 3, 4, ... smallest counts
    (`fitted_on`: "1-4"), and throughput (the study's own unit) is predicted at every larger count that
    was measured (`held_out`; `error` = predicted / measured - 1). Fitted on all counts, it is predicted
    at twice the largest, where `measured` and `error` are NaN. Nothing measured beyond `fitted_on` goes
    into a prediction. Where the interval is NaN, `why` says why.
    """
    return outlook(study).predictions


def fits(study: Study) -> pd.DataFrame:
    """The model fitted on all counts of each series that can be predicted, one row each: FIT_COLUMNS.

    Each of STEP_TERMS is in seconds (of one step, or in logs without steps of the work of one worker's
    epoch), NaN where the points cannot tell it from the others; `held_out_error` is the median absolute
    error at held-out counts, NaN without any, `held_out_points` how many; `last_efficiency_error` is that of
    taking the efficiency at the largest count fitted for all larger ones.
    """
    return outlook(study).fits


def prediction_notes(study: Study) -> tuple[str, ...]:
    """For each series how far predictions were off and what is expected beyond, or why there are none."""
    return outlook(study).notes


def law_predictions(study: Study, law: str) -> pd.DataFrame:
    """Held-out predictions of one of scaling_laws.LAWS on the splits of `predictions`: CHECK_COLUMNS."""
    rows = [row for series in _all_series(study) if not _reason(series) for row in _law_rows(series, law)]
    return pd.DataFrame(rows, columns=list(CHECK_COLUMNS))


def _all_series(study: Study) -> list[Series]:
    numbers = ["workers", "nodes", "step_seconds", "images_per_epoch", "steps_per_epoch", study.throughput]
    groups = timed(study).runs.groupby(SERIES, sort=False)[numbers]
    return [
        _series(tuple(map(str, key)), runs.to_numpy(dtype=np.float64, na_value=NAN)) for key, runs in groups
    ]


def _series(key: tuple[str, ...], runs: Vector) -> Series:
    """A series of its runs, [runs, columns], the columns as `_all_series` names them."""
    ordered = runs[np.argsort(runs[:, 0], kind="stable")]
    workers, _, step_seconds, images, steps, throughput = ordered.T
    has_steps = not np.isnan(step_seconds).any()
    counts, first = np.unique(workers, return_index=True)
    points = [columns.T for columns in np.split(ordered, first[1:])]
    return Series(
        key=key,
        counts=Counts(counts, np.array([_median_known(nodes) for _, nodes, *_ in points])),
        launches=tuple(np.split(step_seconds if has_steps else workers / throughput, first[1:])),
        # Equal batches: in records the images per step and worker do not depend on the worker count.
        work=_median_known(images / steps / workers) if has_steps else 1.0,
        measured=np.array([_median_known(point[-1]) for point in points]),
    )


def _median_known(values: Vector) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else NAN


def _reason(series: Series) -> str:
    """Why a series cannot be predicted; empty where it can."""
    counts = series.counts.workers
    if 1 not in counts:
        return "no run on 1 worker"
    if len(counts) < FEWEST_COUNTS:
        return f"{len(counts)} worker count{'s' * (len(counts) > 1)}, at least {FEWEST_COUNTS} needed"
    return ""


def _of_series(series: Series) -> tuple[list[Row], Row]:
    """The predictions of a series, the last one beyond its counts, and its row of fits."""
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


def _row(series: Series, fitted: StepTime, at: Counts, measured: float) -> Row:
    unseen_link = bool((fitted.counts.nodes == 1).all() and at.nodes[0] > 1)
    low, high = UNKNOWN if unseen_link else _throughput_interval(series, fitted, at)
    further = {
        "predicted_low": low,
        "predicted_high": high,
        "held_out": not np.isnan(measured),
        "why": UNSEEN_LINK if unseen_link else "",
    }
    return _check(series, fitted.counts, fitted.seconds, at, measured) | further


def _check(
    series: Series, counts: Counts, seconds_at: Callable[[Counts], Vector], at: Counts, measured: float
) -> Row:
    """What a law that was fitted on some counts says of one other."""
    predicted = float((at.workers * series.work / seconds_at(at))[0])
    values = (_range(counts), int(at.workers[0]), predicted, measured, predicted / measured - 1)
    return dict(zip(CHECK_COLUMNS, (*series.key, *values), strict=True))


def _throughput_interval(series: Series, fitted: StepTime, at: Counts) -> Interval:
    least, most = fitted.interval(at)
    images = float(at.workers[0]) * series.work
    return images / most, images / least


def _law_rows(series: Series, law: str) -> Iterator[Row]:
    medians = np.array([np.median(times) for times in series.launches])
    for size in series.splits():
        counts = series.counts[:size]
        seconds_at = simple_law(law, counts, medians[:size])
        for place in range(size, len(medians)):
            at = series.counts[place : place + 1]
            yield _check(series, counts, seconds_at, at, float(series.measured[place]))


def _fit_row(series: Series, fitted: StepTime, checks: Sequence[Row]) -> Row:
    values = np.vstack([fitted.terms, fitted.term_intervals()])
    values[:, [place for place in range(len(STEP_TERMS)) if place not in fitted.known]] = NAN
    errors = (_typical_error(checks), _last_efficiency_error(series))
    ends = (_range(fitted.counts), *values.T.ravel(), *errors, len(checks))
    return dict(zip(FIT_COLUMNS, (*series.key, *ends), strict=True))


def _typical_error(checks: Sequence[Row]) -> float:
    return _median_known(np.abs([row["error"] for row in checks]))


def _last_efficiency_error(series: Series) -> float:
    """What the checks of the model would give, had the last efficiency been kept instead."""
    return _typical_error([*_law_rows(series, LAST_EFFICIENCY)])


def _sentences(series: Series, unit: str, rows: Sequence[Row]) -> Iterator[str]:
    *checks, beyond = rows
    if checks:
        farthest = [row for row in checks if row["fitted_on"] == checks[0]["fitted_on"]][-1]
        error, typical = 100 * farthest["error"], 100 * _typical_error(checks)
        one = f"fitted on {farthest['fitted_on']}, the error at {farthest['workers']} is {error:+.1f} %"
        yield f"{one}; the median error of all {len(checks)} such checks is {typical:.1f} %"
        yield _against_last_efficiency(typical, 100 * _last_efficiency_error(series))
    interval = f"[{beyond['predicted_low']:.3g}, {beyond['predicted_high']:.3g}]"
    expected = f"{beyond['predicted']:.3g} {unit} {interval}"
    yield f"fitted on {beyond['fitted_on']}, {beyond['workers']} workers are expected to reach {expected}"
    if (series.counts.nodes == 1).all():
        yield f"{UNSEEN_LINK}: what is expected holds within one node only"
    if min(len(times) for times in series.launches) < FEWEST_REPEATS:
        few = f"a point has fewer than {FEWEST_REPEATS} launches"
        yield f"{few}: the intervals carry no launch-to-launch variation, only the misfit of the model"


def _against_last_efficiency(typical: float, without_model: float) -> str:
    """Whether the model is worth having here, by its median error and that of the naive predictor, in %."""
    kept = "keeping the efficiency of the largest count fitted, without a model, gives in the same checks"
    worth = "" if typical < without_model else ": here the model predicts no better"
    return f"{kept} a median error of {without_model:.1f} %{worth}"


def _range(counts: Counts) -> str:
    return f"{counts.workers[0]:.0f}-{counts.workers[-1]:.0f}"


def _name(series: Series, names: Names) -> str:
    options, framework, knobs = series.key
    name = next(name for known, name in names.items() if known == framework)
    return ", ".join(part for part in (name, options, knobs) if part)
