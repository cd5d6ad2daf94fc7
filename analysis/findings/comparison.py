"""Native DDP against Horovod at every worker count that both have: the ratio of their throughputs.

A framework is called faster where the interval of the ratio excludes 1. The interval has to hold for all
comparisons of a study together: Student's t on the logarithms of the paired ratios, at the significance that
Holm's procedure asks for (Holm 1979, Scand. J. Statist. 6, 65), and never narrower than the bootstrap
interval of their median. `python -m benchmarks.coverage` prints how often studies without a difference are
called faster.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from analysis.findings.check import Check, withholding
from analysis.statistics.intervals import (
    CONFIDENCE,
    FEWEST_REPEATS,
    RECOMMENDED_REPEATS,
    bounds,
    coverage,
)
from analysis.statistics.launches import Launches, launches_of
from analysis.statistics.timed import counts_for_speed, timed
from analysis.study import NAN, Study

POWER = 0.8
NORMAL_QUANTILES = float(stats.norm.ppf((1 + CONFIDENCE) / 2) + stats.norm.ppf(POWER))
PAIR = ["options", "native_knobs", "horovod_knobs", "workers"]
COLUMNS = [
    *PAIR, "pairs", "ratio", "ratio_low", "ratio_high", "coverage", "p_adjusted", "comparisons",
    "ratio_of_medians", "outcome", "doubts", "repeats_needed",
]  # fmt: skip
NATIVE_FASTER = "native DDP faster"
HOROVOD_FASTER = "Horovod faster"
FASTER = (NATIVE_FASTER, HOROVOD_FASTER)
SUGGESTED = tuple(f"suggests {each}" for each in FASTER)
WITHHELD = "withheld"
NO_DIFFERENCE = "no significant difference"
NOT_ENOUGH = "not enough repeats"
# The part of a difference that another cause must reach to forbid the claim.
EXPLAINS = 0.5
# Published and measured ratios of the two lie between 0.5 and 2.
LARGEST_RATIO = 10.0
# Ratios closer than this say the same, whichever side of 1 they lie on.
SAME_RATIO = 0.01

Array = NDArray[np.float64]


def compare(study: Study, family: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row for each options, pair of knobs and worker count that both frameworks have.

    `family`: columns that tell studies apart which are in one table; comparisons of one family are corrected
    for each other. None: all rows are one family.

    Columns: options, native_knobs, horovod_knobs, workers; pairs (repeats that both have); ratio (throughput
    of native DDP over that of Horovod, the median over the pairs) with `_low` and `_high`, symmetric in the
    two names; coverage (what an interval can promise over so few pairs of any noise); p_adjusted (of the
    paired t-test on logarithms, by Holm) over so many `comparisons`; ratio_of_medians (over all launches of
    each framework, as the table of points has them); outcome; doubts (why it is withheld, empty if nothing
    speaks against it); repeats_needed (see `repeats_needed`). NaN where not known.
    """
    native, horovod = (_side(study.runs, name) for name in ("pytorch_native", "horovod"))
    points = _common_points(native, horovod)
    found = points.merge(_ratios(study, paired_runs(study), family), on=PAIR, how="left")
    counted = [_side(timed(study).runs, name) for name in ("pytorch_native", "horovod")]
    found = found.merge(_ratios_of_medians(study, *counted), on=PAIR, how="left")
    found["pairs"] = found["pairs"].fillna(0).astype(int)
    found["coverage"] = [coverage(n) if n >= FEWEST_REPEATS else NAN for n in found["pairs"]]
    found["outcome"] = _outcomes(found)
    found["doubts"] = [_contradiction(*row) for row in zip(*(found[name] for name in _CLAIM), strict=True)]
    found["doubts"] = found["doubts"].where(found["doubts"] != "", _explained(study, found))
    return _withheld(found)[COLUMNS]


_CLAIM = ("outcome", "ratio", "ratio_of_medians")


def withhold(comparisons: pd.DataFrame, checks: Iterable[Check]) -> pd.DataFrame:
    """Return `comparisons` with the doubts of the fairness table; what they forbid to claim is withheld."""
    checks = list(checks)
    pairs = comparisons[PAIR].itertuples(index=False, name=None)
    unfair = [_unfair(withholding(checks, pair)) for pair in pairs]
    doubts = ["; ".join(filter(None, each)) for each in zip(unfair, comparisons["doubts"], strict=True)]
    return _withheld(comparisons.assign(doubts=pd.Series(doubts, index=comparisons.index, dtype=object)))


