"""The ratio of throughputs, B / A, at every point that both studies have."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.arrays import Integers
from analysis.compare.contrast import Contrast, Sample, corrected, unpaired_contrasts
from analysis.compare.doubts import doubts_on_speed
from analysis.compare.matching import PointMatch
from analysis.compare.sides import StudyPoint, StudySide
from analysis.contrast import NO_DIFFERENCE, NOT_ENOUGH, WITHHELD
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS, Launches, block_deviations, coverage, timed
from analysis.study import NAN

A_FASTER = "A faster"
B_FASTER = "B faster"
SUGGESTIONS = (f"suggests {A_FASTER}", f"suggests {B_FASTER}")


def throughput_ratios(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> pd.DataFrame:
    """Return one row per match: launches, medians, ratio with interval, outcome and what it rests on.

    Disturbed launches count only where fewer than 3 others of their point remain; then nothing is claimed.
    """
    samples = _sample(a, [match.a for match in matches]), _sample(b, [match.b for match in matches])
    table = _medians(samples)
    _add_ratios(table, unpaired_contrasts(*samples))
    table["doubts"] = doubts_on_speed(a, b, matches)
    table["outcome"] = _outcomes(table)
    return table


def _sample(side: StudySide, points: Sequence[StudyPoint]) -> Sample:
    """Return the logarithms of the throughputs of the launches that count for speed."""
    runs = timed(side.study).runs
    runs = runs[runs["run"].isin([run for point in points for run in point.runs])]
    values = np.log(runs[side.study.throughput].to_numpy(dtype=np.float64))
    return Sample(_launches(runs, points), values, block_deviations(side.study, runs["run"].to_list()))


def _launches(runs: pd.DataFrame, points: Sequence[StudyPoint]) -> Launches:
    numbers = {run: number for number, point in enumerate(points) for run in point.runs}
    point: Integers = np.asarray(runs["run"].map(numbers), dtype=np.int64)
    return Launches(point, len(points), runs["repeat"].to_numpy(dtype=np.int64))


def _medians(samples: Sequence[Sample]) -> pd.DataFrame:
    table = pd.DataFrame()
    for letter, sample in zip("ab", samples, strict=True):
        table[f"launches_{letter}"] = [len(values) for values in sample.of_points()]
        table[f"throughput_{letter}"] = sample.launches.medians(np.exp(sample.values))
    return table


def _add_ratios(table: pd.DataFrame, contrasts: Sequence[Contrast]) -> None:
    intervals = corrected(contrasts)
    table["coverage"] = [_coverage(contrast.fewest) for contrast in contrasts]
    table["ratio"] = table["throughput_b"] / table["throughput_a"]
    table["ratio_low"] = np.exp(intervals["low"])
    table["ratio_high"] = np.exp(intervals["high"])
    table[["p_adjusted", "comparisons"]] = intervals[["p_adjusted", "comparisons"]]
    table["launches_needed"] = [contrast.needed for contrast in contrasts]


def _coverage(fewest: int) -> float:
    return coverage(fewest) if fewest >= FEWEST_REPEATS else NAN


def _outcomes(table: pd.DataFrame) -> list[str]:
    rows = zip(
        table["ratio_low"],
        table["ratio_high"],
        table[["launches_a", "launches_b"]].min(axis=1),
        table["doubts"],
        strict=True,
    )
    return [_outcome(*row) for row in rows]


def _outcome(low: float, high: float, fewest: int, doubts: str) -> str:
    if np.isnan(low):
        return NOT_ENOUGH
    if low <= 1 <= high:
        return NO_DIFFERENCE
    if doubts:
        return WITHHELD
    faster = B_FASTER if low > 1 else A_FASTER
    return faster if fewest >= RECOMMENDED_REPEATS else f"suggests {faster}"
