"""Native DDP against every other framework at each worker count that both have: the ratio of throughputs.

A framework is called faster where the interval of the ratio excludes 1. The interval has to hold for all
comparisons of a study together: Student's t on the logarithms of the paired ratios, at the significance that
Holm's procedure asks for (Holm 1979, Scand. J. Statist. 6, 65), and never narrower than the bootstrap
interval of their median. `python -m benchmarks.coverage` prints how often studies without a difference are
called faster.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.pairs import KEY, Check, paired_runs, pairs_of, side_by_side
from analysis.stats import (
    FEWEST_REPEATS,
    RECOMMENDED_REPEATS,
    add_bounded,
    block_deviations,
    bounds,
    corrected,
    coverage,
    launches_of,
    repeats_needed,
    timed,
)
from analysis.study import COMPARED, NAMES, NAN, POINT, Study, bounded
from analysis.text import Row

TABLE_SAYS_NO = "the fairness table says no to: "
_RATIO_COLUMNS = [
    *KEY, "pairs", *bounded("ratio"), "confidence", "coverage", "p_adjusted", "comparisons",
    "ratio_of_medians", "outcome", "doubts", "repeats_needed",
]  # fmt: skip
NATIVE_FASTER = "native DDP faster"
HOROVOD_FASTER = "Horovod faster"
FASTER = (NATIVE_FASTER, HOROVOD_FASTER)
SUGGESTS = "suggests "
SUGGESTED = tuple(f"{SUGGESTS}{outcome}" for outcome in FASTER)
WITHHELD = "withheld"
NO_DIFFERENCE = "no significant difference"
NOT_ENOUGH = "not enough repeats"
# Another cause that is half of a difference leaves the frameworks less than it.
LEAST_SHARE_OF_DIFFERENCE = 0.5
OTHERS_TOOK = "other processes took "
# Published and measured ratios of the two lie between 0.5 and 2.
LARGEST_RATIO = 10.0
# Ratios closer than this name the same framework, whichever side of 1 they lie on: 1 % is within noise.
SAME_RATIO = 0.01
# A wrapper costs nothing where the whole interval, over enough repeats, lies within so much of native DDP's
# step, and other processes took no more than that of one framework alone.
NEGLIGIBLE_SHARE = 0.01
COSTS_NOTHING = f"within {NEGLIGIBLE_SHARE:.0%}"
_WRAPPER_COLUMNS = [
    "framework", "options", "native_knobs", "knobs", "workers", "pairs", *bounded("ratio"), "confidence",
    "coverage", "p_adjusted", "comparisons", "outcome", "doubts", "step_ms", *bounded("cost_ms"), "costs",
    "same_weights", *bounded("difference"), "equal_within_margin",
]  # fmt: skip


def compare(study: Study, family: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row for each framework, options, knobs of both and worker count that native DDP has too.

    `family`: columns that tell studies apart which are in one table; comparisons of one family are corrected
    for each other. None: all rows are one family.

    Columns: options, native_knobs, horovod_knobs (of the other framework), workers, framework (the other
    one); pairs (repeats that both have); ratio (throughput of native DDP over the other's, the median over
    the pairs) with `_low` and `_high`, symmetric in the two names; confidence (of all intervals together:
    above 0.95 where repeats were added after a look at the results, see docs/statistics.md); coverage
    (confidence that an interval over so few pairs can promise for any noise); p_adjusted (of the paired
    t-test on logarithms, by Holm) over so many `comparisons`; ratio_of_medians (over all launches of each
    framework, as the table of points has them); outcome; doubts (why it is withheld, empty if nothing
    speaks against it); repeats_needed (see `repeats_needed`). NaN where not known.
    """
    table = side_by_side(study.runs[POINT].drop_duplicates(), ["options", "workers"])
    table["place"] = table["framework"].map(list(NAMES).index)
    table["series"] = table.groupby(KEY[:3], sort=False).ngroup()
    table = table.sort_values(["place", "series", "workers"], kind="stable")[KEY]
    ratios = paired_ratios(study, paired_runs(study), KEY, ("native", "other"), family)
    table = table.merge(ratios, on=KEY, how="left")
    medians = timed(study).runs.groupby(POINT, sort=False)[study.throughput].median()
    both = side_by_side(medians.rename("median").reset_index(), ["options", "workers"])
    both["ratio_of_medians"] = both["median_native"] / both["median_other"]
    table = table.merge(both[[*KEY, "ratio_of_medians"]], on=KEY, how="left")
    table["pairs"] = table["pairs"].fillna(0).astype(int)
    table["confidence"] = 1 - study.significance
    table["outcome"] = _outcomes(table)
    table["doubts"] = pd.Series("", index=table.index, dtype=object)
    claimed = table["outcome"].isin([*FASTER, *SUGGESTED])
    table.loc[claimed, "doubts"] = doubts_of(study, table[claimed])
    return _withheld(table)[_RATIO_COLUMNS]


