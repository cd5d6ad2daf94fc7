"""What to know before asking for nodes: speed, efficiency and cost of counts measured, and of some beyond.

Efficiency is against 1 worker of the same series. Predicted counts reach twice as far as measured ones: the
models are held against measurements over such a step, and not over a longer one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.findings.decide import least_efficiency
from analysis.predict import EDGES, SERIES_AT_ONCE, STEP_TERMS, Forecast, Series, all_series, step_matrix
from analysis.processes import parallel_map
from analysis.restriction import after, restriction_words
from analysis.stats import (
    CONFIDENCE,
    FEWEST_REPEATS,
    RESAMPLING_SEED,
    UNKNOWN_INTERVAL,
    coverage,
    replicates,
)
from analysis.study import NAN, POINT, SECONDS_PER_HOUR, SERIES, Study
from analysis.text import Row, count, labelled, number, percent, series_name, with_interval
from unet_scaling.study.options import Criteria

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

    `points` are those of `points.summarise`. `worker_hours` are of one training, its epochs as in the
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


def _epochs(study: Study, series: Series) -> float:
    """Return how many epochs a training of this series has; NaN where nothing is trained."""
    if study.is_emulated:
        return NAN
    runs = study.runs.loc[(study.runs[SERIES] == list(series.key)).all(axis=1), "run"]
    epochs = study.epochs[study.epochs["run"].isin(runs)]
    return float(epochs.groupby("run", observed=True)["epoch"].max().median() + 1)


def _rows(known: tuple[Series, Sequence[Row], float]) -> list[_Cells]:
    series, points, epochs = known
    rows = [_measured(series, point, points, epochs) for point in points]
    return [*rows, *_predicted(series, points[-1], epochs)] if points else rows


def _measured(series: Series, point: Row, points: Sequence[Row], epochs: float) -> _Cells:
    workers = int(point["workers"])
    place = int(np.flatnonzero(series.counts.workers == workers)[0])
    throughput, low, high = (float(point[f"throughput{end}"]) for end in ("", "_low", "_high"))
    steps = float(series.medians[place]) * throughput
    hours = workers * epochs * throughput / point["epochs_per_second"] / SECONDS_PER_HOUR
    fewest = min(row["repeats"] for row in points if row["workers"] in (1, workers))
    values = {
        "step_seconds": [steps / each for each in (throughput, high, low)],
        "efficiency": [point[f"efficiency{end}"] for end in ("", "_low", "_high")],
        "worker_hours": [hours / each for each in (throughput, high, low)],
    }
    known = coverage(fewest) if fewest >= FEWEST_REPEATS else NAN
    return _row(series, workers, AS_MEASURED, values) | {"coverage": known}


def _predicted(series: Series, largest: Row, epochs: float) -> Iterator[_Cells]:
    """Yield the counts beyond the largest measured one, up to twice as many."""
    if series.why_unpredictable:
        return
    fitted = series.fit()
    most = int(largest["workers"])
    # Epochs have as many images as those of the largest count.
    work = float(largest["throughput"] / largest["epochs_per_second"]) * epochs / SECONDS_PER_HOUR
    counts = {round(each) for each in np.linspace(most, 2 * most, MOST_PREDICTED_POINTS + 1)} - {most}
    for workers in sorted(counts):
        at = series.counts.at(workers)
        forecast = fitted.at(at)
        seconds = [forecast.seconds, *forecast.interval]
        values = {
            "step_seconds": seconds,
            "efficiency": _efficiency(series.launches[0], forecast),
            "worker_hours": [workers * work / series.throughput(at, each) for each in seconds],
        }
        exact = EXACT_BASELINE if len(series.launches[0]) < FEWEST_REPEATS else ""
        row = _row(series, workers, AS_PREDICTED, values) | {
            "coverage": CONFIDENCE if len(forecast.draws) else NAN,
            "why": forecast.why or exact,
        }
        # What is beyond the seconds of 1 worker.
        lost = (step_matrix(at)[0] * fitted.terms)[1:]
        if lost.any():
            row["largest_term"] = TERM_NAMES[[*STEP_TERMS][1 + int(lost.argmax())]]
            row["largest_term_share"] = float(lost.max() / lost.sum())
        yield row


def _efficiency(alone: Array, forecast: Forecast) -> list[float]:
    """Return the seconds of a step on 1 worker, `alone` of each launch, over those predicted, with interval.

    The median of `alone` is drawn apart from what is predicted: both rest on the same launches, which would
    make the ratio vary less.
    """
    ratio = float(np.median(alone)) / forecast.seconds
    if not len(forecast.draws):
        return [ratio, *UNKNOWN_INTERVAL]
    medians: Array = np.full(1, np.median(alone))
    if len(alone) >= FEWEST_REPEATS:
        (replicated,) = replicates(alone[None])
        medians = np.random.default_rng(RESAMPLING_SEED).choice(replicated, len(forecast.draws))
    low, high = np.quantile(medians / forecast.draws, EDGES)
    return [ratio, min(float(low), ratio), max(float(high), ratio)]


def _row(series: Series, workers: int, source: str, values: Mapping[str, Sequence[float]]) -> _Cells:
    ends = ("", "_low", "_high")
    numbers = {f"{name}{end}": of[place] for name, of in values.items() for place, end in enumerate(ends)}
    key = dict(zip(POINT, (*series.key, workers), strict=True))
    return key | {"source": source, "largest_term": "", "largest_term_share": NAN, "why": ""} | numbers


def request_sentences(study: Study, table: pd.DataFrame, plan: pd.DataFrame) -> Iterator[str]:
    """Yield for every series up to which count it is efficient, what takes the rest, and the time to an IoU.

    `table` is that of `request_table`, `plan` that of played runs (analysis/played.py). Of emulated runs,
    every sentence says so first.
    """
    words = restriction_words(study)
    for _, rows in table.groupby(SERIES, sort=False):
        known = rows.to_dict("records")
        text = f"{series_name(known[0], study.names)}: {_reach(known, study.criteria)}; {_beyond(known[-1])}"
        yield labelled(str(known[0]["options"]), after(words, text))
    for row in plan[plan["seconds_to_target"].notna()].to_dict("records"):
        hours = with_interval(row, "seconds_to_target", "~3", SECONDS_PER_HOUR)
        where = f"{series_name(row, study.names)} on {count(int(row['workers']), 'worker')}"
        target = f"{study.score.with_article} of {row['target_iou']:g} (speed {row['speed']})"
        yield labelled(str(row["options"]), after(words, f"{where}: {hours} h to {target}"))


def _reach(rows: Sequence[Row], criteria: Criteria) -> str:
    """Return up to which count the efficiency is above the floor, and on what that rests."""
    if all(math.isnan(row["efficiency"]) for row in rows if row["workers"] > 1):
        return "no efficiency is known"
    floor = number(criteria.efficiency_floor, "g")
    reached = _efficient_counts(rows, criteria)
    if not reached:
        return f"at no count of several workers does the whole interval of the efficiency lie above {floor}"
    largest = reached[-1]
    is_last_predicted = largest is rows[-1] and largest["source"] == AS_PREDICTED
    reach = " (as far as predictions reach)" if is_last_predicted else ""
    confidence = percent(min(row["coverage"] for row in reached), 0)
    return (
        f"the efficiency is above {floor} up to {count(int(largest['workers']), 'worker')}{reach}, by whole "
        f"intervals of {confidence} confidence, there {with_interval(largest, 'efficiency', '.2f')} "
        f"({largest['source']})"
    )


def _beyond(last: Row) -> str:
    """Return what the largest count predicted is expected to reach."""
    if last["source"] != AS_PREDICTED:
        return "larger counts are not predicted: that needs 3 worker counts, 1 among them"
    said = f"{count(int(last['workers']), 'worker')} are expected at an efficiency of "
    said += with_interval(last, "efficiency", ".2f")
    if not math.isnan(last["worker_hours"]):
        said += f" and {with_interval(last, 'worker_hours', '~3')} worker-hours a training"
    if last["largest_term"]:
        share = percent(last["largest_term_share"], 0)
        said += f"; of what is lost the terms fitted give {share} to {last['largest_term']}"
    return "; ".join(filter(None, (said, last["why"])))


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
