"""Are the epochs after the warm-up steady, and is a launch unlike the others of its point?

Both only warn: no run is left out. A warning needs a change that is significant, and one of a size
that matters. Rules and measured false-alarm rates: docs/statistics.md.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from analysis.statistics.blocks import epoch_blocks
from analysis.statistics.intervals import FEWEST_REPEATS, SEED
from analysis.statistics.launches import launches_of
from analysis.statistics.timed import timed
from analysis.study import NAMES, NAN, POINT, Study

FEWEST_BLOCKS = 8
TREND_SIGNIFICANCE = 0.001
SHIFT_SIGNIFICANCE = 0.0001
LEAST_CHANGE = 0.02
LEAST_DISTANCE = 0.1
LEAST_SCORE = 3.5
WORST_NAMED = 3
LAUNCHES_OF_OWN_DEVIATION = 5
# Gives the factor of 3 launches to 0.5 %.
NORMAL_POINTS = 100_000

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]


def run_steadiness(study: Study) -> pd.DataFrame:
    """One row per run: how the time for equal work changes over its epochs after the warm-up.

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
    table = pd.DataFrame({"run": names, "epochs": blocks.epochs})
    table[["drift", "drift_probability", "shift", "shift_epoch", "shift_probability"]] = NAN
    for count in np.unique(blocks.counts[blocks.counts >= FEWEST_BLOCKS]):
        chosen = np.flatnonzero(blocks.counts == count)
        pace = np.log(blocks.seconds[chosen, :count] / blocks.work[chosen, :count])
        drift, drift_probability = _trend(pace)
        shift, change, shift_probability = _change_point(pace)
        epoch = 1 + -(-change * blocks.epochs[chosen] // count)
        columns = [drift, drift_probability, shift, epoch, shift_probability]
        table.iloc[chosen, 2:] = np.column_stack(columns)
    table["steady"] = np.where(_drift_size(table) + _shift_size(table) > 0, "no", "yes")
    table.loc[table["drift"].isna(), "steady"] = "not checked"
    return table


def steadiness_notes(study: Study) -> Iterator[str]:
    """Which runs are not steady after the warm-up, by how much, and what to do; the worst ones by name."""
    table = run_steadiness(study)
    unsteady = table[table["steady"] == "no"]
    if len(unsteady):
        sizes = pd.DataFrame({"drifted": _drift_size(unsteady), "shifted": _shift_size(unsteady)})
        worst = unsteady.join(sizes).assign(size=sizes.max(axis=1))
        worst = worst.sort_values("size", ascending=False, kind="stable").head(WORST_NAMED)
        changes = "; ".join(_change(row) for row in worst.to_dict("records"))
        yield (
            f"{_of(len(unsteady), len(table), 'run')} not steady after the warm-up{_worst(unsteady)}: "
            f"for the same work {changes}; "
            "train more epochs, or leave out more of them as warm-up, until the rest is steady"
        )
    short = int((table["steady"] == "not checked").sum())
    if short:
        least = f"fewer than {FEWEST_BLOCKS} epochs after the warm-up"
        yield f"{_of(short, len(table), 'run')} too short to be checked for drift: {least}"


def outlier_notes(study: Study) -> Iterator[str]:
    """Launches far from the others of their point: named and kept, the worst ones first."""
    outliers = outlying_launches(study)
    if outliers.empty:
        return
    named = "; ".join(_distance(row) for row in outliers.head(WORST_NAMED).to_dict("records"))
    yield (
        f"{_of(len(outliers), len(study.runs), 'launch')} far from the others of the same point"
        f"{_worst(outliers)}: {named}; kept, since only a known cause is a reason to leave a launch out"
    )


def outlying_launches(study: Study) -> pd.DataFrame:
    """Return the runs at least 10 % from the median of their point and more than 3.5 deviations from it.

    Of the launches that count for speed. Columns of study.runs, and `distance` (throughput over that median,
    minus 1), farthest first. The deviation is that of `launch_deviation`. Points of fewer than 3 launches
    have none.
    """
    runs = timed(study).runs.reset_index(drop=True)
    values = runs[study.throughput].to_numpy(dtype=np.float64)
    groups = launches_of(runs, POINT).of_equal_size(FEWEST_REPEATS)
    distances = [_distances(np.log(values[members])) for _, members in groups]
    usual = launch_deviation(distances)
    distance = np.full(len(runs), NAN)
    score = np.full(len(runs), NAN)
    for (_, members), each in zip(groups, distances, strict=True):
        distance[members] = np.expm1(each)
        with np.errstate(divide="ignore", invalid="ignore"):
            score[members] = np.abs(each) / np.maximum(usual, _own_deviation(each))
    outlying = (np.abs(distance) >= LEAST_DISTANCE) & (score > LEAST_SCORE)
    far: pd.DataFrame = runs.assign(distance=distance).loc[outlying]
    order = far["distance"].abs().sort_values(ascending=False, kind="stable")
    return far.loc[order.index]


def launch_deviation(distances: Sequence[Array]) -> float:
    """Return the standard deviation of launches about their point's median, which outliers hardly move.

    `distances`: logarithms, one array (points, launches) for each number of launches. The median absolute
    deviation of 3 or 4 launches says almost nothing of their own point, so it is taken over all points; the
    launch that is the median of its point has no distance and does not count.
    """
    scaled = [_off_centre(each) / _of_normal_noise(each.shape[-1], _off_centre) for each in distances]
    return float(np.median(np.concatenate([each.ravel() for each in scaled]))) if scaled else NAN


def _own_deviation(distances: Array) -> Array:
    """The deviation of each point, (points, 1), from so many launches that two outliers do not set it."""
    launches = distances.shape[-1]
    if launches < LAUNCHES_OF_OWN_DEVIATION:
        return np.zeros((len(distances), 1))
    return _absolute_deviation(distances) / _of_normal_noise(launches, _absolute_deviation)


def _distances(values: Array) -> Array:
    return np.asarray(values - np.median(values, axis=-1, keepdims=True), dtype=np.float64)


def _off_centre(distances: Array) -> Array:
    absolute = np.sort(np.abs(distances), axis=-1)
    return np.asarray(absolute[..., distances.shape[-1] % 2 :], dtype=np.float64)


def _absolute_deviation(distances: Array) -> Array:
    return np.asarray(np.median(np.abs(distances), axis=-1, keepdims=True), dtype=np.float64)


@cache
def _of_normal_noise(launches: int, statistic: Callable[[Array], Array]) -> float:
    """The median of a statistic of the distances of so many launches, of normal noise of deviation 1."""
    normal = np.random.default_rng(SEED).standard_normal((NORMAL_POINTS, launches))
    return float(np.median(statistic(_distances(normal))))


def _trend(pace: Array) -> tuple[Array, Array]:
    """Relative change over the blocks and its probability, of logarithms (runs, blocks)."""
    blocks = pace.shape[-1]
    ranks, time = stats.rankdata(pace, axis=-1), np.arange(1.0, blocks + 1)
    with warnings.catch_warnings():
        # A run whose epochs all last equally long has no trend; its undefined probability becomes 1.
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        probability = stats.pearsonr(ranks, np.broadcast_to(time, ranks.shape), axis=-1).pvalue
    earlier, later = np.triu_indices(blocks, k=1)
    slope = np.median((pace[:, later] - pace[:, earlier]) / (later - earlier), axis=-1)
    return np.expm1(slope * (blocks - 1)), np.nan_to_num(probability, nan=1.0)


def _change_point(pace: Array) -> tuple[Array, Numbers, Array]:
    """Relative change of the median at the change point, blocks before it, and its probability."""
    blocks = pace.shape[-1]
    sums = np.abs(np.cumsum(pace - pace.mean(axis=-1, keepdims=True), axis=-1)[:, :-1])
    change = sums.argmax(axis=-1) + 1
    # The mean size of a difference of two normal values of deviation 1 is 2 / sqrt(pi).
    noise = np.abs(np.diff(pace, axis=-1)).mean(axis=-1) * np.sqrt(np.pi) / 2
    ratio = np.divide(sums.max(axis=-1) / np.sqrt(blocks), noise, out=np.zeros(len(pace)), where=noise > 0)
    before = np.arange(blocks) < change[:, None]
    earlier, later = (np.nanmedian(np.where(side, pace, np.nan), axis=-1) for side in (before, ~before))
    return np.expm1(later - earlier), change, np.asarray(stats.kstwobign.sf(ratio), dtype=np.float64)


def _drift_size(table: pd.DataFrame) -> "pd.Series[float]":
    """Size of a drift that is significant and matters, else 0."""
    size = table["drift"].abs()
    return size.where((table["drift_probability"] < TREND_SIGNIFICANCE) & (size >= LEAST_CHANGE), 0.0)


def _shift_size(table: pd.DataFrame) -> "pd.Series[float]":
    """Size of a shift that is significant and matters, else 0."""
    size = table["shift"].abs()
    return size.where((table["shift_probability"] < SHIFT_SIGNIFICANCE) & (size >= LEAST_CHANGE), 0.0)


def _change(row: Mapping[Hashable, Any]) -> str:
    if row["shifted"] >= row["drifted"]:
        epoch = f"epoch {row['shift_epoch']:.0f} after the warm-up"
        return f"{row['run']} takes {_percent(row['shift'])} time from {epoch} on"
    return f"{row['run']} takes {_percent(row['drift'])} time at its end than at its start"


def _percent(change: float) -> str:
    return f"{100 * abs(change):.0f} % {'more' if change > 0 else 'less'}"


def _distance(row: Mapping[Hashable, Any]) -> str:
    labels = [NAMES[row["framework"]], *(row[name] for name in ("options", "knobs") if row[name])]
    workers = f"{row['workers']} worker{'' if row['workers'] == 1 else 's'}"
    side = "slower" if row["distance"] < 0 else "faster"
    where = ", ".join([*labels, workers])
    return f"{row['run']} is {100 * abs(row['distance']):.0f} % {side} than the median of its point ({where})"


def _of(number: int, total: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} of {total} {plural if total != 1 else noun} {'is' if number == 1 else 'are'}"


def _worst(table: pd.DataFrame) -> str:
    return ", the worst ones" if len(table) > WORST_NAMED else ""
