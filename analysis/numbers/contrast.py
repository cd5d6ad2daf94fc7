"""Native DDP beside every other framework at each worker count that both have: the ratio of throughputs.

A framework is called faster where the interval of the ratio excludes 1, and the two are called equal where it
lies within the margin of the study; else it cannot be told. The interval holds for all comparisons of a study
together (`stats.corrected`): Student's t on the logarithms of the paired ratios, never narrower than the
bootstrap interval of their median.
`python -m benchmarks.coverage` prints how often studies without a difference are called faster.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.numbers import stats
from analysis.numbers.check import Check, PointPair
from analysis.study import (
    COMPARED,
    NAMES,
    POINT,
    RECOMMENDED_REPEATS,
    Array,
    Names,
    Study,
    bounded,
    counts_for_speed,
)
from analysis.text import Row, clean, count, first_of

PAIR = ["options", "native_knobs", "other_knobs", "workers"]
# With the framework that is compared with native DDP: its knobs are `other_knobs`, whichever it is.
KEY = [*PAIR, "framework"]
# A sentence carries three examples; the rest is counted.
MOST_EXAMPLES = 3
# The check of the runs on 1 worker as the baseline of those on more.
BASELINE = "same baseline"
# The check that neither other programs nor stalls disturbed the launches.
QUIET = "machine quiet"

Sides = tuple[Sequence[Row], Sequence[Row]]


def side_by_side(table: pd.DataFrame, on: Sequence[str]) -> pd.DataFrame:
    """Return every pair of rows of native DDP and of another framework that agree in the columns `on`.

    `framework` is the other one. Other columns end in `_native` and `_other`; the knobs are `native_knobs`
    and `other_knobs`.
    """
    is_native = table["framework"] == COMPARED[0]
    native = table[is_native].drop(columns="framework")
    both = native.merge(table[~is_native], on=list(on), suffixes=("_native", "_other"))
    return both.rename(columns={"knobs_native": "native_knobs", "knobs_other": "other_knobs"})


def paired_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each pair of runs of one repeat that counts: KEY, repeat, columns of both runs."""
    return undisturbed(side_by_side(runs, ["options", "workers", "repeat"]), ("native", "other"), KEY)


def undisturbed(pairs: pd.DataFrame, arms: tuple[str, str], key: list[str]) -> pd.DataFrame:
    """Return the pairs without a disturbed launch, or all of a `key` of which too few others remain.

    Columns of the two `arms` end in their names.
    """
    first, second = (pairs[f"disturbed_{arm}"] != "" for arm in arms)
    return pairs[counts_for_speed(pairs, first | second, key)].reset_index(drop=True)


def pair_of(row: Sequence[Any]) -> PointPair:
    """Return the values of PAIR, or of KEY, as plain text and number."""
    options, native, horovod, workers, *framework = row
    return PointPair(str(options), str(native), str(horovod), int(workers), *framework)


