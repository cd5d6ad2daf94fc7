"""Where the time goes, in words: rules that each cite their evidence and name what to try next.

A rule looks at one point, the largest worker count of a series. `at_stake` is the share of its worker time
that the finding is about: what is lost against 1 worker, or for what is there on 1 worker too its share.
A rule that lacks its evidence says nothing: from 3 repeats on that includes an interval of the loss above
1 %. Where other programs had the machine, that alone is said of a series, since their load looks like
every other finding. There is no rule on broadcasts of batch-norm buffers: neither framework broadcasts them
here (forward_sync_buffers is off, and Horovod never does).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.budget.point_facts import PointFacts, Straggler, point_facts
from analysis.loading.fairness import is_sharing
from analysis.study import NAMES, POINT, Study
from unet_scaling.study.disturbance import DISTURBED_SHARE

WORTH_SAYING = 0.03
INPUT_BOUND, INPUT_SLOWER = 0.25, 0.05
# Of the worker's time; the second where the kernel does not tell how long a thread waited for a core.
WAITS_FOR_A_CORE, HELPER_TAKES = 0.05, 0.10
# Clocks nearer than this are equal: virtual machines report one constant.
CLOCKS_DIFFER = 0.02
# Their processes can be told to give up the core while they wait; MPICH's poll all the same.
YIELDING_MPI = ("Open MPI", "Intel")
EXPLAINS = 0.5
# Of worker time. An interval of 5 launches promises 94 %, and a study has two frameworks: with 0 up to 8 % of
# studies without any difference were blamed (benchmarks/false_diagnoses.py), with this 3.5 % of the same.
LEAST_SHOWN = 0.01
ABOVE_FLOOR = 2.0
NEGOTIATION_ALONE = 0.01
LITTLE_WORK = 0.10
DIAGNOSIS_COLUMNS = (
    "rule", "options", "framework", "knobs", "workers", "at_stake", "finding", "evidence", "try_next",
)  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """One finding about a point; `at_stake` is a share of its worker time, NaN where not known."""

    rule: str
    options: str
    framework: str
    knobs: str
    workers: int
    at_stake: float
    finding: str
    evidence: str
    try_next: str

    def __str__(self) -> str:
        name = next(text for key, text in NAMES.items() if key == self.framework)
        series = ", ".join(part for part in (name, self.knobs) if part)
        where = f"{series} on {_count(self.workers)}"
        return f"{where}: {self.finding} ({self.evidence}). Try {self.try_next}"


@dataclass(frozen=True)
class Finding:
    """What a rule found: share of worker time, what is so, the numbers that show it, what to try."""

    at_stake: float
    finding: str
    evidence: str
    try_next: str


Rule = Callable[[PointFacts], Finding | None]


def diagnose(study: Study, budget: pd.DataFrame, network: pd.DataFrame) -> list[Diagnosis]:
    """What the rules find, most at stake first; `budget` and `network` are the tables of this study."""
    found = [
        Diagnosis(rule, facts.options, facts.framework, facts.knobs, facts.workers, **vars(finding))
        for facts in point_facts(study, budget, network)
        for rule, finding in _findings(facts).items()
    ]
    found.sort(key=lambda each: math.inf if math.isnan(each.at_stake) else -each.at_stake)
    return [*_refused_for_sharing(study), *found]


def _findings(facts: PointFacts) -> dict[str, Finding]:
    """What each rule found; where the machine was busy, only what does not depend on times."""
    judges = RULES_OF_A_BUSY_MACHINE if _machine_busy(facts) else RULES
    return {rule: found for rule, judge in judges.items() if (found := judge(facts)) is not None}


def diagnosis_table(diagnoses: list[Diagnosis]) -> pd.DataFrame:
    """One row per finding: DIAGNOSIS_COLUMNS."""
    return pd.DataFrame([vars(each) for each in diagnoses], columns=list(DIAGNOSIS_COLUMNS))


def _refused_for_sharing(study: Study) -> Iterator[Diagnosis]:
    """Points whose runs were refused because two workers had one device: of each, the first run."""
    refused = study.left_out[study.left_out["reason"].map(is_sharing).astype(bool)]
    for row in refused.drop_duplicates(POINT).to_dict("records"):
        place = str(row["options"]), str(row["framework"]), str(row["knobs"]), int(row["workers"])
        cure = "one device and its own cores for each worker: --gpus-per-task and --cpus-per-task"
        told = "two workers share a device, so each has half of it"
        yield Diagnosis("shared device", *place, math.nan, told, f"{row['run']}: {row['reason']}", cure)


def _machine_busy(facts: PointFacts) -> Finding | None:
    """Other programs took the cores, at this point or on the 1 worker that it is compared with."""
    points = [each for each in (facts, facts.alone) if each is not None]
    disturbed = sum(each.busy_launches for each in points)
    launches = sum(each.launches for each in points)
    if not disturbed:
        return None
    busy = max(each.processor.busy for each in points if not math.isnan(each.processor.busy))
    least = _percent(DISTURBED_SHARE)
    evidence = f"{disturbed} of {launches} launches lost {least} or more; no framework is judged by them"
    cure = "the same study without other work on the machine: submit it again with --repeat-disturbed"
    finding = f"the machine was busy: {_percent(busy)} of the workers' time went to other processes"
    return Finding(busy, finding, evidence, cure)


def _shown(facts: PointFacts, *parts: str, beside: float = 0.0) -> bool:
    """Whether the launches show a loss: from 3 repeats on their interval has to lie above 0, clearly.

    Of several parts one suffices; `beside` is what else explains a part of it.
    """
    lows = [facts.lows[part] - beside for part in parts]
    return any(math.isnan(low) or low >= LEAST_SHOWN for low in lows)


def _input_bound(facts: PointFacts) -> Finding | None:
    share, lost = facts.shares["data_wait"], facts.losses["data_wait"]
    slower = lost >= INPUT_SLOWER and _shown(facts, "data_wait") and not _contended(facts)
    if not share >= INPUT_BOUND and not slower:
        return None
    loading = facts.point.data.loading
    cache = 'data.loading = "cache" (why_decoding.toml)'
    cure = cache if loading == "decode" else "more cores per worker"
    evidence = f"data wait is {_percent(share)} of a step of {_time(facts.step_seconds)}"
    evidence += "" if math.isnan(lost) else f", {_percent(lost)} of it more than on 1 worker"
    return Finding(
        share if share >= INPUT_BOUND else lost,
        "workers wait for images",
        f"{evidence}; data.loading = {loading!r}",
        f"{cure}; python -m unet_scaling.profile STUDY.toml names the slow stage",
    )


def _core_contention(facts: PointFacts) -> Finding | None:
    lost, processor = facts.losses["compute"] + facts.losses["data_wait"], facts.processor
    if not (lost >= WORTH_SAYING and _shown(facts, "compute", "data_wait") and _contended(facts)):
        return None
    evidence = [f"compute and data wait take {_percent(lost)} of the time more than on 1 worker"]
    if not math.isnan(processor.communication):
        evidence.append(f"communication threads use {_percent(processor.communication)} of the cores' time")
    if processor.helpers >= processor.communication + WORTH_SAYING:
        evidence.append(f"all threads beside the training thread use {_percent(processor.helpers)}")
    if not math.isnan(processor.runqueue):
        evidence.append(f"the training thread waits for a core {_percent(processor.runqueue)} of the time")
    evidence.append(f"cores per worker: {processor.cores:g}")
    cures = [*_horovod_cures(facts), "more cores per worker (why_cores.toml)"]
    finding = "threads of the worker compete for its cores"
    return Finding(lost, finding, "; ".join(evidence), ", ".join(cures))


def _horovod_cures(facts: PointFacts) -> Iterator[str]:
    """Knobs that keep Horovod's thread from polling: MPICH has none, and Gloo does not poll."""
    if facts.framework != "horovod" or facts.controller.casefold() == "gloo":
        return
    if not facts.mpi or any(name in facts.mpi for name in YIELDING_MPI):
        yield "horovod.yield_when_idle = true (why_yield.toml)"
    yield 'horovod.controller = "gloo" (why_controller.toml)'


