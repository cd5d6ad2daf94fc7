"""The diagnosis: what costs efficiency at the largest worker count of each series, and what to try next.

A rule that lacks its evidence says nothing; from 3 repeats on that includes an interval of the overhead.
Where other programs had the machine, that alone is said of a series: their load looks like every other cause.
There is no rule on broadcasts of batch-norm buffers: neither framework broadcasts them here
(forward_sync_buffers is off, and Horovod never does). docs/background/statistics.md has what the rules find
in studies where nothing is wrong; analysis/templates/diagnosis.jinja has their words.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from scipy import special  # type: ignore[import-untyped]

from analysis.causes.budget import (
    CONTENDED,
    CONTENDED_PARTS,
    EXPLAINS,
    PARTS,
    difference_parts,
    host_paced_shares,
    known_points,
    run_shares,
    series_at,
    share_array,
    shares_of,
)
from analysis.judge.decide import Recommendation, slower_framework
from analysis.numbers.contrast import shows_none, sides
from analysis.numbers.stats import SHARE, apart, bounds, launches_of
from analysis.read.facts import is_sharing
from analysis.study import COMPARED, CONFIDENCE, ENDS, NAN, POINT, SERIES, Names, Study, bounded
from analysis.text import lines
from unet_scaling.format.disturbance import DISTURBED_SHARE
from unet_scaling.format.record_lines import Header
from unet_scaling.study.config import Framework

# Of the point's worker time, and by judgement, as every threshold of the rules for which no measurement is
# named: at 2 % noise of a launch 5 repeats show a difference of 3 % in about half of all studies
# (docs/background/statistics.md), so that the effect of a cure for less could not be seen.
REPORTED_OVERHEAD = 0.03
# Share of the point's worker time, at the low end of its interval (PointFacts.is_significant): then no noise
# of launches blames more than 5 % of studies without any difference (docs/background/statistics.md).
LEAST_SHOWN_OVERHEAD = 0.01
# What takes time on 1 worker too is longer or shorter with the pace of each launch as a whole: without an
# interval nothing is known of it. On 1 worker there is no wire and nobody to wait for.
VARIES_WITH_THE_PACE = ("compute", "data_wait")
# Of a step. Where a quarter of it is wait for images, any growth of it is told, whatever the cores did.
INPUT_BOUND = 0.25
# Of worker time. More than any overhead has to have: images come from a disk that other work may share.
INPUT_SLOWER = 0.05
# Of the training thread's time: what also counts as a disturbance where other processes take it.
WAITS_FOR_A_CORE = 0.05
# Of the cores' time, where the kernel does not tell how long a thread waited for a core. Twice the above, as
# helpers that compute while the training thread syncs take nothing from it.
HELPERS_COMPUTE = 0.10
# Relative, of the own work without sync. Equal workers differ by less; a slower clock or memory by more.
SLOWER = 0.05
# Ratio of the wire to its floor, one message of all gradients. Several messages and the gaps between them
# cost up to about this; beyond it the way a library splits and schedules them is worth tuning.
FAR_ABOVE_FLOOR = 2.0
# Of a step on 1 worker. It has nobody to wait for, so that any sync that shows is the library's own.
NEGOTIATION_ALONE = 0.01
# Of worker time. A wire near its floor is a property of the network: named only where it costs a tenth.
LITTLE_WORK = 0.10

# Columns of runs, and where a share of their time went.
LOST_TO = {"busy_share": "other processes", "uncounted_share": "nothing that was counted"}

# Relative. Who is slower by less has no reason to look for a cause.
LEAST_SLOWER = 0.01
# Of a difference between frameworks that lies in one of these parts, what a rule finds may be the reason.
PARTS_OF_RULES = {
    "host-paced": ("compute", "optimizer", "rest"), "input-bound": ("data_wait",),
    "core contention": ("compute", "data_wait"), "slower compute": ("compute",),
    "straggling host": ("compute", "data_wait", "imbalance"), "load imbalance": ("imbalance",),
    "wire above its floor": ("wire",), "negotiation": ("wire",), "too little work": ("wire",),
}  # fmt: skip

Numbers = Mapping[str, float]
# What is at stake, with its interval.
Stake = tuple[float, float, float]


@dataclass(frozen=True)
class Diagnosis:
    """One cause of overhead at a point, the evidence, and what to try next.

    `at_stake` is the share of the point's worker time that is lost against 1 worker, or of what is there on 1
    worker too its share; its interval is NaN below 3 repeats, and where no interval of the overhead budget is
    of it alone.
    """

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


@dataclass(frozen=True)
class Straggler:
    """A host, or a worker where all are on one, that is slower than the others in most of its runs.

    `slower` is by how much longer it works than they do, `of_step` how much of a step and `share` how much
    of all workers' time that is.
    """

    name: str
    is_host: bool
    slower: float
    of_step: float
    share: float
    seen: int
    runs: int


@dataclass(frozen=True)
class HostPaced:
    """How much more of the workers' time a point's GPUs waited for the host than those of `than` did."""

    share: float
    than: str
    than_share: float


@dataclass(frozen=True)
class PointFacts:
    """One point: its shares of worker time and their overhead against 1 worker, NaN where not known.

    header            of its first run
    shares, overhead  of each part, with `_low` and `_high`, which are NaN below 3 repeats; overhead also of
                      CONTENDED, what contention makes longer
    processor         of the workers, medians over the runs: CPU seconds of the `communication` threads, and
                      of all `helpers` beside the training thread, as shares of the cores' time; which share
                      of its time the training thread at least waited for a core outside sync, `runqueue`, or
                      in sync or not, `runqueue_most`; the share that went to other processes, `busy`;
                      `cores` and `frequency_mhz` of a worker
    network           seconds of one step on the `wire`, of its `floor` and of an empty message, `latency`
    host_paced        none where its GPUs did not wait for the host more than those of another framework
    busy_launches     those, of `launches`, that lost time; at most `busiest` of it, `lost_to` one of LOST_TO
    alone             the same series on 1 worker
    """

    key: tuple[Any, ...]
    header: Header
    step_seconds: float
    shares: Numbers
    overhead: Numbers
    processor: Numbers
    network: Numbers
    launches: int
    busy_launches: int
    busiest: float
    lost_to: str
    straggler: Straggler | None
    host_paced: HostPaced | None
    alone: "PointFacts | None"

    @property
    def disturbed(self) -> "list[PointFacts]":
        """This point and the one on 1 worker, as far as their launches lost time."""
        return [each for each in (self, self.alone) if each is not None and each.busy_launches]

    def more_than_alone(self, name: str) -> float:
        """Return how much more of the workers' time a fact of the processor is than on 1 worker.

        As the overhead is: less what 1 worker has of it, times the efficiency. NaN where one is not known.
        """
        if self.alone is None:
            return NAN
        efficiency = 1 - sum(self.overhead[part] for part in PARTS)
        return self.processor[name] - efficiency * self.alone.processor[name]

    @property
    def is_contended(self) -> bool:
        """Whether the wait for a core that its own helpers had can be half of the overhead.

        Where a kernel does not tell how long the training thread waited: whether the helpers' work can. How
        often a thread left its core is no evidence: Linux counts each yield of a polling thread.
        """
        waits, helpers = (self.more_than_alone(name) for name in ("runqueue", "helpers"))
        half = EXPLAINS * self.overhead[CONTENDED]
        if not math.isnan(self.processor["runqueue"]):
            return min(waits, helpers) >= max(WAITS_FOR_A_CORE, half)
        return helpers >= max(HELPERS_COMPUTE, half)

    @property
    def most_for_cores(self) -> float:
        """The most of the overhead that lack of cores can explain, whoever had them; infinite if unknown.

        Where a kernel does not tell how long the training thread waited, all that others and its helpers had.
        """
        waits, helpers, busy = (self.more_than_alone(name) for name in ("runqueue_most", "helpers", "busy"))
        had = waits if not math.isnan(waits) else helpers + (0.0 if math.isnan(busy) else busy)
        return math.inf if math.isnan(had) else max(0.0, had, busy)

    def is_significant(self, part: str, explained: float = 0.0) -> bool:
        """Return whether a part is shown to have enough overhead beyond what other causes `explained`.

        From 3 repeats on an interval has to lie clearly above 0. Of what varies with the pace it is widened
        by Student's t over the normal quantile, since a bootstrap of few launches is as much too narrow
        (Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 4.1.2).
        """
        overhead = self.overhead[part]
        low = self.overhead[f"{part}_low"]
        if part in VARIES_WITH_THE_PACE and self.alone is not None:
            if math.isnan(low):
                return False
            outside = (1 - CONFIDENCE) / 2
            freedom = min(self.launches, self.alone.launches) - 1
            low = overhead - (overhead - low) * special.stdtrit(freedom, outside) / special.ndtri(outside)
        return bool(overhead - explained >= REPORTED_OVERHEAD and not low - explained < LEAST_SHOWN_OVERHEAD)

    def is_not_for_cores(self, part: str, explained: float = 0.0) -> bool:
        """Return whether enough of a part's overhead is left, and the larger half, if all waits hit it."""
        most = self.most_for_cores
        larger = most < EXPLAINS * (self.overhead[part] - explained)
        return larger and self.is_significant(part, explained + most)