def grouped(runs: Iterable[Row], columns: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Return the runs that agree in these columns, by their values, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in runs:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    return groups


def sides(runs: Iterable[Row]) -> dict[PointPair, Sides]:
    """Return every pair of points of equal options and workers, with the runs of each framework."""
    points = grouped(runs, POINT)
    alike: dict[Hashable, list[tuple[Any, ...]]] = {}
    for point in points:
        options, _, _, workers = point
        alike.setdefault((options, workers), []).append(point)
    return {
        PointPair(options, knobs, other[2], workers, other[1]): (own, points[other])
        for (options, framework, knobs, workers), own in points.items()
        if framework == COMPARED[0]
        for other in alike[options, workers]
        if other[1] != COMPARED[0]
    }


def repeats_of(both: Sides) -> Iterator[tuple[Row, Row]]:
    """Yield the two runs of each repeat that both frameworks have."""
    others = {row["repeat"]: row for row in both[1]}
    return ((row, others[row["repeat"]]) for row in both[0] if row["repeat"] in others)


def names_of_pair(names: Names, pair: PointPair) -> tuple[str, str]:
    """Return the names of native DDP and of the framework that is compared with it."""
    return names[COMPARED[0]], names.get(pair.framework, NAMES[pair.framework])


def in_both(name: str, values: Iterable[Sequence[str]], names: Iterable[str]) -> str:
    """Return what both frameworks have of a fact: "hosts: a in native DDP, b in Horovod"."""
    shown = [first_of([clean(value) for value in own], "value", MOST_EXAMPLES) for own in values]
    told = [f"{text or 'not recorded'} in {arm}" for text, arm in zip(shown, names, strict=True)]
    return f"{clean(name)}: {', '.join(told)}"


def point_name(pair: PointPair) -> str:
    """Return "at 2 workers (lr=0.1; bucket=5)"."""
    varied = "; ".join(part for part in (pair.options, pair.native_knobs, pair.other_knobs) if part)
    return clean(f"at {count(pair.workers, 'worker')}{f' ({varied})' if varied else ''}")


def first_points(parts: Iterable[str]) -> str:
    """Return the first of these phrases about points, and how many more there are."""
    return first_of(list(parts), "point", MOST_EXAMPLES, separator="; ")


TABLE_SAYS_NO = "the fairness table says no to: "
NATIVE_FASTER = "native DDP faster"
HOROVOD_FASTER = "Horovod faster"
FASTER = (NATIVE_FASTER, HOROVOD_FASTER)
SUGGESTS = "suggests "
SUGGESTED = tuple(f"{SUGGESTS}{outcome}" for outcome in FASTER)
WITHHELD = "withheld"
EQUAL = "equal within "
CANNOT_TELL = "cannot tell"
NOT_ENOUGH = "not enough repeats"
# Of which a doubt takes nothing away.
CLAIMS_NOTHING = (CANNOT_TELL, NOT_ENOUGH, WITHHELD)
# Another cause that is half of a difference leaves the frameworks less than it.
LEAST_SHARE_OF_DIFFERENCE = 0.5
# Of launches, who took a share of their time.
TOOK = {"busy_share": "other processes took ", "uncounted_share": "nothing that was counted took "}
HIDDEN = "other processes or the clock of the cores may hide a difference"
# Published and measured ratios of the two lie between 0.5 and 2.
LARGEST_RATIO = 10.0
# Ratios closer than this name the same framework, whichever side of 1 they lie on: 1 % is within noise.
SAME_RATIO = 0.01
# A wrapper costs nothing where the whole interval, over enough repeats, lies within so much of native DDP's
# step, and other processes took no more than that of one framework alone.
NEGLIGIBLE_SHARE = 0.01
_WRAPPER_COLUMNS = [
    "framework", "options", "native_knobs", "knobs", "workers", "pairs", *bounded("ratio"), "confidence",
    "coverage", "p_adjusted", "comparisons", "outcome", "doubts", "step_ms", *bounded("cost_ms"), "costs",
    "same_weights", *bounded("difference"), "equal_within_margin",
]  # fmt: skip


def compare(study: Study, family: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row for each framework, options, knobs of both and worker count that native DDP has too.

    `family`: columns that tell studies apart which are in one table; comparisons of one family are corrected
    for each other. None: all rows are one family. `framework` is the other one, and `other_knobs` are its
    knobs, whichever it is. The ratio is symmetric in the two names. What is not known is NaN.
    """
    table = side_by_side(study.runs[POINT].drop_duplicates(), ["options", "workers"])
    table["place"] = table["framework"].map(list(NAMES).index)
    table["series"] = table.groupby(KEY[:3], sort=False).ngroup()
    table = table.sort_values(["place", "series", "workers"], kind="stable")[KEY]
    ratios = paired_ratios(study, paired_runs(study.runs), KEY, ("native", "other"), family)
    table = table.merge(ratios, on=KEY, how="left")
    medians = study.timed.runs.groupby(POINT, sort=False)[study.throughput].median()
    both = side_by_side(medians.rename("median").reset_index(), ["options", "workers"])
    both["ratio_of_medians"] = both["median_native"] / both["median_other"]
    table = table.merge(both[[*KEY, "ratio_of_medians"]], on=KEY, how="left")
    table["pairs"] = table["pairs"].fillna(0).astype(int)
    table["confidence"] = 1 - study.significance
    rows = zip(*(table[name] for name in ("ratio_low", "ratio_high", "pairs")), strict=True)
    claims = HOROVOD_FASTER, NATIVE_FASTER
    equal = Equality.of_ratios(study)
    table["outcome"] = [outcome_of(ends, claims, pairs, equal=equal) for *ends, pairs in rows]
    table["doubts"] = pd.Series("", index=table.index, dtype=object)
    claimed = ~table["outcome"].isin(CLAIMS_NOTHING)
    facts = speed_facts(study)
    table.loc[claimed, "doubts"] = [_doubt(row, facts, equal) for row in table[claimed].to_dict("records")]
    return _withheld(table)


def paired_ratios(
    study: Study, pairs: pd.DataFrame, key: list[str], arms: tuple[str, str], family: Sequence[str] = ()
) -> pd.DataFrame:
    """Return one row per point with pairs: `key`, pairs, ratio and interval, p_adjusted, repeats needed, ...

    The ratio is that of the throughputs of the two `arms`, whose columns of `pairs` end in their names.
    """
    logs = paired_logarithms(study.throughput, pairs, arms)
    launches = stats.launches_of(pairs, key)
    table = pairs.groupby(launches.point)[key].first()
    table["pairs"] = launches.sizes
    table["coverage"] = stats.coverage(table["pairs"])
    first, second = (
        stats.block_deviations(study.epochs, study.throughput, pairs[f"run_{arm}"].to_list()) for arm in arms
    )
    ends = zip(*stats.bounds(launches.replicates(logs, first - second), 1 - study.significance), strict=True)
    samples = [np.asarray(values) for _, values in pd.Series(logs).groupby(launches.point)]
    contrasts = [stats.contrast_of([values], of) for values, of in zip(samples, ends, strict=True)]
    tests = pd.DataFrame(contrasts, columns=list(stats.CONTRAST_COLUMNS), index=table.index)
    margin = math.log1p(study.criteria.equal_within)
    found = stats.corrected(table.join(tests), family, study.significance, margin)
    table["repeats_needed"] = found["needed"]
    stats.add_bounded(table, "ratio", np.exp(np.array([launches.medians(logs), found["low"], found["high"]])))
    return table.join(found[["p_adjusted", "comparisons"]])


def paired_logarithms(
    throughput: str, pairs: pd.DataFrame, arms: tuple[str, str] = ("native", "other")
) -> Array:
    """Return the logarithm of each pair's ratio of throughputs, of the first arm over the second."""
    first, second = (pairs[f"{throughput}_{arm}"] for arm in arms)
    return np.asarray(np.log(first / second), dtype=np.float64)


@dataclass(frozen=True)
class Equality:
    """What "equal within" means: the value of no difference, the limits around it, and the words."""

    value: float
    low: float
    high: float
    claim: str

    @classmethod
    def of_ratios(cls, *studies: Study) -> "Equality":
        """Return that of ratios of throughputs, by the narrowest margin of these studies."""
        margin = min(study.criteria.equal_within for study in studies)
        return cls(1.0, 1 / (1 + margin), 1 + margin, f"{EQUAL}{100 * margin:g} %")

    def holds(self, row: Row | None) -> bool:
        """Return whether the whole interval of a ratio lies within."""
        return row is not None and self.low <= row["ratio_low"] and row["ratio_high"] <= self.high

    def is_shown(self, row: Row) -> bool:
        """Return whether the interval of a ratio shows that the two are equal."""
        return self.holds(row) and bool(row["ratio_low"] <= self.value <= row["ratio_high"])

    @classmethod
    def of_scores(cls, margin: float) -> "Equality":
        """Return that of differences of scores."""
        return cls(0.0, -margin, margin, f"{EQUAL}{margin:g}")


def outcome_of(
    ends: Sequence[float],
    claims: tuple[str, str],
    repeats: int,
    doubts: str = "",
    *,
    equal: Equality,
) -> str:
    """Return what an interval shows: the first claim where it is below the equal value, the other above it.

    Where it holds that value: that the two are equal, if it lies within their limits, else that it cannot be
    told. Too few repeats only suggest a claim, and doubts forbid it.
    """
    low, high = ends
    if math.isnan(low):
        return NOT_ENOUGH
    claim = claims[low > equal.value]
    if low <= equal.value <= high:
        claim = equal.claim
        if low < equal.low or high > equal.high:
            return CANNOT_TELL
    return WITHHELD if doubts else claim if repeats >= RECOMMENDED_REPEATS else f"{SUGGESTS}{claim}"


def shows_none(row: Row) -> bool:
    """Return whether a comparison that is not withheld shows no difference."""
    return row["outcome"] == CANNOT_TELL or EQUAL in row["outcome"]


def withhold(comparisons: pd.DataFrame, checks: Iterable[Check]) -> pd.DataFrame:
    """Return `comparisons` with the doubts of the fairness table; what they forbid to claim is withheld.

    The doubts name the checks; their facts stand beside every verdict.
    """
    forbidding = [check for check in checks if check.withholds]
    doubts = []
    pairs = map(pair_of, comparisons[KEY].itertuples(index=False, name=None))
    for pair, doubt in zip(pairs, comparisons["doubts"], strict=True):
        own = [check for check in forbidding if not check.pairs or pair in check.pairs]
        unfair = TABLE_SAYS_NO + ", ".join(check.check for check in own) if own else ""
        doubts.append("; ".join(filter(None, (unfair, doubt))))
    return _withheld(comparisons.assign(doubts=pd.Series(doubts, index=comparisons.index, dtype=object)))


def _withheld(table: pd.DataFrame) -> pd.DataFrame:
    """Nothing is claimed, nor suggested, where a doubt speaks against it."""
    doubted = ~table["outcome"].isin(CLAIMS_NOTHING) & (table["doubts"] != "")
    return table.assign(outcome=table["outcome"].mask(doubted, WITHHELD))


def with_clocks(runs: pd.DataFrame, budgets: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with `mhz`, the mean clock of their workers' cores; NaN where it is not recorded."""
    clocks = budgets["frequency_mhz"].astype(float).groupby(budgets["run"].astype(str)).mean()
    return runs.join(clocks.rename("mhz"), on="run")


def speed_facts(study: Study) -> Mapping[Hashable, Row]:
    """Return what else decides the speed of a point, by POINT: medians of its runs."""
    points = with_clocks(study.timed.runs, study.timed.budgets).groupby(POINT, sort=False)
    facts: Mapping[Hashable, Row] = points[[*TOOK, "mhz"]].median().to_dict("index")
    return facts


def _doubt(row: Row, facts: Mapping[Hashable, Row], equal: Equality) -> str:
    """Return why not to blame a framework for a difference: medians contradict it, or something else may be
    most of it, or hide one; empty where nothing is known.
    """
    native = facts[row["options"], COMPARED[0], row["native_knobs"], row["workers"]]
    other = facts[row["options"], row["framework"], row["other_knobs"], row["workers"]]
    if equal.is_shown(row):
        return causes_beside(row, native, other, equal)
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
    return causes_beside(row, native, other, equal)


def causes_beside(row: Row, first: Row, second: Row, equal: Equality) -> str:
    """Return `other_causes` of the ratio of a row, or that they may hide one where the two seem equal."""
    if not equal.is_shown(row):
        return other_causes(row["ratio"], first, second)
    hidden = [other_causes(ratio, first, second) for ratio in (equal.low, equal.high)]
    return HIDDEN if any(hidden) else ""


def other_causes(ratio: float, first: Row, second: Row) -> str:
    """Return that load or clock of the cores may be most of a ratio of speeds; empty where they are not.

    `first` and `second` are of `speed_facts`.
    """
    faster, slower = (first, second) if ratio > 1 else (second, first)
    least = LEAST_SHARE_OF_DIFFERENCE * abs(math.log(ratio))
    causes = []
    for name, took in TOOK.items():
        more = slower[name] - faster[name]
        if more >= least:
            causes.append(f"{took}{100 * more:.1f} % more of the slower one's time")
    if math.log(faster["mhz"] / slower["mhz"]) >= least:
        causes.append(
            f"its cores ran at {slower['mhz']:.0f} MHz, those of the faster at {faster['mhz']:.0f} MHz"
        )
    return " and ".join(causes) + ": that may be most of the difference" if causes else ""


def medians_disagree(row: Row) -> bool:
    """Return whether the paired ratio and that of the medians name different frameworks."""
    paired = math.log(row["ratio"])
    unpaired = math.log(row["ratio_of_medians"])
    return paired * unpaired < 0 and abs(paired - unpaired) > SAME_RATIO


def select_compared_pair(arms: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of native DDP and Horovod."""
    return arms[arms["framework"] == COMPARED[1]].reset_index(drop=True)


def each_against_native(study: Study, arms: pd.DataFrame, arms_iou: pd.DataFrame) -> pd.DataFrame:
    """Return what each framework costs a step: one row for each row of `arms`, the result of `compare`.

    `arms_iou` is `iou_between_frameworks`. No row where the study has native DDP and Horovod only.
    """
    if not study.further_frameworks:
        return pd.DataFrame(columns=_WRAPPER_COLUMNS)
    table = arms.merge(arms_iou[[*KEY, *bounded("difference"), "equal_within_margin"]], on=KEY, how="left")
    medians = study.timed.runs.groupby(POINT, sort=False)[["step_seconds", "busy_share"]].median()
    both = side_by_side(medians.reset_index(), ["options", "workers"])
    table = table.merge(both, on=KEY, how="left")
    table = table.merge(_same_weights(study.runs, study.evaluations), on=KEY, how="left").fillna(
        {"same_weights": ""}
    )
    table["step_ms"] = 1000 * table["step_seconds_native"]
    for ratio, cost in zip(bounded("ratio"), bounded("cost_ms"), strict=True):
        table[cost] = table["step_ms"] * (table[ratio] - 1)
    most = NEGLIGIBLE_SHARE
    within = (table["ratio_low"] > 1 - most) & (table["ratio_high"] < 1 + most)
    busier = (table["busy_share_native"] - table["busy_share_other"]).abs() > most
    is_sure = (table["pairs"] >= RECOMMENDED_REPEATS) & (table["doubts"] == "") & ~busier
    table["costs"] = np.where(within & is_sure, f"within {most:.0%}", "not shown")
    table["outcome"] = [
        outcome.replace(HOROVOD_FASTER, f"{NAMES[framework]} faster")
        for outcome, framework in zip(table["outcome"], table["framework"], strict=True)
    ]
    return table.rename(columns={"other_knobs": "knobs"})[_WRAPPER_COLUMNS]


def _same_weights(runs: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return in how many pairs of runs of a repeat the last evaluation was of the same weights.

    No row where no pair was evaluated, as emulated runs are not.
    """
    last = evaluations.drop_duplicates("run", keep="last").set_index("run")["weights_sha256"]
    evaluated = runs.assign(weights=runs["run"].map(last)).dropna(subset="weights")
    pairs = side_by_side(evaluated, ["options", "workers", "repeat"])
    pairs["same"] = pairs["weights_native"] == pairs["weights_other"]
    counted = pairs.groupby(KEY, sort=False)["same"].agg(["sum", "size"]).reset_index()
    counted["same_weights"] = counted["sum"].astype(str) + " of " + counted["size"].astype(str)
    return counted[[*KEY, "same_weights"]]
