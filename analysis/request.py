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
from analysis.restriction import after
from analysis.stats import (
    CONFIDENCE,
    FEWEST_REPEATS,
    RESAMPLING_SEED,
    UNKNOWN_INTERVAL,
    coverage,
    replicates,
)
from analysis.study import EMULATED, NAN, POINT, SECONDS_PER_HOUR, SERIES, Study, bounded
from analysis.text import Row, labelled, series_name
from analysis.words import lines
from unet_scaling.study.options import Criteria

REQUEST_COLUMNS = (
    *POINT, "source", *bounded("step_seconds", "efficiency", "worker_hours"),
    "coverage", "largest_term", "largest_term_share", "why",
)  # fmt: skip
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

# A row of REQUEST_COLUMNS.
_Cells = tuple[Any, ...]


def request_table(study: Study, points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per count of every series, measured or predicted: REQUEST_COLUMNS.

    `points` are those of `points.summarise`. `worker_hours` are of one training, its epochs as in the
    series, each as fast as those after the warm-up; NaN of emulated runs, which train nothing. `coverage` is
    the confidence that the interval of the efficiency can promise: of a measured one by its launches and
    those on 1 worker, of a predicted one the nominal one of the model.
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
    if study.kind == EMULATED:
        return NAN
    runs = study.runs.loc[(study.runs[SERIES] == list(series.key)).all(axis=1), "run"]
    epochs = study.epochs[study.epochs["run"].isin(runs)]
    return float(epochs.groupby("run", observed=True)["epoch"].max().median() + 1)


def _rows(known: tuple[Series, Sequence[Row], float]) -> list[_Cells]:
    """Return the rows of a series from its points, smallest count first, and its epochs."""
    series, points, epochs = known
    rows: list[_Cells] = []
    for point in points:
        workers = int(point["workers"])
        throughputs = [point[f"throughput{end}"] for end in ("", "_high", "_low")]
        steps = float(series.medians[series.counts.workers == workers][0]) * throughputs[0]
        hours = workers * epochs * throughputs[0] / point["epochs_per_second"] / SECONDS_PER_HOUR
        fewest = min(row["repeats"] for row in points if row["workers"] in (1, workers))
        seconds, worker_hours = ([of / each for each in throughputs] for of in (steps, hours))
        efficiency = [point[name] for name in bounded("efficiency")]
        promised = coverage(fewest) if fewest >= FEWEST_REPEATS else NAN
        key = (*series.key, workers, "measured")
        rows.append((*key, *seconds, *efficiency, *worker_hours, promised, "", NAN, ""))
    return [*rows, *_predicted(series, points[-1], epochs)] if points else rows


def _predicted(series: Series, largest: Row, epochs: float) -> Iterator[_Cells]:
    """Yield the rows of the counts beyond the largest measured one, up to twice as many."""
    if series.why_unpredictable:
        return
    fitted = series.fit()
    most = int(largest["workers"])
    # Epochs have as many images as those of the largest count.
    work = float(largest["throughput"] / largest["epochs_per_second"]) * epochs / SECONDS_PER_HOUR
    exact = EXACT_BASELINE if len(series.launches[0]) < FEWEST_REPEATS else ""
    counts = {round(each) for each in np.linspace(most, 2 * most, MOST_PREDICTED_POINTS + 1)} - {most}
    for workers in sorted(counts):
        at = series.counts.at(workers)
        forecast = fitted.at(at, series.work)
        seconds = forecast.bounded
        # What is beyond the seconds of 1 worker; in a sum of terms, names are no causes.
        lost = (step_matrix(at)[0] * fitted.terms)[1:]
        name = TERM_NAMES[[*STEP_TERMS][1 + int(lost.argmax())]]
        term = (name, float(lost.max() / lost.sum())) if lost.any() else ("", NAN)
        efficiency = _efficiency(series.launches[0], forecast)
        hours = [workers * work * each / forecast.work for each in seconds]
        promised = CONFIDENCE if len(forecast.draws) else NAN
        key = (*series.key, workers, "predicted")
        yield *key, *seconds, *efficiency, *hours, promised, *term, forecast.why or exact


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


def request_sentences(study: Study, table: pd.DataFrame, plan: pd.DataFrame) -> Iterator[str]:
    """Yield for every series up to which count it is efficient, and the time to an IoU.

    `table` is that of `request_table`, `plan` that of played runs (analysis/played.py). Nothing is said of a
    series without an efficiency on several workers.
    """
    about: list[tuple[Row, dict[str, object]]] = []
    for _, of in table.groupby(SERIES, sort=False):
        rows = of.to_dict("records")
        if of.loc[of["workers"] > 1, "efficiency"].notna().any():
            reached = _efficient_counts(rows, study.criteria)
            about.append((rows[0], {"rows": rows, "reached": reached, "row": None}))
    about += [(row, {"row": row}) for row in plan[plan["seconds_to_target"].notna()].to_dict("records")]
    for row, values in about:
        (text,) = lines("request", study=study, name=series_name(row, study.names), **values)
        yield labelled(str(row["options"]), after(study.kind.restricted, text))
    if about and (table["source"] == "measured").all():
        yield "larger counts are not predicted: that needs 3 worker counts, 1 among them"


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