def _unfair(checks: Sequence[Check]) -> str:
    """The checks by name; their facts stand beside every verdict."""
    names = ", ".join(check.check for check in checks)
    return f"the fairness table says no to: {names}" if names else ""


def _withheld(found: pd.DataFrame) -> pd.DataFrame:
    """No framework is called faster, nor suggested to be, where a doubt speaks against it."""
    claimed = found["outcome"].isin([*FASTER, *SUGGESTED]) & (found["doubts"] != "")
    return found.assign(outcome=found["outcome"].mask(claimed, WITHHELD))


def medians_disagree(ratio: float, ratio_of_medians: float) -> bool:
    """Return whether the two ratios name different frameworks, and differ by more than `SAME_RATIO`."""
    paired, unpaired = math.log(ratio), math.log(ratio_of_medians)
    return paired * unpaired < 0 and abs(paired - unpaired) > SAME_RATIO


def _contradiction(outcome: str, ratio: float, ratio_of_medians: float) -> str:
    """Why a difference between pairs is no claim: the medians of the frameworks name the other one."""
    if outcome in (NO_DIFFERENCE, NOT_ENOUGH) or not medians_disagree(ratio, ratio_of_medians):
        return ""
    return (
        f"the medians over all launches name the other framework (their ratio is {ratio_of_medians:.3f}): "
        "repeats differ more from each other than the frameworks do"
    )


def _explained(study: Study, found: pd.DataFrame) -> list[str]:
    """Return what other than the framework may be most of each difference; empty where nothing known is."""
    key = ["options", "framework", "knobs", "workers"]
    runs = timed(study).runs
    clocks = study.budgets.groupby("run", sort=False, observed=True)["frequency_mhz"].mean()
    known = runs.assign(clock=runs["run"].map(clocks).astype(float))
    medians = known.groupby(key, sort=False)[["busy_share", "clock"]].median()
    facts = medians.to_dict("index")
    return [_explanation(row, facts) for row in found.to_dict("records")]


def _explanation(row: Mapping[Hashable, Any], facts: Mapping[Hashable, Mapping[Hashable, Any]]) -> str:
    if row["outcome"] not in (*FASTER, *SUGGESTED):
        return ""
    if max(row["ratio"], 1 / row["ratio"]) > LARGEST_RATIO:
        return (
            f"frameworks that do the same work differ by no factor above {LARGEST_RATIO:g}: read the records"
        )
    native = facts[row["options"], "pytorch_native", row["native_knobs"], row["workers"]]
    horovod = facts[row["options"], "horovod", row["horovod_knobs"], row["workers"]]
    faster, slower = (native, horovod) if row["ratio"] > 1 else (horovod, native)
    most = EXPLAINS * abs(math.log(row["ratio"]))
    found = []
    if (taken := slower["busy_share"] - faster["busy_share"]) >= most:
        found.append(f"other processes took {100 * taken:.1f} % more of the slower framework's time")
    if math.log(faster["clock"] / slower["clock"]) >= most:
        found.append(
            f"its cores ran at {slower['clock']:.0f} MHz, those of the faster at {faster['clock']:.0f} MHz"
        )
    return " and ".join(found) + ": that may be most of the difference" if found else ""


def paired_runs(study: Study) -> pd.DataFrame:
    """One row for each pair of runs of one repeat: PAIR, repeat, and the columns of both runs.

    Columns of the runs end in `_native` and `_horovod`. Pairs with a disturbed launch are left out where
    enough others of their point remain.
    """
    native, horovod = (_side(study.runs, name) for name in ("pytorch_native", "horovod"))
    pairs = native.merge(horovod, on=["options", "workers", "repeat"], suffixes=("_native", "_horovod"))
    pairs = pairs.rename(columns={"knobs_native": "native_knobs", "knobs_horovod": "horovod_knobs"})
    disturbed = (pairs["disturbed_native"] != "") | (pairs["disturbed_horovod"] != "")
    return pairs[counts_for_speed(pairs, disturbed, PAIR)].reset_index(drop=True)


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


