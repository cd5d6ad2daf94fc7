"""Warnings of epochs that are not steady after the warm-up, and of launches unlike the others of their point.

Both only warn: no run is left out. A warning needs a change that is significant, and one of a size
that matters. Rules and measured false-alarm rates: docs/statistics.md.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pandas as pd
from scipy import special  # type: ignore[import-untyped]

from analysis.stats import RESAMPLING_SEED, epoch_blocks, launches_of, timed
from analysis.study import NAN, POINT, Array, Integers, Study
from analysis.text import lines

# By permutation, 7 blocks reach 0.1 % in perfect order only; of 8, two neighbours may be swapped.
_FEWEST_BLOCKS = 8
# A study has hundreds of runs: at 5 % every report would warn (false alarms: docs/statistics.md).
# For shifts stricter: Kolmogorov's distribution is of long series; of few blocks it is too small.
SIGNIFICANCE = {"drift": 0.001, "shift": 0.0001}
# Relative: 5 repeats resolve 3 % at best (docs/statistics.md); a smaller drift decides nothing.
LEAST_CHANGE = 0.02
# Relative: a launch nearer than this hardly moves the median, however quiet its point is.
LEAST_DISTANCE = 0.1
# Standard deviations (Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers).
LEAST_SCORE = 3.5
# A note names examples; the tables have all.
WORST_NAMED = 3
# Of fewer launches two outliers set the median absolute deviation themselves.
LAUNCHES_OF_OWN_DEVIATION = 5
# Gives the factor of 3 launches to 0.5 % (two standard deviations over seeds).
NORMAL_POINTS = 100_000
STATISTICS = ["drift", "drift_probability", "shift", "shift_epoch", "shift_probability"]


def run_steadiness(study: Study) -> pd.DataFrame:
    """Return one row per run: how the time for equal work changes over its epochs after the warm-up.

    epochs             epochs after the warm-up
    drift              relative change from the first to the last of up to 20 blocks of epochs, by
                       Theil and Sen's slope; positive is slower
    drift_probability  of such a trend in steady noise: Spearman's rank correlation with time
    shift              relative change of the median at the most likely change point
    shift_epoch        first epoch after that point, counted from 1 after the warm-up
    shift_probability  of such a shift in steady noise: largest cumulative sum of deviations, by
                       Kolmogorov's distribution, with a spread from the differences of neighbours,
                       which a shift leaves alone (too small for few blocks, so judged at 0.01 %)
    steady             "no" where the drift has a probability below 0.1 % or the shift one below 0.01 %,
                       and a size of at least 2 %; "not checked" for fewer than 8 epochs; otherwise "yes"
    """
    names = list(study.runs["run"])
    blocks = epoch_blocks(study, names)
    statistics = np.full((len(names), len(STATISTICS)), NAN)
    for size in np.unique(blocks.counts[blocks.counts >= _FEWEST_BLOCKS]):
        chosen = np.flatnonzero(blocks.counts == size)
        pace = np.log(blocks.seconds[chosen, :size] / blocks.work[chosen, :size])
        shift, blocks_before, shift_probability = _change_point(pace)
        shift_epoch = 1 + -(-blocks_before * blocks.epochs[chosen] // size)
        statistics[chosen] = np.column_stack([*_trend(pace), shift, shift_epoch, shift_probability])
    table = pd.DataFrame({"run": names, "epochs": blocks.epochs})
    table[STATISTICS] = statistics
    table["steady"] = np.where(_size(table, "drift") + _size(table, "shift") > 0, "no", "yes")
    table.loc[table["drift"].isna(), "steady"] = "not checked"
    return table


def _trend(pace: Array) -> tuple[Array, Array]:
    """Return the relative change over the blocks, of logarithms (runs, blocks), and its probability.

    That is how probable so strong a rank correlation with time is in steady noise.
    """
    blocks = pace.shape[-1]
    earlier, later = np.triu_indices(blocks, k=1)
    slope = np.median((pace[:, later] - pace[:, earlier]) / (later - earlier), axis=-1)
    middle = (blocks + 1) / 2
    ranks, time = (
        pd.DataFrame(pace).rank(axis="columns").to_numpy() - middle,
        np.arange(1, blocks + 1) - middle,
    )
    size = np.sqrt((ranks**2).sum(axis=-1) * (time**2).sum())
    # A run whose epochs all last equally long has no trend: its correlation is 0.
    correlation = np.divide(np.abs(ranks @ time), size, out=np.zeros(len(pace)), where=size > 0)
    half = blocks / 2 - 1
    return np.expm1(slope * (blocks - 1)), 2 * special.betainc(half, half, (1 - correlation) / 2)


def _change_point(pace: Array) -> tuple[Array, Integers, Array]:
    """Return the relative change of the median at the change point, blocks before it, and its probability.

    That is how probable so large a cumulative sum of deviations is in steady noise; 1 without noise.
    """
    blocks = pace.shape[-1]
    sums = np.abs(np.cumsum(pace - pace.mean(axis=-1, keepdims=True), axis=-1)[:, :-1])
    change = sums.argmax(axis=-1) + 1
    before = np.arange(blocks) < change[:, None]
    medians = [np.nanmedian(np.where(side, pace, np.nan), axis=-1) for side in (before, ~before)]
    # From the differences of neighbours, which a shift leaves alone: the mean size of a difference of two
    # normal values of deviation 1 is 2 / sqrt(pi).
    noise = np.abs(np.diff(pace, axis=-1)).mean(axis=-1) * np.sqrt(np.pi) / 2
    scaled = sums.max(axis=-1) / np.sqrt(blocks)
    ratio = np.divide(scaled, noise, out=np.zeros(len(pace)), where=noise > 0)
    return np.expm1(medians[1] - medians[0]), change, special.kolmogorov(ratio)


def _size(table: pd.DataFrame, change: str) -> "pd.Series[float]":
    """Return the size of a drift or shift that is significant and matters, else 0."""
    size = table[change].abs()
    shown = table[f"{change}_probability"] < SIGNIFICANCE[change]
    return size.where(shown & (size >= LEAST_CHANGE), 0.0)


def steadiness_notes(study: Study) -> list[str]:
    """Return which runs are not steady after the warm-up, by how much, and what to do."""
    table = run_steadiness(study)
    unsteady = table[table["steady"] == "no"]
    sized = unsteady.assign(drifted=_size(unsteady, "drift"), shifted=_size(unsteady, "shift"))
    sized["size"] = sized[["drifted", "shifted"]].max(axis=1)
    worst = sized.sort_values("size", ascending=False, kind="stable").head(WORST_NAMED).to_dict("records")
    is_long = len(table) > 0 and study.runs["epochs_used"].max() > 1
    short = int((table["steady"] == "not checked").sum()) if is_long else 0
    values = {"runs": len(table), "unsteady": len(unsteady), "short": short, "fewest": _FEWEST_BLOCKS}
    return lines("notes", said="steadiness", worst=worst, **values)


def outlier_notes(study: Study) -> list[str]:
    """Return the launches far from the others of their point: named and kept, the worst ones first."""
    outliers = outlying_launches(study)
    if outliers.empty:
        return []
    worst = outliers.head(WORST_NAMED).to_dict("records")
    return lines("notes", said="outliers", outliers=len(outliers), launches=len(study.runs), worst=worst)


def outlying_launches(study: Study) -> pd.DataFrame:
    """Return the runs at least 10 % from the median of their point and more than 3.5 deviations from it.

    Of the launches that count for speed. Columns of study.runs, and `distance` (throughput over that median,
    minus 1), farthest first. The deviation is the usual one of the study, or the point's own if it is larger.
    Points of fewer than 3 launches have none.
    """
    runs = timed(study).runs.reset_index(drop=True)
    logs = np.log(runs[study.throughput].to_numpy(dtype=np.float64))
    groups = [members for _, members in launches_of(runs, POINT).of_equal_size()]
    distances = [_distances(logs[members]) for members in groups]
    usual = _usual_deviation(distances)
    distance, score = np.full((2, len(runs)), NAN)
    for members, apart in zip(groups, distances, strict=True):
        distance[members] = np.expm1(apart)
        own = np.zeros((len(apart), 1))
        if apart.shape[-1] >= LAUNCHES_OF_OWN_DEVIATION:
            own = _absolute_deviation(apart) / _of_normal_noise(apart.shape[-1], _absolute_deviation)
        with np.errstate(divide="ignore", invalid="ignore"):
            score[members] = np.abs(apart) / np.maximum(usual, own)
    outlying = (np.abs(distance) >= LEAST_DISTANCE) & (score > LEAST_SCORE)
    far: pd.DataFrame = runs.assign(distance=distance).loc[outlying]
    order = far["distance"].abs().sort_values(ascending=False, kind="stable")
    return far.loc[order.index]


def _usual_deviation(distances: Sequence[Array]) -> float:
    """Return the standard deviation of launches about their point's median, which outliers hardly move.

    `distances`: logarithms, one array (points, launches) for each number of launches. The median absolute
    deviation of 3 or 4 launches says almost nothing of their own point, so it is taken over all points; the
    launch that is the median of its point has no distance and does not count.
    """
    scaled = [
        (_off_centre(apart) / _of_normal_noise(apart.shape[-1], _off_centre)).ravel() for apart in distances
    ]
    return float(np.median(np.concatenate(scaled))) if scaled else NAN


def _distances(values: Array) -> Array:
    return np.asarray(values - np.median(values, axis=-1, keepdims=True), dtype=np.float64)


def _off_centre(distances: Array) -> Array:
    absolute = np.sort(np.abs(distances), axis=-1)
    return np.asarray(absolute[..., distances.shape[-1] % 2 :], dtype=np.float64)


def _absolute_deviation(distances: Array) -> Array:
    return np.asarray(np.median(np.abs(distances), axis=-1, keepdims=True), dtype=np.float64)


@cache
def _of_normal_noise(launches: int, statistic: Callable[[Array], Array]) -> float:
    """Return the median of a statistic of the distances of so many launches of standard normal noise."""
    normal = np.random.default_rng(RESAMPLING_SEED).standard_normal((NORMAL_POINTS, launches))
    return float(np.median(statistic(_distances(normal))))
