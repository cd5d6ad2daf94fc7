"""Every framework against native DDP, where a study has more than the compared pair; what each costs a step.

The comparison is that of `comparison.py`: paired by repeat, corrected by Holm for all comparisons of the
study together. It knows two arms: each further framework takes the place of Horovod, in options of its own.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.findings.comparison import HOROVOD_FASTER, compare
from analysis.findings.pair_of_frameworks import runs_of_pair
from analysis.findings.pairs import PAIR, side_by_side
from analysis.stats import RECOMMENDED_REPEATS, timed
from analysis.study import COMPARED, NAMES, POINT, Study
from unet_scaling.study.config import Framework

# A wrapper costs nothing where the whole interval, over enough repeats, lies within so much of native DDP's
# step, and other processes took no more than that of one framework alone.
NEGLIGIBLE_SHARE = 0.01
COSTS_NOTHING = f"within {NEGLIGIBLE_SHARE:.0%}"
_RATIO = ("ratio", "ratio_low", "ratio_high")
_DIFFERENCE = ("difference", "difference_low", "difference_high")
_COLUMNS = [
    "framework", "options", "native_knobs", "knobs", "workers", "pairs", *_RATIO, "confidence", "coverage",
    "p_adjusted", "comparisons", "outcome", "doubts", "step_ms", "cost_ms", "cost_ms_low", "cost_ms_high",
    "costs", "same_weights", *_DIFFERENCE, "equal_within_margin",
]  # fmt: skip
_Pair = tuple[Framework, str]  # framework and options


def beside_native(study: Study) -> Study:
    """Return the study with each further framework in the place of Horovod, in options named after it."""
    if not study.wrappers:
        return study
    runs = [_in_horovods_place(study.runs, framework) for framework in study.wrappers]
    left_out = [_renamed(study.left_out, framework) for framework in study.wrappers]
    # Last, so that what asks for the options of a run finds its own.
    return replace(
        study,
        runs=pd.concat([*runs, _of_pair(study.runs)], ignore_index=True),
        left_out=pd.concat([*left_out, _of_pair(study.left_out)], ignore_index=True),
    )


def compare_each(study: Study) -> pd.DataFrame:
    """Return the comparison of each framework with native DDP, all corrected for each other."""
    return compare(beside_native(study))


def _of_pair(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["framework"].isin(COMPARED) | table["framework"].isna()]


def _in_horovods_place(runs: pd.DataFrame, framework: Framework) -> pd.DataFrame:
    arms = runs_of_pair(runs, framework)
    return arms.assign(options=[_label(framework, options) for options in arms["options"]])


def _renamed(left_out: pd.DataFrame, framework: Framework) -> pd.DataFrame:
    return _in_horovods_place(left_out, framework) if len(left_out) else left_out


def _label(framework: Framework, options: str) -> str:
    return "; ".join(filter(None, (NAMES[framework], options)))


def _places(study: Study) -> Mapping[str, _Pair]:
    """Return the framework and the options that the options of `beside_native` stand for."""
    options = study.runs["options"].unique()
    arms = {_label(name, str(each)): (name, str(each)) for name in study.wrappers for each in options}
    return {str(each): (COMPARED[1], str(each)) for each in options} | arms


def with_framework(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Return a table about `beside_native` with the `framework` compared with native DDP, and its options."""
    if not study.wrappers:
        return table.assign(framework=COMPARED[1])
    places = [_places(study)[str(each)] for each in table["options"]]
    return table.assign(
        framework=[framework for framework, _ in places], options=[options for _, options in places]
    )