def paired_ratios(
    study: Study, pairs: pd.DataFrame, key: list[str], arms: tuple[str, str], family: Sequence[str] = ()
) -> pd.DataFrame:
    """Return one row per point with pairs: `key`, pairs, ratio and interval, p_adjusted, repeats needed, ...

    The ratio is that of the throughputs of the two `arms`, whose columns of `pairs` end in their names.
    """
    logs = paired_logarithms(study, pairs, arms)
    launches = launches_of(pairs, key)
    by_point = pd.Series(logs).groupby(launches.point)
    table = pairs.groupby(launches.point)[key].first()
    table["pairs"] = launches.sizes
    table["coverage"] = [coverage(size) if size >= FEWEST_REPEATS else NAN for size in launches.sizes]
    table["repeats_needed"] = [repeats_needed(np.asarray(values)) for _, values in by_point]
    first, second = (block_deviations(study, pairs[f"run_{arm}"].to_list()) for arm in arms)
    low, high = bounds(launches.replicates(logs, first - second), 1 - study.significance)
    error = by_point.std() / np.sqrt(table["pairs"])
    tests = table.assign(low=low, high=high, centre=by_point.mean(), error=error, freedom=table["pairs"] - 1)
    found = corrected(tests, family, study.significance)
    add_bounded(table, "ratio", np.exp(np.array([launches.medians(logs), found["low"], found["high"]])))
    return table.join(found[["p_adjusted", "comparisons"]])


def paired_logarithms(
    study: Study, pairs: pd.DataFrame, arms: tuple[str, str] = ("native", "other")
) -> Array:
    """Return the logarithm of each pair's ratio of throughputs, of the first arm over the second."""
    first, second = (pairs[f"{study.throughput}_{arm}"] for arm in arms)
    ratios = first / second
    return np.asarray(np.log(ratios), dtype=np.float64)


def _outcomes(table: pd.DataFrame) -> Array:
    is_claim = table["pairs"] >= RECOMMENDED_REPEATS
    native, horovod = (
        np.where(is_claim, certain, suggested) for certain, suggested in zip(FASTER, SUGGESTED, strict=True)
    )
    conditions = [table["ratio_low"].isna(), table["ratio_low"] > 1, table["ratio_high"] < 1]
    return np.select(conditions, [NOT_ENOUGH, native, horovod], default=NO_DIFFERENCE)


def withhold(comparisons: pd.DataFrame, checks: Iterable[Check]) -> pd.DataFrame:
    """Return `comparisons` with the doubts of the fairness table; what they forbid to claim is withheld.

    The doubts name the checks; their facts stand beside every verdict.
    """
    forbidding = [check for check in checks if check.withholds]
    doubts = []
    for pair, doubt in zip(pairs_of(comparisons), comparisons["doubts"], strict=True):
        own = [check for check in forbidding if not check.pairs or pair in check.pairs]
        unfair = TABLE_SAYS_NO + ", ".join(check.check for check in own) if own else ""
        doubts.append("; ".join(filter(None, (unfair, doubt))))
    return _withheld(comparisons.assign(doubts=pd.Series(doubts, index=comparisons.index, dtype=object)))


def _withheld(table: pd.DataFrame) -> pd.DataFrame:
    """No framework is called faster, nor suggested to be, where a doubt speaks against it."""
    doubted = table["outcome"].isin([*FASTER, *SUGGESTED]) & (table["doubts"] != "")
    return table.assign(outcome=table["outcome"].mask(doubted, WITHHELD))


def doubts_of(study: Study, claimed: pd.DataFrame) -> list[str]:
    """Return for each claimed difference why not to blame a framework for it; empty where nothing is known.

    `claimed` has the columns of `compare`.
    """
    facts = speed_facts(study)
    return [_doubt(row, facts) for row in claimed.to_dict("records")]


def speed_facts(study: Study) -> Mapping[Hashable, Row]:
    """Return what else decides the speed of a point, by POINT: busy_share and clock, medians of its runs."""
    clocks = study.budgets.groupby("run", sort=False, observed=True)["frequency_mhz"].mean()
    runs = timed(study).runs
    runs = runs.assign(clock=runs["run"].map(clocks).astype(float))
    facts: Mapping[Hashable, Row] = (
        runs.groupby(POINT, sort=False)[["busy_share", "clock"]].median().to_dict("index")
    )
    return facts


def _doubt(row: Row, facts: Mapping[Hashable, Row]) -> str:
    """Return that medians contradict the ratio, or what else may be most of it."""
    if medians_disagree(row):
        ratio = f"their ratio is {row['ratio_of_medians']:.3f}"
        return (
            f"the medians over all launches name the other framework ({ratio}): "
            "repeats differ more from each other than the frameworks do"
        )
    if max(row["ratio"], 1 / row["ratio"]) > LARGEST_RATIO:
        return (
            f"frameworks that do the same work differ by no factor above {LARGEST_RATIO:g}: read the records"
        )
    native = facts[row["options"], COMPARED[0], row["native_knobs"], row["workers"]]
    other = facts[row["options"], row["framework"], row["horovod_knobs"], row["workers"]]
    return other_causes(row["ratio"], native, other)