def _ratios(study: Study, pairs: pd.DataFrame, family: Sequence[str]) -> pd.DataFrame:
    """One row per point with pairs: their number, ratio and interval, and the repeats needed."""
    logs = paired_logarithms(study, pairs)
    launches = paired_launches(study, pairs)
    found = pairs.groupby(PAIR, sort=False)["repeat"].size().rename("pairs").reset_index()
    by_point = pd.Series(logs).groupby(launches.point)
    tests = found.assign(centre=by_point.mean(), error=by_point.std() / np.sqrt(found["pairs"]))
    significance, found["p_adjusted"], found["comparisons"] = _holm(tests, family)
    reach = stats.t.isf(significance / 2, tests["pairs"] - 1) * tests["error"]
    low, high = bounds(launches.replicates(logs))
    # A mean of equal numbers may differ from them in the last digit.
    low, high = np.minimum(low, tests["centre"] - reach), np.maximum(high, tests["centre"] + reach)
    found["ratio"], found["ratio_low"], found["ratio_high"] = np.exp([launches.medians(logs), low, high])
    found["repeats_needed"] = [repeats_needed(np.asarray(each)) for _, each in by_point]
    return found


def _holm(tests: pd.DataFrame, family: Sequence[str]) -> tuple[Array, Array, Array]:
    """Return significance levels, adjusted probabilities, and the size of the family, of each test."""
    error, centre, pairs = (tests[name].to_numpy(dtype=np.float64) for name in ("error", "centre", "pairs"))
    with np.errstate(divide="ignore", invalid="ignore"):
        probability = np.where(centre == 0, 1.0, 2 * stats.t.sf(np.abs(centre) / error, pairs - 1))
    probability[~(pairs >= FEWEST_REPEATS)] = NAN
    families = tests.groupby(list(family), sort=False).indices.values() if family else [np.arange(len(tests))]
    found = np.full((3, len(tests)), NAN)
    for members in families:
        known = members[np.isfinite(probability[members])]
        found[:, known] = holm(probability[known])
    return found[0], found[1], found[2]


def holm(probability: Array) -> tuple[Array, Array, Array]:
    """Return the significance of each test's interval, its adjusted probability, and the number of tests.

    By Holm's procedure the k-th smallest of m probabilities is compared with alpha / (m - k + 1), until one
    is too large; all from there on keep its significance. So an interval excludes "no difference" just
    where Holm's procedure rejects it.
    """
    tests = len(probability)
    order = np.argsort(probability, kind="stable")
    ordered, steps = probability[order], tests - np.arange(tests)
    kept = np.flatnonzero(ordered > (1 - CONFIDENCE) / steps)
    last = int(kept[0]) if len(kept) else tests - 1
    significance, adjusted = np.empty((2, tests))
    significance[order] = (1 - CONFIDENCE) / np.maximum(steps, tests - last)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps * ordered))
    return significance, adjusted, np.full(tests, float(tests))


def _ratios_of_medians(study: Study, native: pd.DataFrame, horovod: pd.DataFrame) -> pd.DataFrame:
    """The ratio of the medians over all launches of each framework: PAIR, ratio_of_medians."""
    key = ["options", "workers", "knobs"]
    medians = [side.groupby(key, sort=False)[study.throughput].median() for side in (native, horovod)]
    both = (
        medians[0]
        .rename("native")
        .reset_index()
        .merge(medians[1].rename("horovod").reset_index(), on=key[:2], suffixes=("_native", "_horovod"))
    )
    both = both.rename(columns={"knobs_native": "native_knobs", "knobs_horovod": "horovod_knobs"})
    return both.assign(ratio_of_medians=both["native"] / both["horovod"])[[*PAIR, "ratio_of_medians"]]


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
    enough = found["pairs"] >= RECOMMENDED_REPEATS
    native, horovod = (
        np.where(enough, certain, suggested) for certain, suggested in zip(FASTER, SUGGESTED, strict=True)
    )
    return np.select([low.isna(), low > 1, high < 1], [NOT_ENOUGH, native, horovod], default=NO_DIFFERENCE)