def of_compared_pair(arms: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of native DDP and Horovod in a table of `with_framework`, without that column."""
    return arms[arms["framework"] == COMPARED[1]].drop(columns="framework").reset_index(drop=True)


def each_against_native(study: Study, comparisons: pd.DataFrame, between: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each framework, options, knobs and worker count that native DDP has too.

    `comparisons` and `between` are `comparison.compare` and `quality.iou_between_frameworks` of
    `beside_native`. No row where the study has native DDP and Horovod only. `ratio` is the throughput of
    native DDP over the other's, `step_ms` native DDP's step, `cost_ms` what the other takes longer;
    `costs` is COSTS_NOTHING where its whole interval is within NEGLIGIBLE_SHARE of a step, else "not shown";
    `same_weights` says in how many pairs both learned exactly the same, empty where none was evaluated.
    """
    if not study.wrappers:
        return pd.DataFrame(columns=_COLUMNS)
    table = comparisons.merge(between[[*PAIR, *_DIFFERENCE, "equal_within_margin"]], on=PAIR, how="left")
    table = table.merge(_steps(study), on=["options", "native_knobs", "workers"], how="left")
    table = table.merge(_same_weights(study), on=PAIR, how="left").fillna({"same_weights": ""})
    table = table.merge(_busy_differences(study), on=PAIR, how="left")
    for ratio, cost in zip(_RATIO, ("cost_ms", "cost_ms_low", "cost_ms_high"), strict=True):
        table[cost] = table["step_ms"] * (table[ratio] - 1)
    table["costs"] = np.where(is_negligible(table), COSTS_NOTHING, "not shown")
    return _with_own_names(table, study)[_COLUMNS]


def is_negligible(table: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether what each row's framework costs is shown to be within NEGLIGIBLE_SHARE of a step."""
    most = NEGLIGIBLE_SHARE
    within = (table["ratio_low"] > 1 - most) & (table["ratio_high"] < 1 + most)
    enough = table["pairs"] >= RECOMMENDED_REPEATS
    return within & enough & (table["doubts"] == "") & ~(table["busy_difference"] > most)


def _with_own_names(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Return the rows with the framework and the options that they are about, in the order of NAMES."""
    named = with_framework(table, study)
    named["outcome"] = [
        outcome.replace(HOROVOD_FASTER, f"{NAMES[framework]} faster")
        for outcome, framework in zip(named["outcome"], named["framework"], strict=True)
    ]
    named["place"] = named["framework"].map(list(NAMES).index)
    named = named.rename(columns={"horovod_knobs": "knobs"})
    return named.sort_values("place", kind="stable", ignore_index=True)


def _steps(study: Study) -> pd.DataFrame:
    """Return the median step of native DDP in milliseconds, for every options of `beside_native`."""
    runs = timed(beside_native(study)).runs
    native = runs[runs["framework"] == COMPARED[0]].rename(columns={"knobs": "native_knobs"})
    steps = native.groupby(["options", "native_knobs", "workers"], sort=False)["step_seconds"].median()
    return (1000 * steps).rename("step_ms").reset_index()


def _same_weights(study: Study) -> pd.DataFrame:
    """Return in how many pairs of runs of a repeat the last evaluation was of the same weights.

    No row where no pair was evaluated, as emulated runs are not.
    """
    last = study.evaluations.drop_duplicates("run", keep="last").set_index("run")["weights_sha256"]
    runs = beside_native(study).runs
    evaluated = runs.assign(weights=runs["run"].map(last)).dropna(subset="weights")
    pairs = side_by_side(evaluated, ["options", "workers", "repeat"])
    pairs["same"] = pairs["weights_native"] == pairs["weights_horovod"]
    counted = pairs.groupby(PAIR, sort=False)["same"].agg(["sum", "size"]).reset_index()
    counted["same_weights"] = counted["sum"].astype(str) + " of " + counted["size"].astype(str)
    return counted.drop(columns=["sum", "size"])


def _busy_differences(study: Study) -> pd.DataFrame:
    """Return how much more of the time other processes took of one framework than of the other, a share."""
    runs = timed(beside_native(study)).runs
    busy = runs.groupby(POINT, sort=False)["busy_share"].median().reset_index()
    pairs = side_by_side(busy, ["options", "workers"])
    difference = (pairs["busy_share_native"] - pairs["busy_share_horovod"]).abs()
    return pairs[PAIR].assign(busy_difference=difference)
