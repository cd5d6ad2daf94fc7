"""Which framework is faster, in one sentence that claims no more than the runs support."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.findings.comparison import NO_DIFFERENCE, NOT_ENOUGH, SUGGESTED, WITHHELD, medians_disagree
from analysis.findings.unmatched import unmatched
from analysis.statistics.intervals import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import NAMES, Study
from unet_scaling.study.config import Framework

MOST_REPEATS_ADVISED = 100


@dataclass(frozen=True)
class Verdict:
    """A sentence about the runs that have these options; `knobs` name the two compared series.

    `outcome` is that of the comparison behind it, "" where there is none.
    """

    options: str
    knobs: str
    sentence: str
    outcome: str = ""

    def __str__(self) -> str:
        compared = "; ".join(part for part in (self.options, self.knobs) if part)
        return f"[{compared}] {self.sentence}" if compared else self.sentence


def verdicts(study: Study, comparisons: pd.DataFrame) -> list[Verdict]:
    """One verdict for each set of options, and for each pair of knob settings within it.

    It is about the largest worker count that both have; `comparisons` (see comparison.py) has them all.
    """
    rows = comparisons.sort_values("workers", kind="stable")
    largest = rows.groupby(["options", "native_knobs", "horovod_knobs"], sort=False).tail(1)
    decided = {tuple(row[name] for name in largest.columns[:3]): row for row in largest.to_dict("records")}
    found = []
    for options, runs in study.runs.groupby("options", sort=False):
        native, horovod = (runs.loc[runs["framework"] == name, "knobs"].unique() for name in NAMES)
        if not (len(native) and len(horovod)):
            missing: Framework = "horovod" if len(native) else "pytorch_native"
            found.append(Verdict(str(options), "", unmatched(study, runs, missing)))
        for knobs in ((first, second) for first in native for second in horovod):
            row = decided.get((options, *knobs))
            outcome = "" if row is None else str(row["outcome"])
            found.append(Verdict(str(options), _knobs(*knobs), _sentence(study, runs, row), outcome))
    return found


def _knobs(*labels: object) -> str:
    return " against ".join(str(label) for label in labels if label)


def _sentence(study: Study, runs: pd.DataFrame, row: Mapping[Hashable, Any] | None) -> str:
    if row is None:
        return "no verdict: the frameworks have no worker count in common"
    if row["outcome"] == NOT_ENOUGH:
        return _not_enough(study, runs, row)
    decided = {NO_DIFFERENCE: _no_difference, WITHHELD: _no_claim} | dict.fromkeys(SUGGESTED, _suggested)
    claim = decided.get(row["outcome"], _faster)(row)
    return f"At {_count(row['workers'])} {claim} ({_evidence(row)}){_advice(row)}{_other_medians(row)}"


def _evidence(row: Mapping[Hashable, Any]) -> str:
    evidence = f"{row['coverage']:.0%} interval, {row['pairs']} repeats".replace("%", " %")
    if row["outcome"] in SUGGESTED:
        evidence += f"; {RECOMMENDED_REPEATS} or more can show it"
    if row["comparisons"] > 1:
        evidence += f"; corrected for {row['comparisons']:.0f} comparisons"
    return evidence


def _no_difference(row: Mapping[Hashable, Any]) -> str:
    interval = f"[{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
    return f"no significant difference between native DDP and Horovod: ratio {row['ratio']:.3f} {interval}"


def _faster(row: Mapping[Hashable, Any]) -> str:
    faster, slower, percent = _by_how_much(row)
    return f"{faster} is {percent} faster than {slower} {_percent_interval(row)}"


def _suggested(row: Mapping[Hashable, Any]) -> str:
    return f"{row['pairs']} repeats suggest that {_faster(row)}"


def _no_claim(row: Mapping[Hashable, Any]) -> str:
    faster, slower, percent = _by_how_much(row)
    measured = f"{faster} measured {percent} faster than {slower} {_percent_interval(row)}"
    return f"no verdict on speed: {measured}, but {row['doubts']}"


def _by_how_much(row: Mapping[Hashable, Any]) -> tuple[str, str, str]:
    """The faster framework, the slower one, and the difference; ratios are symmetric in the two names."""
    faster, slower = ("native DDP", "Horovod") if row["ratio_low"] > 1 else ("Horovod", "native DDP")
    percent = 100 * math.expm1(abs(math.log(row["ratio"])))
    return faster, slower, f"{percent:.{_digits(row)}f} %"


def _percent_interval(row: Mapping[Hashable, Any]) -> str:
    ends = ", ".join(f"{end:.{_digits(row)}f}" for end in sorted(_percent_ends(row)))
    return f"[{ends}]"


def _percent_ends(row: Mapping[Hashable, Any]) -> list[float]:
    return [100 * math.expm1(abs(math.log(row[name]))) for name in ("ratio_low", "ratio_high")]


def _digits(row: Mapping[Hashable, Any]) -> int:
    return 0 if min(_percent_ends(row)) >= 1 else 1


def _other_medians(row: Mapping[Hashable, Any]) -> str:
    """Why a table of medians may show the other framework ahead, where no difference is claimed."""
    if row["outcome"] != NO_DIFFERENCE or not medians_disagree(row["ratio"], row["ratio_of_medians"]):
        return ""
    return (
        f"; the medians over all launches have the ratio {row['ratio_of_medians']:.3f}: this one pairs the "
        "launches of a repeat, and repeats differ more from each other than the frameworks do"
    )


def _advice(row: Mapping[Hashable, Any]) -> str:
    """How many repeats would show the difference seen, where it is not significant."""
    needed = row["repeats_needed"]
    if row["outcome"] != NO_DIFFERENCE or math.isnan(needed):
        return ""
    number = f"about {needed:.0f}" if needed <= MOST_REPEATS_ADVISED else f"more than {MOST_REPEATS_ADVISED}"
    return f"; if this ratio and its spread are true, {number} repeats would show it in 4 of 5 studies"


def _not_enough(study: Study, runs: pd.DataFrame, row: Mapping[Hashable, Any]) -> str:
    needed = f"at least {FEWEST_REPEATS} needed ({RECOMMENDED_REPEATS} recommended)"
    workers, pairs = row["workers"], row["pairs"]
    sides = {"pytorch_native": row["native_knobs"], "horovod": row["horovod_knobs"]}
    series: dict[Framework, pd.DataFrame] = {
        name: runs[(runs["framework"] == name) & (runs["knobs"] == sides[name])] for name in NAMES
    }
    measured = ", ".join(_measured(study, name, table, workers) for name, table in series.items())
    most = min(int((table["workers"] == workers).sum()) for table in series.values())
    have = f"{pairs} per point" if pairs == most else f"{pairs} that both frameworks have"
    start = f"not enough repeats for a verdict: {have}, {needed}"
    return f"{start}; measured so far: {measured} ({_count(workers)})"


def _measured(study: Study, framework: Framework, runs: pd.DataFrame, workers: int) -> str:
    """The speed-up so far, or the throughput where there is no baseline."""
    throughput = runs.groupby("workers")[study.throughput].median()
    if 1 not in throughput.index or workers == 1:
        return f"{study.short_names[framework]} {throughput[workers]:.3g} {study.unit.replace(' ', '')}"
    return f"{study.short_names[framework]} {throughput[workers] / throughput[1]:.2f}x"


def _count(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"
