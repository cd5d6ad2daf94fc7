"""How many repeats are missing for a decision, and how long they would take."""

import math
from collections.abc import Iterator

import pandas as pd

from analysis.findings.decide import CandidateSet
from analysis.stats import RECOMMENDED_REPEATS
from analysis.study import POINT, Study
from analysis.text import count
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.texts import duration


def repeats_for_intervals(candidates: CandidateSet) -> int:
    """Return how many repeats the point with the fewest has less than recommended; never below 0."""
    fewest = min(int(point.row["repeats"]) for point in candidates.candidates)
    return max(0, RECOMMENDED_REPEATS - fewest)


def more_repeats(study: Study, number: int) -> str:
    """Return "3 more repeats (about 2 min)": of every point, one after the other, as those recorded took."""
    seconds = number * _seconds_of_a_repeat(study)
    if math.isnan(seconds):
        return count(number, "more repeat")
    about = "about" if _every_start_is_known(study) else "at least"
    return f"{count(number, 'more repeat')} ({about} {duration(seconds)})"


def _seconds_of_a_repeat(study: Study) -> float:
    """Return the seconds from launch to end of one run of every point, by the medians of the points."""
    runs = study.runs
    seconds = runs["training_seconds"] + sum(_beside_training(study))
    return float(seconds.groupby([runs[name] for name in POINT]).median().sum(skipna=False))


def _beside_training(study: Study) -> Iterator["pd.Series[float]"]:
    """Yield the seconds of each run's evaluations and of its start, by its slowest worker."""
    parts = study.startups[list(STARTUP_COLUMNS)].sum(axis="columns")
    for by_run in (
        study.evaluations.groupby("run")["seconds"].sum(),
        parts.groupby(study.startups["run"]).max(),
    ):
        yield study.runs["run"].map(by_run).astype(float).fillna(0.0)


def _every_start_is_known(study: Study) -> bool:
    return bool(study.runs["run"].isin(study.startups["run"]).all())