def diagnose(study: Study, budget: pd.DataFrame, network: pd.DataFrame) -> list[Diagnosis]:
    """Return what the rules find, most at stake first; `budget` and `network` are tables of this study.

    Before them stand the points whose runs were refused because two workers had one device: of each, the
    first run.
    """
    refused = study.left_out[study.left_out["reason"].map(is_sharing).astype(bool)]
    shared: list[tuple[Any, ...]] = [
        ("shared device", *(row[name] for name in SERIES), int(row["workers"]), NAN, NAN, NAN,
         *lines("diagnosis", rule="shared device", run=row))
        for row in refused.drop_duplicates(POINT).to_dict("records")
    ]  # fmt: skip
    found: list[tuple[Any, ...]] = []
    for facts in point_facts(study, budget, network):
        for rule, stake in causes(facts):
            words = lines("diagnosis", rule=rule, facts=facts, at_stake=stake[0], DISTURBED=DISTURBED_SHARE)
            found.append((rule, *facts.key, *stake, *words))
    diagnoses = [Diagnosis(*cells) for cells in found]
    diagnoses.sort(key=lambda each: math.inf if math.isnan(each.at_stake) else -each.at_stake)
    return [*(Diagnosis(*cells) for cells in shared), *diagnoses]


def main_causes(diagnoses: Sequence[Diagnosis], budget: pd.DataFrame) -> dict[str, Diagnosis]:
    """Return by options what most efficiency is lost by, or the busy machine that hides it.

    Not where no loss against 1 worker is known, nor of refused runs, nor what 1 worker waits for as well,
    nor what is a difference of frameworks.
    """
    known = set(budget.dropna(subset=["deviation"])[POINT].itertuples(index=False, name=None))
    lost = [each for each in diagnoses if each.rule not in ("shared device", "negotiation", "host-paced")]
    return {
        each.options: each
        for each in reversed(lost)
        if (each.options, each.framework, each.knobs, each.workers) in known
    }


