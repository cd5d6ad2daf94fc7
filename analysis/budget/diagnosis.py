"""The diagnosis: what costs efficiency at the largest worker count of each series, and what to try next.

A rule that lacks its evidence says nothing; from 3 repeats on that includes an interval of the overhead.
Where other programs had the machine, that alone is said of a series: their load looks like every other cause.
There is no rule on broadcasts of batch-norm buffers: neither framework broadcasts them here
(forward_sync_buffers is off, and Horovod never does). docs/statistics.md has what the rules find in studies
where nothing is wrong.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.budget import communication_rules, worker_rules
from analysis.budget.causes import Cause
from analysis.budget.point_facts import PointFacts, point_facts
from analysis.budget.tables import series_at
from analysis.facts import is_sharing
from analysis.study import POINT, Study
from unet_scaling.study.config import Framework

Rule = Callable[[PointFacts], Cause | None]

# What the headers say, whatever the clocks do.
RULES_OF_A_BUSY_MACHINE: dict[str, Rule] = {
    "machine busy": worker_rules.machine_busy,
    "shared cores": worker_rules.shared_cores,
}
RULES: dict[str, Rule] = {
    "machine busy": worker_rules.machine_busy,
    "input-bound": worker_rules.input_bound,
    "core contention": worker_rules.core_contention,
    "slower compute": worker_rules.slower_compute,
    "shared cores": worker_rules.shared_cores,
    "straggling host": communication_rules.straggling_host,
    "load imbalance": communication_rules.load_imbalance,
    "wire above its floor": communication_rules.wire_above_floor,
    "negotiation": communication_rules.negotiation,
    "too little work": communication_rules.little_work,
    "synchronised batch norm": worker_rules.synchronised_norm,
}
DIAGNOSIS_COLUMNS = (
    "rule", "options", "framework", "knobs", "workers", "at_stake", "at_stake_low", "at_stake_high",
    "finding", "evidence", "try_next",
)  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """One cause at a point; `at_stake` is a share of its worker time, with its interval; NaN if not known."""

    rule: str
    options: str
    framework: Framework
    knobs: str
    workers: int
    at_stake: float
    at_stake_low: float
    at_stake_high: float
    finding: str
    evidence: str
    try_next: str

    def __str__(self) -> str:
        place = series_at("", self.framework, self.knobs, self.workers)
        return f"{place}: {self.finding} ({self.evidence}). Try {self.try_next}"


def diagnose(study: Study, budget: pd.DataFrame, network: pd.DataFrame) -> list[Diagnosis]:
    """Return what the rules find, most at stake first; `budget` and `network` are tables of this study."""
    diagnoses = [
        Diagnosis(rule, facts.options, facts.framework, facts.knobs, facts.workers, **vars(cause))
        for facts in point_facts(study, budget, network)
        for rule, cause in _causes(facts).items()
    ]
    diagnoses.sort(key=lambda diagnosis: _order(diagnosis.at_stake))
    return [*_refused_for_sharing(study), *diagnoses]


def _causes(facts: PointFacts) -> dict[str, Cause]:
    """Return what each rule found; on a busy machine only what does not depend on times."""
    rules = RULES_OF_A_BUSY_MACHINE if worker_rules.machine_busy(facts) else RULES
    return {name: cause for name, rule in rules.items() if (cause := rule(facts)) is not None}


def diagnosis_table(diagnoses: list[Diagnosis]) -> pd.DataFrame:
    """Return one row per diagnosis: DIAGNOSIS_COLUMNS."""
    return pd.DataFrame(map(vars, diagnoses), columns=list(DIAGNOSIS_COLUMNS))


def _order(at_stake: float) -> float:
    return math.inf if math.isnan(at_stake) else -at_stake


def _refused_for_sharing(study: Study) -> Iterator[Diagnosis]:
    """Yield the points whose runs were refused because two workers had one device: of each, the first run."""
    refused = study.left_out[study.left_out["reason"].map(is_sharing).astype(bool)]
    for row in refused.drop_duplicates(POINT).to_dict("records"):
        yield Diagnosis(
            rule="shared device",
            options=str(row["options"]),
            framework=row["framework"],
            knobs=str(row["knobs"]),
            workers=int(row["workers"]),
            at_stake=math.nan,
            at_stake_low=math.nan,
            at_stake_high=math.nan,
            finding="two workers share a device, so each has half of it",
            evidence=f"{row['run']}: {row['reason']}",
            try_next="one device and its own cores for each worker: --gpus-per-task and --cpus-per-task",
        )