def _contended(facts: PointFacts) -> bool:
    """Whether the training thread's waiting for a core that its own helpers had can be half of what was lost.

    Where a kernel does not tell how long it waited: whether the helpers' work can. How often a thread is
    taken off its core is no evidence: Linux counts each yield of a polling thread as that.
    """
    processor = facts.processor
    half = EXPLAINS * (facts.losses["compute"] + facts.losses["data_wait"])
    if not math.isnan(processor.runqueue):
        return min(processor.runqueue, processor.helpers) >= max(WAITS_FOR_A_CORE, half)
    return processor.helpers >= max(HELPER_TAKES, half)


def _slower_compute(facts: PointFacts) -> Finding | None:
    """What one slow worker alone takes longer is told of that worker."""
    of_one = facts.straggler.share if facts.straggler else 0.0
    lost = facts.losses["compute"] - of_one
    if not lost >= WORTH_SAYING or not _shown(facts, "compute", beside=of_one) or _contended(facts):
        return None
    evidence = (
        f"compute takes {_percent(lost)} of the time more than on 1 worker; contention does not explain it"
    )
    if facts.alone is not None:
        alone, here = facts.alone.processor.frequency_mhz, facts.processor.frequency_mhz
        if abs(here / alone - 1) >= CLOCKS_DIFFER:
            evidence += f"; clock {alone:.0f} MHz on 1 worker, {here:.0f} MHz here"
    cure = "fewer workers per host, to see whether memory or the clock is what they share"
    return Finding(lost, "compute is slower, and not for lack of cores", evidence, cure)


def _shared_cores(facts: PointFacts) -> Finding | None:
    if not facts.cores_shared:
        return None
    lost = facts.losses["compute"] + facts.losses["data_wait"]
    evidence = "the headers name cores that two workers may run on"
    cure = "--cpus-per-task and --cpu-bind=cores in the cluster file"
    return Finding(lost, "workers may run on each other's cores", evidence, cure)