def slower_arm(advice: Recommendation, diagnoses: Sequence[Diagnosis]) -> str:
    """Return which framework is slower with the most workers, why, and what cures it; empty where none is.

    Why is where their steps differ: what one arm has as well as the other is no reason.
    """
    compared = advice.candidates.compared
    rows = [(slower, row) for row in compared if (slower := slower_framework(row))]
    rows = [(slower, row) for slower, row in rows if abs(math.log(row["ratio"])) >= LEAST_SLOWER]
    if not rows:
        return ""
    slower, row = max(rows, key=lambda found: abs(math.log(found[1]["ratio"])))
    is_native = slower == COMPARED[0]
    faster = row["framework"] if is_native else COMPARED[0]
    own, others = "native_knobs", "other_knobs"
    if not is_native:
        own, others = others, own
    alike = [each for each in compared if each[others] == row[others] and slower_framework(each) != slower]
    ratios = [row[name] if is_native else 1 / row[name] for name in bounded("ratio")]
    parts = difference_parts(advice.candidates.study, row, slower)
    found, of_both = (
        [each for each in diagnoses if (each.options, each.framework, each.knobs, each.workers) == point]
        for point in (
            (advice.options, slower, row[own], row["workers"]),
            (advice.options, faster, row[others], row["workers"]),
        )
    )
    causes = (each for each in found if set(PARTS_OF_RULES.get(each.rule, ())) & set(parts or ()))
    cause = next(causes, None)
    names = advice.candidates.study.names
    (line,) = lines(
        "slower",
        row=row,
        slower=names[slower] + (f" ({row[own]})" if row[own] else ""),
        faster=names[faster] + (f" ({row[others]})" if row[others] else ""),
        share=ratios[0],
        ends=[100 * end for end in sorted(ratios[1:])],
        parts=parts,
        cause=cause,
        is_of_both=cause and cause.rule in {each.rule for each in of_both},
        cures=[each[own] for each in alike if shows_none(each) and each[own]],
        better=[each[own] for each in alike if slower_framework(each) and each[own]],
    )
    return line


