"""Reasons not to blame a framework for a difference: contradicting medians, other processes, lower clock."""

import math
from collections.abc import Hashable, Mapping

import pandas as pd

from analysis.stats import timed
from analysis.study import Study
from analysis.text import Row

# Another cause that is half of a difference leaves the frameworks less than it.
LEAST_SHARE_OF_DIFFERENCE = 0.5
OTHERS_TOOK = "other processes took "
# Published and measured ratios of the two lie between 0.5 and 2.
LARGEST_RATIO = 10.0
# Ratios closer than this name the same framework, whichever side of 1 they lie on: 1 % is within noise.
SAME_RATIO = 0.01


def doubts_of(study: Study, claimed: pd.DataFrame) -> list[str]:
    """Return for each claimed difference what speaks against the claim; empty where nothing does.

    `claimed` has the columns of `comparison.compare`.
    """
    facts = _facts(study)
    return [_contradiction(row) or _other_cause(row, facts) for row in claimed.to_dict("records")]


def medians_disagree(row: Row) -> bool:
    """Return whether the paired ratio and that of the medians name different frameworks."""
    paired = math.log(row["ratio"])
    unpaired = math.log(row["ratio_of_medians"])
    return paired * unpaired < 0 and abs(paired - unpaired) > SAME_RATIO


def _contradiction(row: Row) -> str:
    if not medians_disagree(row):
        return ""
    ratio = f"their ratio is {row['ratio_of_medians']:.3f}"
    return (
        f"the medians over all launches name the other framework ({ratio}): "
        "repeats differ more from each other than the frameworks do"
    )


def _facts(study: Study) -> Mapping[Hashable, Row]:
    """Return the medians of `busy_share` and `clock` (MHz) of each point."""
    runs = timed(study).runs
    clocks = study.budgets.groupby("run", sort=False, observed=True)["frequency_mhz"].mean()
    known = runs.assign(clock=runs["run"].map(clocks).astype(float))
    points = known.groupby(["options", "framework", "knobs", "workers"], sort=False)
    return points[["busy_share", "clock"]].median().to_dict("index")


def _other_cause(row: Row, facts: Mapping[Hashable, Row]) -> str:
    if max(row["ratio"], 1 / row["ratio"]) > LARGEST_RATIO:
        return (
            f"frameworks that do the same work differ by no factor above {LARGEST_RATIO:g}: read the records"
        )
    faster, slower = _faster_and_slower(row, facts)
    least = LEAST_SHARE_OF_DIFFERENCE * abs(math.log(row["ratio"]))
    causes = list(filter(None, (_busier(faster, slower, least), _lower_clock(faster, slower, least))))
    return " and ".join(causes) + ": that may be most of the difference" if causes else ""


def _faster_and_slower(row: Row, facts: Mapping[Hashable, Row]) -> tuple[Row, Row]:
    native = facts[row["options"], "pytorch_native", row["native_knobs"], row["workers"]]
    horovod = facts[row["options"], "horovod", row["horovod_knobs"], row["workers"]]
    return (native, horovod) if row["ratio"] > 1 else (horovod, native)


def _busier(faster: Row, slower: Row, least: float) -> str:
    more = slower["busy_share"] - faster["busy_share"]
    if not more >= least:
        return ""
    return f"{OTHERS_TOOK}{100 * more:.1f} % more of the slower framework's time"


def _lower_clock(faster: Row, slower: Row, least: float) -> str:
    if not math.log(faster["clock"] / slower["clock"]) >= least:
        return ""
    return f"its cores ran at {slower['clock']:.0f} MHz, those of the faster at {faster['clock']:.0f} MHz"
