"""Native DDP against Horovod at every worker count that both have: the ratio of their throughputs."""

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from analysis.statistics.intervals import CONFIDENCE, FEWEST_REPEATS, bounds, coverage
from analysis.statistics.launches import Launches, launches_of
from analysis.study import NAN, Study

POWER = 0.8
NORMAL_QUANTILES = float(stats.norm.ppf((1 + CONFIDENCE) / 2) + stats.norm.ppf(POWER))
PAIR = ["options", "native_knobs", "horovod_knobs", "workers"]
COLUMNS = [*PAIR, "pairs", "ratio", "ratio_low", "ratio_high", "coverage", "outcome", "repeats_needed"]
NATIVE_FASTER = "native DDP faster"
HOROVOD_FASTER = "Horovod faster"
NO_DIFFERENCE = "no significant difference"
NOT_ENOUGH = "not enough repeats"

Array = NDArray[np.float64]


def compare(study: Study) -> pd.DataFrame:
    """One row for each options, pair of knobs and worker count that both frameworks have.

    Columns: options, native_knobs, horovod_knobs, workers, pairs (repeats that both have), ratio
    (throughput of native DDP over that of Horovod, the median over the pairs) with `_low` and `_high`
    (bootstrap on the logarithms of the paired ratios, so that it is symmetric in the two names),
    coverage (what that interval can promise over so few pairs), outcome, and repeats_needed (see
    `repeats_needed`). NaN where not known.
    """
    native, horovod = (_side(study.runs, name) for name in ("pytorch_native", "horovod"))
    points = _common_points(native, horovod)
    found = points.merge(_ratios(study, paired_runs(study)), on=PAIR, how="left")
    found["pairs"] = found["pairs"].fillna(0).astype(int)
    found["coverage"] = [coverage(n) if n >= FEWEST_REPEATS else NAN for n in found["pairs"]]
    found["outcome"] = _outcomes(found)
    return found[COLUMNS]


def paired_runs(study: Study) -> pd.DataFrame:
    """One row for each pair of runs of one repeat: PAIR, repeat, and the columns of both runs.

    Columns of the runs end in `_native` and `_horovod`.
    """
    native, horovod = (_side(study.runs, name) for name in ("pytorch_native", "horovod"))
    pairs = native.merge(horovod, on=["options", "workers", "repeat"], suffixes=("_native", "_horovod"))
    return pairs.rename(columns={"knobs_native": "native_knobs", "knobs_horovod": "horovod_knobs"})


def repeats_needed(logarithms: Array) -> float:
    """Repeats with which a difference like the one seen would be significant with a chance of 80 %.

    Assumes that the median of the paired logarithms is the true difference, and that their standard
    deviation s stays: the median of n normal values has the variance pi / 2 * s^2 / n. At least one more
    than there are; NaN for fewer than 3 pairs or no difference at all.
    """
    centre = abs(float(np.median(logarithms))) if len(logarithms) >= FEWEST_REPEATS else 0.0
    if not centre > 0:
        return NAN
    spread = float(np.std(logarithms, ddof=1))
    return float(max(len(logarithms) + 1, math.ceil(math.pi / 2 * (NORMAL_QUANTILES * spread / centre) ** 2)))


def _side(runs: pd.DataFrame, framework: str) -> pd.DataFrame:
    return runs[runs["framework"] == framework]


def _common_points(native: pd.DataFrame, horovod: pd.DataFrame) -> pd.DataFrame:
    """Every pair of points of equal options and workers, whether or not they have repeats in common."""
    key = ["options", "workers", "knobs"]
    sides = [side[key].drop_duplicates() for side in (native, horovod)]
    both = sides[0].merge(sides[1], on=["options", "workers"], suffixes=("_native", "_horovod"))
    both = both.rename(columns={"knobs_native": "native_knobs", "knobs_horovod": "horovod_knobs"})
    series = both.groupby(PAIR[:-1], sort=False).ngroup()
    return both.assign(series=series).sort_values(["series", "workers"], ignore_index=True)[PAIR]


def _ratios(study: Study, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per point with pairs: their number, ratio and interval, and the repeats needed."""
    logs = paired_logarithms(study, pairs)
    launches = paired_launches(study, pairs)
    found = pairs.groupby(PAIR, sort=False)["repeat"].size().rename("pairs").reset_index()
    low, high = bounds(launches.replicates(logs))
    found["ratio"], found["ratio_low"], found["ratio_high"] = np.exp([launches.medians(logs), low, high])
    by_point = pd.Series(logs).groupby(launches.point)
    found["repeats_needed"] = [repeats_needed(np.asarray(each)) for _, each in by_point]
    return found


def paired_logarithms(study: Study, pairs: pd.DataFrame) -> Array:
    """Of the ratio of throughputs, native DDP over Horovod, of each pair."""
    native, horovod = (pairs[f"{study.throughput}_{name}"] for name in ("native", "horovod"))
    return np.asarray(np.log(native / horovod), dtype=np.float64)


def paired_launches(study: Study, pairs: pd.DataFrame) -> Launches:
    """Pairs as launches, whose deviations are the difference of both runs' block deviations."""
    native, horovod = (
        launches_of(study, pairs.rename(columns={f"run_{name}": "run"}), PAIR)
        for name in ("native", "horovod")
    )
    difference = native.deviations - horovod.deviations
    return Launches(native.point, native.points, native.repeats, difference)


def _outcomes(found: pd.DataFrame) -> Array:
    low, high = found["ratio_low"], found["ratio_high"]
    return np.select(
        [low.isna(), low > 1, high < 1], [NOT_ENOUGH, NATIVE_FASTER, HOROVOD_FASTER], default=NO_DIFFERENCE
    )
