"""Standing of a point as a recommendation: it qualifies, is excluded by evidence, or is undecided."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analysis.score import Score
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import Names
from analysis.text import Row, bracketed, count, with_interval
from unet_scaling.study.options import Criteria

Standing = Literal["qualifies", "excluded", "undecided"]
# What a point does not meet, or is not shown to; "other_iou": the other framework has a better IoU there.
Criterion = Literal[
    "", "diverged", "iou", "other_iou", "efficiency", "repeats", "no_baseline", "slow_baseline", "not_learned"
]
REPEATS_NEEDED = f"at least {FEWEST_REPEATS} repeats ({RECOMMENDED_REPEATS} recommended)"
# N workers cannot do more than N times the work of one; what is below 1.005 is shown as 1.00.
MOST_EFFICIENCY = 1.005
# Significant digits of a number in a sentence: intervals are rarely narrower than 1 %.
DIGITS = "~3"


@dataclass(frozen=True)
class Judgement:
    """How a point stands as a recommendation, the criterion that decides it, and the reason in words."""

    standing: Standing
    criterion: Criterion = ""
    reason: str = ""


# A requirement that is not met, with the reason.
_Unmet = tuple[Criterion, str] | None


@dataclass(frozen=True)
class Requirements:
    """What points of one set of options are measured by.

    between        IoU of every framework against native DDP, `quality.iou_between_frameworks`, with the
                   `framework` that is compared (wrapper_comparison.with_framework)
    missing        frameworks that have points here, but none on 1 worker
    slow_baseline  why the runs on 1 worker cannot be right; empty where they can
    """

    criteria: Criteria
    score: Score
    names: Names
    between: pd.DataFrame
    missing: Sequence[str]
    slow_baseline: str


def judge(row: Row, required: Requirements) -> Judgement:
    """Return how a point stands and why; evidence against it goes before missing evidence."""
    against = _evidence_against(row, required) or _below_the_other(row, required)
    if against:
        return Judgement("excluded", *against)
    missing = _missing_evidence(row, required)
    return Judgement("undecided", *missing) if missing else Judgement("qualifies")


def least_efficiency(workers: int, criteria: Criteria) -> float:
    """Return the floor of efficiency at so many workers: the study's, and never less than the speed of 1."""
    return max(criteria.efficiency_floor, 1 / workers) if workers > 1 else criteria.efficiency_floor


def _evidence_against(row: Row, required: Requirements) -> _Unmet:
    floor = least_efficiency(int(row["workers"]), required.criteria)
    if row["diverged"]:
        return "diverged", f"{row['diverged']} of its {row['repeats'] + row['diverged']} runs diverged"
    if row["non_inferior"] == "no":
        return "iou", f"its {required.score.title} is below that on 1 worker"
    if row["efficiency_common_high"] < floor:
        return "efficiency", f"{_efficiency(row)} is below the floor of {floor:g}"
    return None


def _missing_evidence(row: Row, required: Requirements) -> _Unmet:
    if row["learned"] == "no" and row["workers"] > 1:
        return "not_learned", f"1 worker is not shown to learn more {required.score.title} than a constant"
    if row["repeats"] < FEWEST_REPEATS:
        return "repeats", f"it has {row['repeats']} of {REPEATS_NEEDED}"
    unknown = _unknown_efficiency(row, required)
    if unknown:
        return unknown
    floor = least_efficiency(int(row["workers"]), required.criteria)
    if row["efficiency_common_low"] < floor:
        return "efficiency", f"{_efficiency(row)} may be below the floor of {floor:g}: run more repeats"
    if row["non_inferior"] != "not shown":
        return None
    known = "known for every run" if math.isnan(row["difference"]) else "shown to match 1 worker"
    return "iou", f"its {required.score.title} is not {known}"


def _unknown_efficiency(row: Row, required: Requirements) -> _Unmet:
    """Return why the efficiency of this point is not known."""
    if required.missing:
        names = " and ".join(required.missing)
        return "no_baseline", f"its efficiency is unknown without {names} on 1 worker"
    if math.isnan(row["efficiency_common_low"]):
        return "repeats", f"{_efficiency(row)} has no interval: run {REPEATS_NEEDED} on 1 worker"
    if required.slow_baseline and row["workers"] > 1:
        return "slow_baseline", required.slow_baseline
    return None


def _efficiency(row: Row) -> str:
    return f"its efficiency of {with_interval(row, 'efficiency_common', DIGITS)}"


def _below_the_other(row: Row, required: Requirements) -> _Unmet:
    """Return that a framework compared with this one has a better IoU there, by more than the margin."""
    is_native = row["framework"] == "pytorch_native"
    sign = 1 if is_native else -1
    for difference in _at_point(required.between, row, is_native=is_native):
        low, high = sorted(sign * difference[name] for name in ("difference_low", "difference_high"))
        if high < -difference["margin"] and difference["equal_within_margin"] == "no":
            other = required.names[difference["framework"] if is_native else "pytorch_native"]
            shown = f"difference {sign * difference['difference']:.3f} {bracketed(low, high, '.3f')}"
            below = f"its {required.score.title} is below that of {other}"
            return "other_iou", f"{below} on as many workers ({shown})"
    return None


def _at_point(between: pd.DataFrame, row: Row, *, is_native: bool) -> Sequence[Row]:
    """Return the rows of `between` about this point: of native DDP one for each framework beside it."""
    columns = ["options", "workers", "native_knobs" if is_native else "horovod_knobs"]
    point = [row["options"], row["workers"], row["knobs"]]
    if not is_native:
        columns.append("framework")
        point.append(row["framework"])
    same: Sequence[Row] = between[(between[columns] == point).all(axis=1)].to_dict("records")
    return same


def missing_baselines(points: pd.DataFrame, names: Names) -> list[str]:
    """Return the frameworks that have points here, but none on 1 worker."""
    with_one = set(points.loc[points["workers"] == 1, "framework"])
    without = set(points["framework"]) - with_one
    return [name for framework, name in names.items() if framework in without]


def slow_baseline(points: Sequence[Row], names: Names) -> str:
    """Return why the baseline of these points, which is one for all, cannot be right; empty where it can."""
    worst = max(points, key=lambda row: np.nan_to_num(row["efficiency_common_low"]), default=None)
    if worst is None or not worst["efficiency_common_low"] > MOST_EFFICIENCY:
        return ""
    efficiency = with_interval(worst, "efficiency_common", DIGITS)
    return (
        f"the runs on 1 worker were slowed by something, for {names[worst['framework']]} on "
        f"{count(int(worst['workers']), 'worker')} has an efficiency of {efficiency}, "
        "more than there can be: measure them again, on the same hosts and beside the larger counts"
    )