def diagnosis_table(diagnoses: list[Diagnosis]) -> pd.DataFrame:
    """Return one row per diagnosis."""
    return pd.DataFrame(map(vars, diagnoses), columns=[field.name for field in fields(Diagnosis)])


def point_facts(study: Study, budget: pd.DataFrame, network: pd.DataFrame) -> Iterator[PointFacts]:
    """Yield the facts of each series' largest worker count that has a budget.

    They are of the launches that count for speed; `budget` and `network` are tables of this study.
    """
    study = study.timed
    runs = study.runs.reset_index(drop=True)
    if runs.empty:
        return
    launches = launches_of(runs, POINT)
    shares = share_array(run_shares(study))
    medians, replicated = shares_of(launches, shares)
    ends = np.clip(np.stack(bounds(replicated)), *SHARE)
    points = runs.groupby(launches.point)[POINT].first()[known_points(launches, shares)]
    paced = _paced_by_host(study.runs, study.names, study.budgets)
    for _, series in points.groupby(SERIES, sort=False):
        by_workers = series.sort_values("workers", kind="stable").index
        facts: PointFacts | None = None
        for number in dict.fromkeys((by_workers[0], by_workers[-1])):
            of_point = {
                f"{part}{end}": float(values[place, number])
                for end, values in zip(ENDS, (medians, *ends), strict=True)
                for place, part in enumerate(PARTS)
            }
            alone = facts if facts is not None and facts.header.config.workers == 1 else None
            of_runs = runs[launches.point == number]
            overhead, of_network = (_row_of(of_runs, table) for table in (budget, network))
            facts = _facts(
                study.budgets, study.headers, of_runs, of_point, overhead, of_network, alone, paced
            )
        if facts is not None:
            yield facts


def _facts(
    budgets: pd.DataFrame,
    headers: Mapping[str, Header],
    runs: pd.DataFrame,
    shares: Numbers,
    overhead: Numbers,
    network: Numbers,
    alone: PointFacts | None,
    paced: Mapping[tuple[Any, ...], HostPaced],
) -> PointFacts:
    budgets = budgets[budgets["run"].isin(runs["run"])]
    budgets = budgets.assign(core_seconds=budgets["worker_seconds"] * budgets["cores"].astype(float))
    lost = runs[list(LOST_TO)].fillna(0.0).rename(columns=LOST_TO)
    key = tuple(runs[name].tolist()[0] for name in POINT)
    return PointFacts(
        key=key,
        header=headers[runs["run"].iloc[0]],
        step_seconds=float(runs["step_seconds"].median()),
        shares=shares,
        overhead=overhead,
        processor={
            "communication": _per_run(budgets, "communication_cpu_seconds", "core_seconds"),
            "helpers": _per_run(budgets, "helper_cpu_seconds", "core_seconds"),
            "runqueue": _per_run(budgets, "waiting_seconds", "worker_seconds"),
            "runqueue_most": _per_run(budgets, "runqueue_seconds", "worker_seconds"),
            "busy": float(runs["busy_share"].median()),
            "cores": float(budgets["cores"].median()),
            "frequency_mhz": float(budgets["frequency_mhz"].median()),
        },
        network={
            "wire": _per_run(budgets, "wire_seconds", "steps"),
            "floor": network["floor_seconds"],
            "latency": network["latency_seconds"],
        },
        launches=len(runs),
        busy_launches=int((lost >= DISTURBED_SHARE).any(axis=1).sum()),
        busiest=float(lost.to_numpy(dtype=np.float64).max()),
        lost_to=str(lost.max().idxmax()),
        straggler=_straggler(budgets),
        host_paced=paced.get(key),
        alone=alone,
    )


