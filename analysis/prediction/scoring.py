"""Hold predictions that were written before their runs against what these measured.

The interval score of Gneiting and Raftery (2007) is the width of an interval plus 2 / alpha times what a
measured value lies outside of it: the smaller the better. It is given in shares of the measured value.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.arrays import Array
from analysis.loading.forecasts import AVERAGE
from analysis.stats import CONFIDENCE, share_interval, timed
from analysis.study import NAN, POINT, Study
from analysis.text import count, number, number_with_interval, percent

_FIRST = [
    *POINT, "file", "written_utc", "model", "weight", "held_out", "unscored",
    "predicted", "predicted_low", "predicted_high", "linear", "linear_low", "linear_high",
]  # fmt: skip
SCORED_COLUMNS = (
    *_FIRST,
    "measured", "error", "linear_error", "inside", "interval_score", "linear_interval_score", "counted",
)  # fmt: skip


def score_table(study: Study) -> pd.DataFrame:
    """Return one row per prediction of a file and model, scored where that is fair.

    `counted` are the averages that the summary is of: of several files on a point the youngest that is older
    than its runs. An unscored prediction has no measured value, error or score here.
    """
    table = study.forecasts[_FIRST].merge(_throughputs(study), on=POINT, how="left")
    is_fair = table["unscored"] == ""
    table["measured"] = table["measured"].where(is_fair)
    scored = table.assign(**_scores(table), **_scores_of_linear(table), counted=_counted(table, is_fair))
    return scored[[*SCORED_COLUMNS]]


def _throughputs(study: Study) -> pd.DataFrame:
    """Return the median throughput of each point, from the runs that count for speed."""
    points = timed(study).runs.groupby(POINT, sort=False)
    return points[study.throughput].median().rename("measured").reset_index()


def _scores(table: pd.DataFrame) -> dict[str, Any]:
    """Return the columns on each prediction: its error and interval score, and whether its interval holds."""
    measured = _numbers(table, "measured")
    low = _numbers(table, "predicted_low")
    high = _numbers(table, "predicted_high")
    return {
        "error": _numbers(table, "predicted") / measured - 1,
        "inside": _words((low <= measured) & (measured <= high), np.isnan(low + measured)),
        "interval_score": interval_score(low, high, measured) / measured,
    }


def _scores_of_linear(table: pd.DataFrame) -> dict[str, Any]:
    """Return error and interval score of linear scaling.

    Too few launches on 1 worker give it no interval: then it is a number, held to be sure.
    """
    measured = _numbers(table, "measured")
    linear = _numbers(table, "linear")
    low, high = (_known_or(_numbers(table, name), linear) for name in ("linear_low", "linear_high"))
    score = interval_score(low, high, measured) / measured
    return {"linear_error": linear / measured - 1, "linear_interval_score": score}


def _known_or(values: Array, others: Array) -> Array:
    return np.where(np.isnan(values), others, values)


def _numbers(table: pd.DataFrame, name: str) -> Array:
    return table[name].to_numpy(dtype=np.float64, na_value=NAN)


def _words(inside: NDArray[np.bool_], unknown: NDArray[np.bool_]) -> list[str]:
    return list(np.where(unknown, "", np.where(inside, "yes", "no")))


def _counted(table: pd.DataFrame, is_fair: "pd.Series[bool]") -> "pd.Series[bool]":
    averages = table[is_fair & (table["model"] == AVERAGE)].sort_values("written_utc", kind="stable")
    last = averages.drop_duplicates(POINT, keep="last").index
    return pd.Series(table.index.isin(last), index=table.index)


def interval_score(low: Array, high: Array, measured: Array) -> Array:
    """Return the interval score of 95 % intervals, in the unit of the values."""
    outside = np.maximum(0.0, low - measured) + np.maximum(0.0, measured - high)
    return np.asarray(high - low + 2 / (1 - CONFIDENCE) * outside)


def score_notes(scores: pd.DataFrame) -> Iterator[str]:
    """Yield how good the predictions were that were written before their runs, and which are not scored."""
    counted = scores[scores["counted"]]
    if len(counted):
        yield _errors_text(counted)
        yield from _coverage_text(counted)
    yield from _unscored_text(scores[scores["model"] == AVERAGE])


def _errors_text(counted: pd.DataFrame) -> str:
    errors = _numbers(counted, "error")
    linear = np.abs(_numbers(counted, "linear_error"))
    worst = errors[np.abs(errors).argmax()]
    return (
        f"written before the runs, {count(len(counted), 'prediction')}: error "
        f"{number(errors.mean(), '+.1%')} in the mean, {percent(np.abs(errors).mean())} without the sign, "
        f"{number(worst, '+.1%')} at worst; "
        f"linear scaling (b/N) {percent(linear.mean())} and {percent(linear.max())}"
    )


def _coverage_text(counted: pd.DataFrame) -> Iterator[str]:
    known = counted[counted["inside"] != ""]
    if known.empty:
        return
    held = int((known["inside"] == "yes").sum())
    low, high = share_interval(held, len(known))
    model, linear = (_numbers(known, name).mean() for name in ("interval_score", "linear_interval_score"))
    share = number_with_interval(held / len(known), low, high, ".0%")
    yield (
        f"{held} of {len(known)} intervals hold what was measured: {share}, nominal "
        f"{percent(CONFIDENCE, 0)}; interval score {percent(model)} of the throughput, "
        f"that of linear scaling {percent(linear)}"
    )


def _unscored_text(averages: pd.DataFrame) -> Iterator[str]:
    for (file, why), rows in averages[averages["unscored"] != ""].groupby(["file", "unscored"], sort=False):
        points = ", ".join(f"{row['framework']} on {row['workers']}" for row in rows.to_dict("records"))
        yield f"{file}, not scored ({points}): {why}"
