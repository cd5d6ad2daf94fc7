"""What to know before asking for nodes: speed, efficiency and cost of counts measured, and of some beyond.

Efficiency is against 1 worker of the same series. Predicted counts reach twice as far as measured ones: the
models are held against measurements over such a step, and not over a longer one.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis.prediction.averaging import AverageForecast, Predictor
from analysis.prediction.extrapolation import SERIES_AT_ONCE
from analysis.prediction.scaling_laws import Counts, term_matrix
from analysis.prediction.series import Series, all_series, count_at, why_unpredictable
from analysis.prediction.step_time import STEP_TERMS, StepTime
from analysis.processes import parallel_map
from analysis.study import NAN, POINT, SECONDS_PER_HOUR, SERIES, Study
from analysis.text import Row, count, labelled, number, percent, series_name, with_interval

_BOUNDED = ("step_seconds", "efficiency", "worker_hours")
REQUEST_COLUMNS = (
    *POINT, "source", *(f"{name}{end}" for name in _BOUNDED for end in ("", "_low", "_high")),
    "largest_term", "largest_term_share", "why",
)  # fmt: skip
AS_MEASURED = "measured"
AS_PREDICTED = "predicted"
# Of counts between the largest measured and twice as many.
MOST_PREDICTED_POINTS = 8
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
    study, each as fast as those after the warm-up. `largest_term` of the sum of terms takes most of what is
    lost to linear scaling, `largest_term_share` of it; in a sum of terms, names are no causes.
    """
    epochs = float(study.epochs.groupby("run", observed=True)["epoch"].max().median() + 1)
    every = [(series, _of_series(points, series).to_dict("records")) for series in all_series(study)]
    rows = [row for of in parallel_map(partial(_rows, epochs), every, chunk=SERIES_AT_ONCE) for row in of]
    return pd.DataFrame(rows, columns=list(REQUEST_COLUMNS))


def _rows(epochs: float, series_and_points: tuple[Series, Sequence[Row]]) -> list[_Cells]:
    series, known = series_and_points
    measured = [_measured(series, row, epochs) for row in known]
    return [*measured, *_predicted_rows(series, known, epochs)]


def _of_series(points: pd.DataFrame, series: Series) -> pd.DataFrame:
    alike = points[(points[SERIES] == list(series.key)).all(axis=1)]
    return alike[alike["throughput"].notna()].sort_values("workers")


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


def _predicted(series: Series, at: Counts, forecast: AverageForecast, work_hours: float) -> _Cells:
    low, high = forecast.interval
    seconds = [forecast.seconds, low, high]
    alone = float(series.medians[0])
    workers = float(at.workers[0])
    hours = [workers * work_hours / series.throughput(at, each) for each in seconds]
    values = {"step_seconds": seconds, "efficiency": _inverse(alone, seconds), "worker_hours": hours}
    return _row(series, at, AS_PREDICTED, values) | {"why": forecast.why}


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


def request_sentences(study: Study, table: pd.DataFrame, plan: pd.DataFrame) -> Iterator[str]:
    """Yield for every series up to which count it is efficient, what takes the rest, and the time to an IoU.

    `plan` is that of played runs (analysis/played/plan.py).
    """
    for _, rows in table.groupby(SERIES, sort=False):
        known = rows.to_dict("records")
        name = series_name(known[0], study.names)
        sentence = "; ".join(_of_efficiency(known, study.criteria.efficiency_floor))
        yield labelled(str(known[0]["options"]), f"{name}: {sentence}")
    for row in plan[plan["seconds_to_target"].notna()].to_dict("records"):
        hours = with_interval(row, "seconds_to_target", "~3", SECONDS_PER_HOUR)
        name = series_name(row, study.names)
        text = (
            f"{name} on {count(int(row['workers']), 'worker')}: {hours} h to an IoU of {row['target_iou']:g}"
        )
        yield labelled(str(row["options"]), f"{text} (speed {row['speed']})")


def _of_efficiency(rows: Sequence[Row], floor: float) -> Iterator[str]:
    largest = largest_efficient(rows, floor)
    shown = f"above {number(floor, 'g')} with 95 % confidence"
    if largest is None:
        yield f"at no count of several workers is the efficiency shown to be {shown}"
    else:
        efficiency = with_interval(largest, "efficiency", ".2f")
        reach = " (as far as predictions reach)" if largest is rows[-1] else ""
        yield (
            f"the efficiency is {shown} up to {count(int(largest['workers']), 'worker')}{reach}, there "
            f"{efficiency} ({largest['source']})"
        )
    last = rows[-1]
    if last["source"] != AS_PREDICTED:
        yield "larger counts are not predicted: that needs 3 worker counts, 1 among them"
        return
    yield _expected(last)


def _expected(last: Row) -> str:
    """Return what the largest count predicted is expected to reach."""
    hours = with_interval(last, "worker_hours", "~3")
    efficiency = with_interval(last, "efficiency", ".2f")
    rest = f"; {last['why']}" if last["why"] else ""
    share = percent(last["largest_term_share"], 0)
    term = f"; of what is lost the terms fitted give {share} to {last['largest_term']}"
    return (
        f"{count(int(last['workers']), 'worker')} are expected at an efficiency of {efficiency} and "
        f"{hours} worker-hours a training{term if last['largest_term'] else ''}{rest}"
    )


def largest_efficient(rows: Sequence[Row], floor: float) -> Row | None:
    """Return the row of the largest count whose whole interval lies above the floor, and that of all before.

    A count without an interval shows nothing, and stands in no other's way. 1 worker is no answer.
    """
    found = None
    for row in rows:
        if row["workers"] > 1 and not np.isnan(row["efficiency_low"]):
            if row["efficiency_low"] < floor:
                break
            found = row
    return found