def _row_of(runs: pd.DataFrame, table: pd.DataFrame) -> Mapping[Any, Any]:
    """Return the row that a table has of the point of these runs, NaN of what it has not."""
    rows = table[(table[POINT] == runs[POINT].iloc[0]).all(axis=1)]
    return defaultdict(lambda: NAN, rows.to_dict("records")[0] if len(rows) else {})


def _per_run(budgets: pd.DataFrame, above: str, below: str) -> float:
    """Return the median over runs of a ratio of sums over their workers; NaN where one is not known."""
    means = budgets.groupby("run", observed=True)[[above, below]].mean()
    known = budgets[[above, below]].notna().all(axis=None)
    return float((means[above] / means[below]).median()) if known else NAN


def _straggler(budgets: pd.DataFrame) -> Straggler | None:
    """Return who is slower than the others by SLOWER in more than half of its runs, the slowest one."""
    by_run = budgets.groupby("run", observed=True)
    is_host = bool(by_run["host"].nunique().gt(1).all())
    seconds = (budgets["worker_seconds"] - budgets["sync_seconds"]).astype(float)
    time = by_run["worker_seconds"].transform("sum").astype(float)
    names = budgets["host"] if is_host else "worker " + budgets["worker"].astype(str)
    own = pd.DataFrame({"run": budgets["run"].astype(str), "name": names, "seconds": seconds})
    grouped = own.assign(share=seconds / time).groupby(["run", "name"])
    # The own work without sync of each name in each run, (runs, names): mean over its workers, and its parts
    # of the time of all workers and of one.
    work = grouped["seconds"].mean().unstack("name")
    shares = grouped["share"].sum().unstack("name")
    of_step = budgets["worker"].nunique() * grouped["share"].mean().unstack("name")
    slow = []
    for name in work.columns:
        excess = (work[name] / work.drop(columns=name).median(axis=1) - 1).dropna()
        seen = excess[excess > SLOWER]
        if 2 * len(seen) > len(excess):
            longer = seen / (1 + seen)
            lost, share = (float((part[name] * longer).median()) for part in (of_step, shares))
            slow.append(Straggler(name, is_host, float(seen.median()), lost, share, len(seen), len(excess)))
    return max(slow, key=lambda straggler: straggler.slower, default=None)


def _paced_by_host(
    runs: pd.DataFrame, names: Names, budgets: pd.DataFrame
) -> dict[tuple[Any, ...], HostPaced]:
    """Return by POINT where GPUs waited for the host more than native DDP's or another framework's there did.

    What both have is no cause of a difference: only where it differs by more than chance is it one.
    """
    runs = runs.assign(paced=runs["run"].map(host_paced_shares(budgets)))
    found: dict[tuple[Any, ...], HostPaced] = {}
    for pair, both in sides(runs.to_dict("records")).items():
        shares = [np.array([row["paced"] for row in side], dtype=np.float64) for side in both]
        is_known = not any(np.isnan(each).any() for each in shares)
        if not is_known or not apart(shares[0], shares[1], REPORTED_OVERHEAD):
            continue
        arms = ((COMPARED[0], pair.native_knobs), (pair.framework, pair.other_knobs))
        more = int(shares[1].mean() > shares[0].mean())
        own, other = float(shares[more].mean()), float(shares[1 - more].mean())
        excess = HostPaced(own - other, names[arms[1 - more][0]], other)
        key = (pair.options, *arms[more], pair.workers)
        found[key] = max(found.get(key, excess), excess, key=lambda each: each.share)
    return found


