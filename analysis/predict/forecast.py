"""Predictions of points that are not measured yet: written to a file, later held against the runs."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.numbers.stats import median_intervals, share_interval
from analysis.predict.speed import FARTHEST_HELD_RATIO, Series, all_series
from analysis.read.companion_files import (
    Estimate,
    PredictedPoint,
    PredictionFile,
    prediction_inputs,
    series_sha256,
)
from analysis.study import CONFIDENCE, NAN, POINT, SERIES, Array, Names, Study, bounded
from analysis.text import count, listed, number, number_with_interval, percent
from unet_scaling import commit
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.format.record_lines import Header


def predict_study(folder: Path, study: Study, workers: Sequence[int]) -> PredictionFile:
    """Return what the records of a study say of these worker counts.

    Raises UserError where the runs are of scripts, where a count is measured, and where no series has the
    counts that a model needs.
    """
    if not study.kind.compares:
        raise UserError(
            f"{study.name} is {study.kind.restricted}: nothing is predicted from it", EXIT_BAD_DATA
        )
    measured = sorted({int(each) for each in study.runs["workers"]})
    held = [str(each) for each in workers if each in measured]
    if held:
        have = f"{study.name} has complete runs on {listed(map(str, measured))} workers"
        raise UserError(f"--for {','.join(held)}: {have}; name counts that are not measured yet")
    every = all_series(study)
    known = [series for series in every if not series.why_unpredictable]
    if not known:
        reasons = [f"{series.name(study.names)}: {series.why_unpredictable}" for series in every]
        why = "; ".join(reasons) or "it has no usable run"
        cure = "run more worker counts, 1 among them"
        raise UserError(f"{study.name}: nothing can be predicted: {why}; {cure}", EXIT_BAD_DATA)
    # Before anything is computed: a run that starts meanwhile is younger than what was read.
    written = datetime.now(UTC)
    head, dirty = commit()
    return PredictionFile(
        study=study.name,
        written_utc=written.isoformat(timespec="seconds"),
        commit=head,
        dirty=dirty,
        unit=study.unit,
        inputs=prediction_inputs(folder, study.headers),
        points=[_point(study.headers, study.runs, series, each) for series in known for each in workers],
    )


def _point(headers: Mapping[str, Header], runs: pd.DataFrame, series: Series, workers: int) -> PredictedPoint:
    at = series.counts.at(workers)
    forecast = series.fitted.at(at, series.work)
    alike = (runs[SERIES] == list(series.key)).all(axis=1)
    config = headers[runs.loc[alike, "run"].iloc[0]].config
    options, _, knobs = series.key
    ratio = workers / float(series.counts.workers[-1])
    far = f"{ratio:.3g} times the most workers measured; no prediction so far out was held against runs"
    # N workers of which each is as fast as one alone, with that one's interval.
    alone = series.launches[0]
    (ends,) = median_intervals([alone])
    low, high = (forecast.work / end for end in reversed(ends))
    return PredictedPoint(
        framework=config.framework,
        options=options,
        knobs=knobs,
        series_sha256=series_sha256(config),
        workers=workers,
        nodes=int(at.nodes[0]),
        fitted_on=[int(each) for each in series.counts.workers],
        step_seconds=_estimate(*forecast.bounded),
        throughput=_estimate(*forecast.throughputs),
        linear=_estimate(forecast.work / float(np.median(alone)), low, high),
        remarks=[*filter(None, [forecast.why, far * (ratio > FARTHEST_HELD_RATIO)]), *series.cautions()],
    )


def _estimate(median: float, low: float, high: float) -> Estimate:
    is_known = not np.isnan([low, high]).any()
    return Estimate(median=median, low=low if is_known else None, high=high if is_known else None)


def forecast_lines(prediction: PredictionFile, names: Names) -> Iterator[str]:
    """Yield what a prediction file says, for the terminal."""
    for point in prediction.points:
        name = ", ".join(filter(None, (names[point.framework], point.options, point.knobs)))
        yield f"{name} on {count(point.workers, 'worker')}, from {', '.join(map(str, point.fitted_on))}:"
        yield f"  step time   {_with_ends(point.step_seconds)} s"
        yield f"  throughput  {_with_ends(point.throughput)} {prediction.unit}"
        yield from (f"  {remark}" for remark in point.remarks)


def _with_ends(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.median:.4g} (no interval)"
    return f"{estimate.median:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"


def score_table(study: Study) -> pd.DataFrame:
    """Return one row per prediction of a file, scored where that is fair.

    An unscored prediction has no measured value and no error here.
    """
    medians = study.timed.runs.groupby(POINT, sort=False)[study.throughput].median().rename("measured")
    table = study.forecasts.merge(medians.reset_index(), on=POINT, how="left")
    is_fair = table["unscored"] == ""
    table["measured"] = table["measured"].where(is_fair)
    columns = ("measured", *bounded("predicted"), "linear")
    measured, predicted, low, high, linear = (_numbers(table, name) for name in columns)
    inside = np.where((low <= measured) & (measured <= high), "yes", "no")
    fair = table[is_fair].sort_values("written_utc", kind="stable")
    return table.assign(
        error=predicted / measured - 1,
        inside=list(np.where(np.isnan(low + measured), "", inside)),
        linear_error=linear / measured - 1,
        counted=table.index.isin(fair.drop_duplicates(POINT, keep="last").index),
    )


def _numbers(table: pd.DataFrame, name: str) -> Array:
    return table[name].to_numpy(dtype=np.float64, na_value=NAN)


def score_notes(scores: pd.DataFrame) -> Iterator[str]:
    """Yield how good the predictions were that were written before their runs, and which are not scored."""
    counted = scores[scores["counted"]]
    if len(counted):
        errors = _numbers(counted, "error")
        linear = np.abs(_numbers(counted, "linear_error"))
        yield (
            f"written before the runs, {count(len(counted), 'prediction')}: error "
            f"{number(errors.mean(), '+.1%')} in the mean, {percent(np.abs(errors).mean())} without the "
            f"sign, {number(errors[np.abs(errors).argmax()], '+.1%')} at worst; "
            f"linear scaling (b/N) {percent(linear.mean())} and {percent(linear.max())}"
        )
    known = counted[counted["inside"] != ""]
    if len(known):
        held = int((known["inside"] == "yes").sum())
        share = number_with_interval(held / len(known), *share_interval(held, len(known)), ".0%")
        yield (
            f"{held} of {len(known)} intervals hold what was measured: {share}, nominal "
            f"{percent(CONFIDENCE, 0)}"
        )
    for (file, why), rows in scores[scores["unscored"] != ""].groupby(["file", "unscored"], sort=False):
        points = ", ".join(f"{row['framework']} on {row['workers']}" for row in rows.to_dict("records"))
        yield f"{file}, not scored ({points}): {why}"
