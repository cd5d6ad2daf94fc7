"""Which framework is faster, in one sentence that claims no more than the runs support."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.findings.comparison import NO_DIFFERENCE, NOT_ENOUGH
from analysis.statistics.intervals import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import Study
from unet_scaling.config import Framework

NAMES: dict[Framework, str] = {"pytorch_native": "native DDP", "horovod": "Horovod"}
SHORT_NAMES: dict[Framework, str] = {"pytorch_native": "DDP", "horovod": "Horovod"}
MOST_REPEATS_ADVISED = 100


@dataclass(frozen=True)
class Verdict:
    """A sentence about the runs that have these options; `knobs` name the two compared series."""

    options: str
    knobs: str
    sentence: str

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
            missing = NAMES["horovod"] if len(native) else NAMES["pytorch_native"]
            found.append(Verdict(str(options), "", f"no verdict: there is no usable run of {missing}"))
        found += [
            Verdict(str(options), _knobs(*knobs), _sentence(study, runs, decided.get((options, *knobs))))
            for knobs in ((first, second) for first in native for second in horovod)
        ]
    return found


def _knobs(*labels: object) -> str:
    return " against ".join(str(label) for label in labels if label)


def _sentence(study: Study, runs: pd.DataFrame, row: Mapping[Hashable, Any] | None) -> str:
    if row is None:
        return "no verdict: the frameworks have no worker count in common"
    if row["outcome"] == NOT_ENOUGH:
        return _not_enough(study, runs, row)
    evidence = f"{row['coverage']:.0%} interval, {row['pairs']} repeats".replace("%", " %")
    decided = _no_difference if row["outcome"] == NO_DIFFERENCE else _faster
    return f"At {_count(row['workers'])} {decided(row)} ({evidence}){_advice(row)}"


def _no_difference(row: Mapping[Hashable, Any]) -> str:
    interval = f"[{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
    return f"no significant difference between native DDP and Horovod: ratio {row['ratio']:.3f} {interval}"


def _faster(row: Mapping[Hashable, Any]) -> str:
    """By how much the faster one is faster; ratios are symmetric in the two names."""
    logarithms = np.log([row["ratio"], row["ratio_low"], row["ratio_high"]])
    faster, slower = ("native DDP", "Horovod") if logarithms[0] > 0 else ("Horovod", "native DDP")
    percent, *ends = 100 * np.expm1(np.abs(logarithms))
    digits = 0 if min(ends) >= 1 else 1
    interval = ", ".join(f"{end:.{digits}f}" for end in sorted(ends))
    return f"{faster} is {percent:.{digits}f} % faster than {slower} [{interval}]"


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
        return f"{SHORT_NAMES[framework]} {throughput[workers]:.3g} {study.unit.replace(' ', '')}"
    return f"{SHORT_NAMES[framework]} {throughput[workers] / throughput[1]:.2f}x"


def _count(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"