def causes(facts: PointFacts) -> Iterator[tuple[str, Stake]]:
    """Yield the rules that find their evidence at a point, each with what is at stake.

    On a busy machine only what does not depend on times is told.
    """
    config, overhead, straggler = facts.header.config, facts.overhead, facts.straggler
    paced = facts.host_paced
    if facts.disturbed:
        yield "machine busy", (max(each.busiest for each in facts.disturbed), NAN, NAN)
    elif paced:
        yield "host-paced", (paced.share, NAN, NAN)
    input_bound = None if facts.disturbed else _input_bound(facts)
    # A GPU that has caught up with the host idles in data wait, too, for as long as that gathers a batch.
    if input_bound and not (paced and paced.share >= input_bound[0]):
        yield "input-bound", input_bound
    # That a thread waited is counted in every launch, whatever its pace: no wider interval is asked for.
    is_shown = any(not overhead[f"{part}_low"] < LEAST_SHOWN_OVERHEAD for part in CONTENDED_PARTS)
    if not facts.disturbed and overhead[CONTENDED] >= REPORTED_OVERHEAD and is_shown and facts.is_contended:
        yield "core contention", _stake(overhead, CONTENDED)
    if facts.disturbed:
        return
    # A synchronised batch norm exchanges inside of compute.
    exchanges = config.model.batch_norm == "sync"
    of_straggler = straggler.share if straggler else 0.0
    if not exchanges and not facts.is_contended and facts.is_significant("compute", of_straggler):
        slower = overhead["compute"] - of_straggler
        yield "slower compute", (slower, NAN, NAN) if straggler else _stake(overhead, "compute")
    if facts.is_significant("imbalance"):
        if straggler and straggler.of_step >= EXPLAINS * overhead["imbalance"]:
            yield "straggling host", (overhead["imbalance"] + straggler.share, NAN, NAN)
        else:
            yield "load imbalance", _stake(overhead, "imbalance")
    above_floor = facts.network["wire"] / facts.network["floor"]
    if above_floor >= FAR_ABOVE_FLOOR and facts.is_significant("wire"):
        yield "wire above its floor", _stake(overhead, "wire")
    if above_floor < FAR_ABOVE_FLOOR and overhead["wire"] >= LITTLE_WORK and facts.is_significant("wire"):
        yield "too little work", _stake(overhead, "wire")
    alone = facts if config.workers == 1 else facts.alone
    if config.framework == "horovod" and alone:
        # It waits for nobody: this is Horovod's own cycle. A thread that waits for a core looks the same.
        share, low, high = _stake(alone.shares, "wire")
        is_own = not low < NEGOTIATION_ALONE and not alone.processor["runqueue_most"] >= EXPLAINS * share
        if share >= NEGOTIATION_ALONE and is_own:
            yield "negotiation", (share, low, high)


def _input_bound(facts: PointFacts) -> Stake | None:
    """Return what is at stake where workers wait for samples."""
    overhead = facts.overhead
    is_bound = facts.shares["data_wait"] >= INPUT_BOUND
    grew_without_interval = math.isnan(overhead["data_wait_low"]) and overhead["data_wait"] >= INPUT_SLOWER
    if is_bound and math.isnan(overhead["data_wait"]):
        return _stake(facts.shares, "data_wait")
    # What 1 worker waits for as long is no cause of lost efficiency.
    if (is_bound and (facts.is_significant("data_wait") or grew_without_interval)) or (
        overhead["data_wait"] >= INPUT_SLOWER and facts.is_not_for_cores("data_wait")
    ):
        return _stake(overhead, "data_wait")
    return None


def _stake(numbers: Numbers, part: str) -> Stake:
    return numbers[part], numbers[f"{part}_low"], numbers[f"{part}_high"]