def _straggling_host(facts: PointFacts) -> Finding | None:
    waited, straggler = facts.losses["imbalance"], facts.straggler
    if not (waited >= WORTH_SAYING and _shown(facts, "imbalance")):
        return None
    if straggler is None or not _holds_up(straggler, waited):
        return None
    seen = f"in {straggler.seen} of {straggler.runs} runs"
    exclude = f"--exclude={straggler.name}, or " if straggler.is_host else ""
    return Finding(
        waited + straggler.share,
        f"all wait for {straggler.name}",
        f"imbalance takes {_percent(waited)}; {straggler.name} works {_percent(straggler.slower)} longer "
        f"than the others {seen}",
        f"{exclude}a look at the clock, the memory and the other jobs of {straggler.name}",
    )


def _holds_up(straggler: Straggler, waited: float) -> bool:
    """Whether what it works longer can be half of what the workers wait for each other."""
    return straggler.of_step >= EXPLAINS * waited


def _taking_turns(facts: PointFacts) -> Finding | None:
    lost, straggler = facts.losses["imbalance"], facts.straggler
    if not (lost >= WORTH_SAYING and _shown(facts, "imbalance")):
        return None
    if straggler is not None and _holds_up(straggler, lost):
        return None
    evidence = f"imbalance takes {_percent(lost)}; none is slower in most of the runs"
    if straggler is not None:
        evidence += f" but {straggler.name}, by {_percent(straggler.of_step)} of a step"
    cure = "training.accumulate (fewer waits), nodes without other jobs"
    return Finding(lost, "workers wait for each other in turn", evidence, cure)


def _wire_above_floor(facts: PointFacts) -> Finding | None:
    lost, times = facts.losses["wire"], facts.wire_seconds / facts.floor_seconds
    if not (lost >= WORTH_SAYING and times >= ABOVE_FLOOR and _shown(facts, "wire")):
        return None
    evidence = (
        f"wire takes {_percent(lost)}: {_time(facts.wire_seconds)} a step, {times:.1f} times the "
        f"{_time(facts.floor_seconds)} that the probed network needs for the gradients"
    )
    knobs = {
        "horovod": "horovod.fusion_threshold_mb (why_fusion.toml), cycle_time_ms (why_cycle_time.toml)",
        "pytorch_native": "pytorch_native.bucket_cap_mb (why_bucket.toml)",
    }
    return Finding(lost, "the wire is far above its floor", evidence, knobs[facts.framework])


def _negotiation(facts: PointFacts) -> Finding | None:
    """Horovod alone has nobody to wait for: what it syncs on 1 worker is its own cycle and negotiation."""
    alone = facts if facts.workers == 1 else facts.alone
    if facts.framework != "horovod" or alone is None or not alone.shares["wire"] >= NEGOTIATION_ALONE:
        return None
    share = alone.shares["wire"]
    evidence = f"on 1 worker it still syncs {_time(alone.wire_seconds)} a step, {_percent(share)} of it"
    if not math.isnan(facts.latency_seconds):
        evidence += f"; an empty message takes {_time(facts.latency_seconds)}"
    cure = "horovod.cycle_time_ms (why_cycle_time.toml)"
    return Finding(share, "Horovod waits for its own cycle and negotiation", evidence, cure)


def _little_work(facts: PointFacts) -> Finding | None:
    lost, times = facts.losses["wire"], facts.wire_seconds / facts.floor_seconds
    if not (lost >= LITTLE_WORK and times < ABOVE_FLOOR and _shown(facts, "wire")):
        return None
    evidence = (
        f"wire takes {_percent(lost)}, and its {_time(facts.wire_seconds)} are near the floor of "
        f"{_time(facts.floor_seconds)}"
    )
    cure = "training.batch_per_worker or training.accumulate (why_work.toml)"
    return Finding(lost, "a step has too little work for this network", evidence, cure)


def _synchronised_norm(facts: PointFacts) -> Finding | None:
    lost = facts.losses["compute"]
    if facts.point.model.batch_norm != "sync" or not (lost >= WORTH_SAYING and _shown(facts, "compute")):
        return None
    evidence = f"model.batch_norm = 'sync' exchanges inside forward; compute takes {_percent(lost)} more"
    return Finding(lost, "batch norm waits for the group", evidence, "model.batch_norm = 'local'")


# What the headers say, whatever the clocks do.
RULES_OF_A_BUSY_MACHINE: dict[str, Rule] = {
    "machine busy": _machine_busy,
    "shared cores": _shared_cores,
}

RULES: dict[str, Rule] = {
    "machine busy": _machine_busy,
    "input-bound": _input_bound,
    "core contention": _core_contention,
    "slower compute": _slower_compute,
    "shared cores": _shared_cores,
    "straggling host": _straggling_host,
    "taking turns": _taking_turns,
    "wire above its floor": _wire_above_floor,
    "negotiation": _negotiation,
    "too little work": _little_work,
    "synchronised batch norm": _synchronised_norm,
}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _count(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"
