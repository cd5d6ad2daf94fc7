"""How every point stands as a recommendation: it qualifies, is excluded, or is undecided."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.statistics.intervals import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import Names
from unet_scaling.study.config import Framework
from unet_scaling.study.options import Criteria

Standing = Literal["qualifies", "excluded", "undecided"]
REPEATS_NEEDED = f"at least {FEWEST_REPEATS} repeats ({RECOMMENDED_REPEATS} recommended)"
# N workers cannot do more than N times the work of one; 1.005 is what rounds to 1.00.
MOST_EFFICIENCY = 1.005
IOU_BELOW = "its IoU is below that on 1 worker"
IOU_NOT_SHOWN = "its IoU is not shown to match 1 worker"
IOU_REASONS = (IOU_BELOW, IOU_NOT_SHOWN)


@dataclass(frozen=True)
class Candidate:
    """A point with the numbers of all tables, how it stands, why it does not qualify, its arm's name."""

    row: Mapping[str, Any]
    standing: Standing
    reason: str
    name: str

    @property
    def framework(self) -> Framework:
        """The framework of the point."""
        framework: Framework = self.row["framework"]
        return framework

    @property
    def workers(self) -> int:
        """The worker count of the point."""
        return int(self.row["workers"])

    @property
    def throughput(self) -> float:
        """Median throughput, in the study's unit."""
        return float(self.row["throughput"])

    @property
    def series(self) -> str:
        """The framework, and its knobs where they vary."""
        return self.name + (f" ({self.row['knobs']})" if self.row["knobs"] else "")

    @property
    def detail(self) -> str:
        """The reason with all the evidence: more than a sentence can carry."""
        return f"{self.reason} ({self.row['iou_why']})" if self.reason in IOU_REASONS else self.reason

    @property
    def short(self) -> str:
        """The reason with its numbers, for a sentence."""
        if self.reason not in IOU_REASONS:
            return self.reason
        pairs = f"{self.row['pairs']} seed{'' if self.row['pairs'] == 1 else 's'} in common"
        return f"{self.reason} (difference {with_interval(self.row, 'difference')}, {pairs})"

    def __str__(self) -> str:
        return f"{self.series} on {count(self.workers)}"


def candidates_of(
    points: pd.DataFrame, between: pd.DataFrame, criteria: Criteria, names: Names
) -> list[Candidate]:
    """The points of one set of options as candidates, the largest throughput first.

    `points` has the columns of `speedup.summarise`, `cost.cost_table` and `quality.iou_table`, whose `why` is
    called `iou_why` here; `between` is `quality.iou_between_frameworks`.
    """
    missing = missing_baselines(points, names)
    rows = [{str(name): value for name, value in row.items()} for row in points.to_dict("records")]
    slow_baseline = _slow_baseline(rows, names)
    found = []
    for row in rows:
        standing = _standing(row, criteria, missing, slow_baseline)
        worse = _below_the_other(row, between, criteria, names)
        if worse and standing[0] != "excluded":
            standing = "excluded", worse
        found.append(Candidate(row, *standing, names[row["framework"]]))
    return sorted(found, key=lambda each: -each.throughput)


def _slow_baseline(rows: Sequence[Mapping[str, Any]], names: Names) -> str:
    """Why the baseline of these points, which is one for all, cannot be right; empty where it can."""
    worst = max(rows, key=lambda row: np.nan_to_num(row["efficiency_common_low"]), default=None)
    if worst is None or not worst["efficiency_common_low"] > MOST_EFFICIENCY:
        return ""
    return (
        f"the runs on 1 worker were slowed by something, for {names[worst['framework']]} on "
        f"{count(int(worst['workers']))} has an efficiency of {with_interval(worst, 'efficiency_common')}, "
        "more than there can be: measure them again, on the same hosts and beside the larger counts"
    )


def _below_the_other(row: Mapping[str, Any], between: pd.DataFrame, criteria: Criteria, names: Names) -> str:
    """That the other framework reaches a better IoU on as many workers, by more than the margin."""
    own, other = ("native", "horovod") if row["framework"] == "pytorch_native" else ("horovod", "native")
    sign = 1.0 if own == "native" else -1.0
    here = between[
        (between["options"] == row["options"])
        & (between[f"{own}_knobs"] == row["knobs"])
        & (between["workers"] == row["workers"])
    ]
    for found in here.to_dict("records"):
        ends = sorted(sign * float(found[name]) for name in ("difference_low", "difference_high"))
        if ends[1] < -criteria.iou_margin:
            name = names["horovod" if other == "horovod" else "pytorch_native"]
            return (
                f"its IoU is below that of {name} on as many workers (difference "
                f"{sign * float(found['difference']):.3f} [{ends[0]:.3f}, {ends[1]:.3f}])"
            )
    return ""


def missing_baselines(points: pd.DataFrame, names: Names) -> list[str]:
    """The frameworks that have points here, but none on 1 worker."""
    with_one = set(points.loc[points["workers"] == 1, "framework"])
    return [names[each] for each in names if each in set(points["framework"]) and each not in with_one]


def _standing(
    row: Mapping[str, Any], criteria: Criteria, missing: Sequence[str], slow_baseline: str
) -> tuple[Standing, str]:
    """How a point stands; evidence against it goes before missing evidence."""
    floor, low, high = criteria.efficiency_floor, row["efficiency_common_low"], row["efficiency_common_high"]
    efficiency = f"its efficiency of {with_interval(row, 'efficiency_common')}"
    if row["diverged"]:
        return "excluded", f"{row['diverged']} of its {row['repeats'] + row['diverged']} runs diverged"
    if row["non_inferior"] == "no":
        return "excluded", IOU_BELOW
    if high < floor:
        return "excluded", f"{efficiency} is below the floor of {floor:g}"
    if row["repeats"] < FEWEST_REPEATS:
        return "undecided", f"it has {row['repeats']} of {REPEATS_NEEDED}"
    if missing:
        return "undecided", f"its efficiency is unknown without {' and '.join(missing)} on 1 worker"
    if math.isnan(low):
        return "undecided", f"{efficiency} has no interval: run {REPEATS_NEEDED} on 1 worker"
    if slow_baseline and row["workers"] > 1:
        return "undecided", slow_baseline
    if low < floor:
        return "undecided", f"{efficiency} may be below the floor of {floor:g}: run more repeats"
    if row["non_inferior"] == "not shown":
        return "undecided", IOU_NOT_SHOWN
    return "qualifies", ""


def with_interval(row: Mapping[Any, Any], name: str, digits: int = 3) -> str:
    """A number of a row to so many digits, its interval to as many decimals: "0.870 [0.853, 0.890]"."""
    value, low, high = (float(row[f"{name}{suffix}"]) for suffix in ("", "_low", "_high"))
    if math.isnan(value):
        return "unknown"
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    decimals = max(0, digits - 1 - magnitude)
    interval = "" if math.isnan(low) else f" [{low:.{decimals}f}, {high:.{decimals}f}]"
    return f"{value:.{decimals}f}{interval}"


def count(workers: int) -> str:
    """So many workers, in words."""
    return f"{workers} worker{'' if workers == 1 else 's'}"