def other_causes(ratio: float, first: Row, second: Row) -> str:
    """Return that load or clock of the cores may be most of a ratio of speeds; empty where they are not.

    `first` and `second` are of `speed_facts`.
    """
    faster, slower = (first, second) if ratio > 1 else (second, first)
    least = LEAST_SHARE_OF_DIFFERENCE * abs(math.log(ratio))
    causes = []
    more = slower["busy_share"] - faster["busy_share"]
    if more >= least:
        causes.append(f"{OTHERS_TOOK}{100 * more:.1f} % more of the slower one's time")
    if math.log(faster["clock"] / slower["clock"]) >= least:
        causes.append(
            f"its cores ran at {slower['clock']:.0f} MHz, those of the faster at {faster['clock']:.0f} MHz"
        )
    return " and ".join(causes) + ": that may be most of the difference" if causes else ""


def medians_disagree(row: Row) -> bool:
    """Return whether the paired ratio and that of the medians name different frameworks."""
    paired = math.log(row["ratio"])
    unpaired = math.log(row["ratio_of_medians"])
    return paired * unpaired < 0 and abs(paired - unpaired) > SAME_RATIO


def of_compared_pair(arms: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of native DDP and Horovod in a table with `framework`, without that column."""
    return arms[arms["framework"] == COMPARED[1]].drop(columns="framework").reset_index(drop=True)


def each_against_native(study: Study, arms: pd.DataFrame, arms_iou: pd.DataFrame) -> pd.DataFrame:
    """Return what each framework costs a step: one row for each row of `arms`, the result of `compare`.

    `arms_iou` is `iou_between_frameworks`. No row where the study has native DDP and Horovod only. `ratio` is
    the throughput of native DDP over the other's, `step_ms` native DDP's step, `cost_ms` what the other takes
    longer; `costs` is COSTS_NOTHING where its whole interval is within NEGLIGIBLE_SHARE of a step, else "not
    shown"; `same_weights` says in how many pairs both learned exactly the same, empty where none was
    evaluated.
    """
    if not study.wrappers:
        return pd.DataFrame(columns=_WRAPPER_COLUMNS)
    table = arms.merge(arms_iou[[*KEY, *bounded("difference"), "equal_within_margin"]], on=KEY, how="left")
    medians = timed(study).runs.groupby(POINT, sort=False)[["step_seconds", "busy_share"]].median()
    both = side_by_side(medians.reset_index(), ["options", "workers"])
    table = table.merge(both, on=KEY, how="left")
    table = table.merge(_same_weights(study), on=KEY, how="left").fillna({"same_weights": ""})
    table["step_ms"] = 1000 * table["step_seconds_native"]
    for ratio, cost in zip(bounded("ratio"), bounded("cost_ms"), strict=True):
        table[cost] = table["step_ms"] * (table[ratio] - 1)
    table["costs"] = np.where(_is_negligible(table), COSTS_NOTHING, "not shown")
    table["outcome"] = [
        outcome.replace(HOROVOD_FASTER, f"{NAMES[framework]} faster")
        for outcome, framework in zip(table["outcome"], table["framework"], strict=True)
    ]
    return table.rename(columns={"horovod_knobs": "knobs"})[_WRAPPER_COLUMNS]


def _is_negligible(table: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether what each row's framework costs is shown to be within NEGLIGIBLE_SHARE of a step."""
    most = NEGLIGIBLE_SHARE
    within = (table["ratio_low"] > 1 - most) & (table["ratio_high"] < 1 + most)
    enough = table["pairs"] >= RECOMMENDED_REPEATS
    busier = (table["busy_share_native"] - table["busy_share_other"]).abs()
    return within & enough & (table["doubts"] == "") & ~(busier > most)


def _same_weights(study: Study) -> pd.DataFrame:
    """Return in how many pairs of runs of a repeat the last evaluation was of the same weights.

    No row where no pair was evaluated, as emulated runs are not.
    """
    last = study.evaluations.drop_duplicates("run", keep="last").set_index("run")["weights_sha256"]
    evaluated = study.runs.assign(weights=study.runs["run"].map(last)).dropna(subset="weights")
    pairs = side_by_side(evaluated, ["options", "workers", "repeat"])
    pairs["same"] = pairs["weights_native"] == pairs["weights_other"]
    counted = pairs.groupby(KEY, sort=False)["same"].agg(["sum", "size"]).reset_index()
    counted["same_weights"] = counted["sum"].astype(str) + " of " + counted["size"].astype(str)
    return counted[[*KEY, "same_weights"]]
