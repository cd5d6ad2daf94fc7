"""One row per point: throughput, speed-up, efficiency, deviation and IoU, each with its interval."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.intervals import (
    CONFIDENCE,
    FEWEST_REPEATS,
    UNKNOWN,
    Interval,
    coverage,
    median_interval,
    ratio_interval,
)
from analysis.load import NAN, Study

SERIES = ["options", "framework", "knobs"]
COLUMNS = (
    "framework",
    "workers",
    "repeats",
    "images_per_second",
    "speedup",
    "speedup_low",
    "speedup_high",
    "efficiency",
    "deviation",
    "iou",
    "iou_low",
    "iou_high",
)
FURTHER_COLUMNS = (
    "images_per_second_low",
    "images_per_second_high",
    "epochs_per_second",
    "efficiency_low",
    "efficiency_high",
    "images_per_epoch",
    "seconds_per_epoch",
    "unknown",
)


def summarise(study: Study) -> pd.DataFrame:
    """The points of a study, in the order of its runs.

    Columns: COLUMNS, FURTHER_COLUMNS, `throughput` with `_low` and `_high` (the study's own unit),
    `options`, `knobs` and the study's axes. Every number is a median over repeats. Speed-up is the median
    throughput over that of the same framework with the same options on 1 worker; efficiency is
    speed-up / workers, deviation 1 - efficiency. Intervals (95 %, percentile bootstrap over launches)
    need 3 repeats; that of a speed-up is paired where both points have the same repeats, and carries
    the baseline's uncertainty either way. What is not known is NaN, and `unknown` says why.
    """
    rows = [
        _point(study, point, series)
        for _, series in study.runs.groupby(SERIES, sort=False)
        for _, point in series.groupby("workers")
    ]
    throughput = ("throughput", "throughput_low", "throughput_high")
    return pd.DataFrame(
        rows, columns=[*COLUMNS, *FURTHER_COLUMNS, *throughput, "options", "knobs", *study.axes]
    )


def runs_with_speedup(study: Study) -> pd.DataFrame:
    """The runs with the throughput of each, and its speed-up over the median of the 1-worker runs."""
    runs = study.runs.assign(throughput=study.runs[study.throughput])
    alone = runs[runs["workers"] == 1].groupby(SERIES)["throughput"].median().rename("baseline")
    runs = runs.join(alone, on=SERIES)
    return runs.assign(speedup=runs["throughput"] / runs["baseline"])


def summary_table(points: pd.DataFrame) -> pd.DataFrame:
    """The columns of summary.csv: the agreed ones, what else is known of a point, the axes."""
    axes = [column for column in points.columns if "." in column]
    return points[[*COLUMNS, *FURTHER_COLUMNS, *axes]]


def unequal_work(study: Study) -> Iterator[str]:
    """Where the epochs of compared runs differ in images, by how much."""
    for options, runs in study.runs.groupby("options", sort=False):
        images = runs["images_per_epoch"]
        if images.notna().all() and images.min() < images.max():
            share = 100 * (1 - images.min() / images.max())
            prefix = f"{options!s}: " if options else ""
            yield f"{prefix}images per epoch: {images.max():g} to {images.min():g}, {share:.1f} %"


def interval_notes(points: pd.DataFrame) -> Iterator[str]:
    """What the intervals of so few repeats are worth."""
    repeats = points["repeats"]
    if (repeats < FEWEST_REPEATS).any():
        fewest = int(repeats.min())
        yield f"an interval needs at least {FEWEST_REPEATS} repeats of a point; the fewest here: {fewest}"
    enough = repeats[repeats >= FEWEST_REPEATS]
    if len(enough) and coverage(int(enough.min())) < CONFIDENCE:
        percent = 100 * coverage(int(enough.min()))
        yield (
            f"an interval over {enough.min()} launches holds the median in about {percent:.0f} % of studies, "
            f"not {100 * CONFIDENCE:.0f} %: so few launches cannot give more"
        )


def _point(study: Study, runs: pd.DataFrame, series: pd.DataFrame) -> dict[str, object]:
    baseline = series[series["workers"] == 1]
    workers = int(runs["workers"].iloc[0])
    throughput = median_of(runs[study.throughput])
    speedup = throughput / median_of(baseline[study.throughput]) if len(baseline) else NAN
    low, high = _speedup_interval(runs, baseline, study.throughput)
    measured = {
        name: median_of(runs[name])
        for name in ("images_per_second", "epochs_per_second", "seconds_per_epoch", "images_per_epoch", "iou")
    }
    return {
        **{name: runs[name].iloc[0] for name in (*SERIES, *study.axes)},
        **measured,
        **_with_bounds("images_per_second", median_interval(_values(runs["images_per_second"]))),
        **_with_bounds("throughput", median_interval(_values(runs[study.throughput]))),
        **_with_bounds("iou", median_interval(_values(runs["iou"]))),
        **_with_bounds("speedup", (low, high)),
        **_with_bounds("efficiency", (low / workers, high / workers)),
        "workers": workers,
        "repeats": len(runs),
        "throughput": throughput,
        "speedup": speedup,
        "efficiency": speedup / workers,
        "deviation": 1 - speedup / workers,
        "unknown": "" if len(baseline) else "speed-up: no run on 1 worker",
    }


def _speedup_interval(runs: pd.DataFrame, baseline: pd.DataFrame, column: str) -> Interval:
    if baseline.empty:
        return UNKNOWN
    runs, baseline = runs.sort_values("repeat"), baseline.sort_values("repeat")
    paired = list(runs["repeat"]) == list(baseline["repeat"])
    return ratio_interval(_values(runs[column]), _values(baseline[column]), paired=paired)


def median_of(values: "pd.Series[float]") -> float:
    """The median; unknown where one of the values is."""
    return float(np.median(_values(values))) if len(values) else NAN


def _values(values: "pd.Series[float]") -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _with_bounds(name: str, interval: Interval) -> dict[str, float]:
    return {f"{name}_low": interval[0], f"{name}_high": interval[1]}
