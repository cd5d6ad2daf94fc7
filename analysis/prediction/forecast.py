"""Predict the throughput of points that are not measured yet, for a file that later runs are held against."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from analysis.loading.prediction_files import (
    Estimate,
    PredictedPoint,
    PredictionFile,
    prediction_inputs,
    series_sha256,
)
from analysis.prediction.notes import few_launches, one_node_only
from analysis.prediction.predictor import Predictor
from analysis.prediction.scaling_laws import Counts
from analysis.prediction.series import Series, all_series, count_at, why_unpredictable
from analysis.restriction import restriction_words
from analysis.stats import Interval, median_intervals
from analysis.study import SERIES, Study
from analysis.text import listed
from unet_scaling.study.code_version import commit
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError


def predict_study(folder: Path, study: Study, workers: Sequence[int]) -> PredictionFile:
    """Return what the records of a study say of these worker counts.

    Raises UserError where the runs are of scripts, where a count is measured, and where no series has the
    counts that a model needs.
    """
    if study.is_of_scripts:
        kind = restriction_words(study)
        raise UserError(f"{study.name} is {kind}: nothing is predicted from it", EXIT_BAD_DATA)
    _require_unmeasured(study, workers)
    every = all_series(study)
    known = [series for series in every if not why_unpredictable(series)]
    if not known:
        raise UserError(_no_series(study, every), EXIT_BAD_DATA)
    # Before anything is computed: a run that starts meanwhile is younger than what was read.
    written = datetime.now(UTC)
    points = [_point(study, series, count) for series in known for count in workers]
    head, dirty = commit()
    return PredictionFile(
        study=study.name,
        written_utc=written.isoformat(timespec="seconds"),
        commit=head,
        dirty=dirty,
        unit=study.unit,
        inputs=prediction_inputs(folder, study),
        points=points,
    )


def _require_unmeasured(study: Study, workers: Sequence[int]) -> None:
    measured = sorted({int(count) for count in study.runs["workers"]})
    held = [str(count) for count in workers if count in measured]
    if held:
        raise UserError(
            f"--for {','.join(held)}: a prediction whose inputs hold the point is none; {study.name} has "
            f"complete runs on {listed(map(str, measured))} workers; name counts that are not measured yet"
        )


def _no_series(study: Study, every: Sequence[Series]) -> str:
    reasons = [f"{series.name(study.names)}: {why_unpredictable(series)}" for series in every]
    return (
        f"{study.name}: nothing can be predicted: {'; '.join(reasons) or 'it has no usable run'}; run more "
        "worker counts, 1 among them (the report lists what was left out)"
    )


def _point(study: Study, series: Series, workers: int) -> PredictedPoint:
    predictor = Predictor(series, len(series.launches))
    at = count_at(series.counts, workers)
    forecast = predictor.at(at)
    config = study.headers[_first_run(study, series)].config
    names = dict(zip(SERIES, series.key, strict=True))
    return PredictedPoint(
        framework=config.framework,
        options=names["options"],
        knobs=names["knobs"],
        series_sha256=series_sha256(config),
        workers=workers,
        nodes=int(at.nodes[0]),
        fitted_on=[int(count) for count in predictor.counts.workers],
        step_seconds=_estimate(forecast.seconds, forecast.interval),
        throughput=_throughput(series, at, forecast.seconds, forecast.interval),
        linear=_linear(series, at),
        remarks=[*_remarks(series, forecast.why)],
    )


def _first_run(study: Study, series: Series) -> str:
    alike = (study.runs[SERIES] == list(series.key)).all(axis=1)
    return str(study.runs.loc[alike, "run"].iloc[0])


def _estimate(median: float, interval: Interval) -> Estimate:
    low, high = (None if np.isnan(end) else float(end) for end in interval)
    return Estimate(median=median, low=low, high=high)


def _throughput(series: Series, at: Counts, seconds: float, interval: Interval) -> Estimate:
    return _estimate(series.throughput(at, seconds), series.throughputs(at, interval))


def _linear(series: Series, at: Counts) -> Estimate:
    """Return the throughput of N workers of which each is as fast as one alone, with that one's interval."""
    alone = series.launches[0]
    (interval,) = median_intervals([alone])
    return _throughput(series, at, float(np.median(alone)), interval)


def _remarks(series: Series, why: str) -> Iterator[str]:
    """Yield what a reader of the interval has to know."""
    if why:
        yield why
    yield from one_node_only(series)
    yield from few_launches(series)
