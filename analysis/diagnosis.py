"""The diagnosis: what costs efficiency at the largest worker count of each series, and what to try next.

A rule that lacks its evidence says nothing; from 3 repeats on that includes an interval of the overhead.
Where other programs had the machine, that alone is said of a series: their load looks like every other cause.
There is no rule on broadcasts of batch-norm buffers: neither framework broadcasts them here
(forward_sync_buffers is off, and Horovod never does). docs/statistics.md has what the rules find in studies
where nothing is wrong.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.budget import CONTENDED, CONTENDED_PARTS, series_at
from analysis.facts import is_sharing
from analysis.point_facts import EXPLAINS, Numbers, PointFacts, point_facts
from analysis.stats import CONFIDENCE, UNKNOWN_INTERVAL, Interval
from analysis.study import NAN, POINT, SERIES, Study
from analysis.text import percent
from unet_scaling.study.config import Framework
from unet_scaling.study.disturbance import DISTURBED_SHARE

# Of the point's worker time, and by judgement, as every threshold of the rules for which no measurement is
# named: at 2 % noise of a launch 5 repeats show a difference of 3 % in about half of all studies
# (docs/statistics.md), so that the effect of a cure for less could not be seen.
REPORTED_OVERHEAD = 0.03
# Of the point's worker time, at the low end of its interval as `_significant` has it: then no noise of
# launches blames more than 5 % of studies without any difference (docs/statistics.md).
LEAST_SHOWN_OVERHEAD = 0.01
# What takes time on 1 worker too is longer or shorter with the pace of each launch as a whole: without an
# interval nothing is known of it. On 1 worker there is no wire and nobody to wait for.
VARIES_WITH_THE_PACE = ("compute", "data_wait")
# Of a step. A quarter of it in wait for images is worth a cache, however well the point scales.
INPUT_BOUND = 0.25
# Of worker time. More than any overhead has to have: images come from a disk that other work may share.
INPUT_SLOWER = 0.05
# Of the training thread's time: what also counts as a disturbance where other processes take it.
WAITS_FOR_A_CORE = 0.05
# Of the cores' time, where the kernel does not tell how long a thread waited for a core. Twice the above, as
# helpers that compute while the training thread syncs take nothing from it.
HELPERS_COMPUTE = 0.10
# Of the cores' time, above the communication threads' part in it: then other helpers matter beside them.
OTHER_HELPERS_COMPUTE = 0.03
# Relative. Clocks nearer than this are equal: virtual machines report one constant.
CLOCKS_DIFFER = 0.02
# Their processes can be told to give up the core while they wait; MPICH's poll all the same.
YIELDING_MPI = ("Open MPI", "Intel")
# Ratio of the wire to its floor, one message of all gradients. Several messages and the gaps between them
# cost up to about this; beyond it the way a library splits and schedules them is worth tuning.
FAR_ABOVE_FLOOR = 2.0
# Of a step on 1 worker. It has nobody to wait for, so that any sync that shows is the library's own.
NEGOTIATION_ALONE = 0.01
# Of worker time. A wire near its floor is a property of the network: named only where it costs a tenth.
LITTLE_WORK = 0.10
WIRE_KNOBS: Mapping[Framework, str] = {
    "horovod": "horovod.fusion_threshold_mb (why_fusion.toml), cycle_time_ms (why_cycle_time.toml)",
    "pytorch_native": "pytorch_native.bucket_cap_mb (why_bucket.toml)",
    "lightning": "lightning.bucket_cap_mb",
    "accelerate": "accelerate.bucket_cap_mb",
}
DIAGNOSIS_COLUMNS = (
    "rule", "options", "framework", "knobs", "workers", "at_stake", "at_stake_low", "at_stake_high",
    "finding", "evidence", "try_next",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """A cause of overhead: the share of worker time it is about, the evidence, and what to try next.

    `at_stake` is what is lost against 1 worker, or of what is there on 1 worker too its share; its interval
    is NaN below 3 repeats, and where no interval of the overhead budget is of it alone.
    """

    at_stake: float
    finding: str
    evidence: str
    try_next: str
    at_stake_low: float = NAN
    at_stake_high: float = NAN


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Cause):
    """One cause at a point; `at_stake` is a share of its worker time, with its interval; NaN if not known."""

    rule: str
    options: str
    framework: Framework
    knobs: str
    workers: int

    def __str__(self) -> str:
        place = series_at("", self.framework, self.knobs, self.workers)
        return f"{place}: {self.finding} ({self.evidence}). Try {self.try_next}"


def diagnose(study: Study, budget: pd.DataFrame, network: pd.DataFrame) -> list[Diagnosis]:
    """Return what the rules find, most at stake first; `budget` and `network` are tables of this study.

    Before them stand the points whose runs were refused because two workers had one device: of each, the
    first run. On a busy machine only those rules speak that do not depend on times.
    """
    refused = study.left_out[study.left_out["reason"].map(is_sharing).astype(bool)]
    shared = [
        Diagnosis(
            NAN,
            "two workers share a device, so each has half of it",
            f"{row['run']}: {row['reason']}",
            "one device and its own cores for each worker: --gpus-per-task and --cpus-per-task",
            rule="shared device",
            **{name: row[name] for name in SERIES},
            workers=int(row["workers"]),
        )
        for row in refused.drop_duplicates(POINT).to_dict("records")
    ]
    found = []
    for facts in point_facts(study, budget, network):
        is_busy = machine_busy(facts) is not None
        place = {name: getattr(facts, name) for name in POINT}
        for rule, judge in RULES.items():
            cause = judge(facts) if not is_busy or rule in RULES_OF_A_BUSY_MACHINE else None
            if cause:
                found.append(Diagnosis(**vars(cause), rule=rule, **place))
    found.sort(key=lambda each: math.inf if math.isnan(each.at_stake) else -each.at_stake)
    return [*shared, *found]


def diagnosis_table(diagnoses: list[Diagnosis]) -> pd.DataFrame:
    """Return one row per diagnosis: DIAGNOSIS_COLUMNS."""
    return pd.DataFrame(map(vars, diagnoses), columns=list(DIAGNOSIS_COLUMNS))


def _interval(numbers: Numbers, part: str) -> Interval:
    return numbers[f"{part}_low"], numbers[f"{part}_high"]


def _significant(facts: PointFacts, part: str, explained: float = 0.0) -> bool:
    """Return whether a part has enough overhead beyond what is `explained` by other causes, and it is shown.

    From 3 repeats on an interval has to lie clearly above 0. Of what varies with the pace it is widened by
    Student's t over the normal quantile, since a bootstrap of few launches is as much too narrow (Hesterberg,
    What Teachers Should Know About the Bootstrap, 2015, section 4.1.2).
    """
    overhead = facts.overhead[part]
    low = facts.overhead[f"{part}_low"]
    if part in VARIES_WITH_THE_PACE and facts.alone is not None:
        if math.isnan(low):
            return False
        outside = (1 - CONFIDENCE) / 2
        freedom = min(facts.launches, facts.alone.launches) - 1
        low = overhead - (overhead - low) * stats.t.isf(outside, freedom) / stats.norm.isf(outside)
    return bool(overhead - explained >= REPORTED_OVERHEAD and not low - explained < LEAST_SHOWN_OVERHEAD)


def _milliseconds(seconds: float) -> str:
    """Return a time of a step as text: "145 ms", or "1.2 s" from a second on."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _contended(facts: PointFacts) -> bool:
    """Return whether the wait for a core that its own helpers had can be half of the overhead.

    Where a kernel does not tell how long the training thread waited: whether the helpers' work can. How often
    a thread is taken off its core is no evidence: Linux counts each yield of a polling thread as that.
    """
    waits, helpers = (facts.more_than_alone(name) for name in ("runqueue", "helpers"))
    half = EXPLAINS * facts.overhead[CONTENDED]
    if not math.isnan(facts.processor["runqueue"]):
        return min(waits, helpers) >= max(WAITS_FOR_A_CORE, half)
    return helpers >= max(HELPERS_COMPUTE, half)


def _most_for_cores(facts: PointFacts) -> float:
    """Return the most of the overhead that lack of cores can explain, whoever had them; infinite if unknown.

    Where a kernel does not tell how long the training thread waited, all that others and its helpers had.
    """
    waits, helpers, busy = (facts.more_than_alone(name) for name in ("runqueue_most", "helpers", "busy"))
    had = waits if not math.isnan(waits) else helpers + (0.0 if math.isnan(busy) else busy)
    return math.inf if math.isnan(had) else max(0.0, had, busy)


def _is_not_for_cores(facts: PointFacts, part: str, explained: float = 0.0) -> bool:
    """Return whether enough of a part's overhead is left, and the larger half, if all waits hit this part."""
    most = _most_for_cores(facts)
    larger = most < EXPLAINS * (facts.overhead[part] - explained)
    return larger and _significant(facts, part, explained + most)


def machine_busy(facts: PointFacts) -> Cause | None:
    """Other programs took the cores, at this point or on the 1 worker that it is compared with."""
    points = [facts, *([facts.alone] if facts.alone else [])]
    disturbed = sum(point.busy_launches for point in points)
    if not disturbed:
        return None
    launches = sum(point.launches for point in points)
    busy = max(point.busiest for point in points if point.busy_launches)
    lost = f"{disturbed} of {launches} launches lost {percent(DISTURBED_SHARE)} or more"
    return Cause(
        busy,
        f"the machine was busy: up to {percent(busy)} of a launch's time went to other processes",
        f"{lost}; no framework is judged by them",
        "the same study without other work on the machine: submit it again with --repeat-disturbed",
    )


def input_bound(facts: PointFacts) -> Cause | None:
    share = facts.shares["data_wait"]
    overhead = facts.overhead["data_wait"]
    is_bound = share >= INPUT_BOUND
    if not is_bound and not (overhead >= INPUT_SLOWER and _is_not_for_cores(facts, "data_wait")):
        return None
    found = "the samples of a task of its own are loaded in the training process"
    cure = "samples that are prepared before and kept in memory, or more cores per worker"
    if not facts.point.has_own_task:
        loading = facts.point.data.loading
        found = f"data.loading = {loading!r}"
        faster = 'data.loading = "cache" (why_decoding.toml)'
        faster = faster if loading == "decode" else "more cores per worker"
        cure = f"{faster}; python -m unet_scaling.profile STUDY.toml names the slow stage"
    more = "" if math.isnan(overhead) else f", {percent(overhead)} of it more than on 1 worker"
    step = _milliseconds(facts.step_seconds)
    return Cause(
        share if is_bound else overhead,
        f"workers wait for {facts.point.sample}s",
        f"data wait is {percent(share)} of a step of {step}{more}; {found}",
        cure,
        *_interval(facts.shares if is_bound else facts.overhead, "data_wait"),
    )


def core_contention(facts: PointFacts) -> Cause | None:
    overhead = facts.overhead[CONTENDED]
    # That a thread waited is counted in every launch, whatever its pace: no wider interval is asked for.
    lows = [facts.overhead[f"{part}_low"] for part in CONTENDED_PARTS]
    lost = overhead >= REPORTED_OVERHEAD and any(not low < LEAST_SHOWN_OVERHEAD for low in lows)
    if not (lost and _contended(facts)):
        return None
    processor = facts.processor
    evidence = [f"compute and data wait take {percent(overhead)} of the time more than on 1 worker"]
    if not math.isnan(processor["communication"]):
        evidence.append(f"communication threads use {percent(processor['communication'])} of the cores' time")
    if processor["helpers"] >= processor["communication"] + OTHER_HELPERS_COMPUTE:
        evidence.append(f"all threads beside the training thread use {percent(processor['helpers'])}")
    if not math.isnan(processor["runqueue"]):
        evidence.append(f"the training thread waits for a core {percent(processor['runqueue'])} of the time")
    evidence.append(f"cores per worker: {processor['cores']:g}")
    cures = []
    # Knobs that keep Horovod's thread from polling: MPICH has none, and Gloo does not poll.
    if facts.framework == "horovod" and facts.controller.casefold() != "gloo":
        if not facts.mpi or any(name in facts.mpi for name in YIELDING_MPI):
            cures.append("horovod.yield_when_idle = true (why_yield.toml)")
        cures.append('horovod.controller = "gloo" (why_controller.toml)')
    return Cause(
        overhead,
        "threads of the worker compete for its cores",
        "; ".join(evidence),
        ", ".join([*cures, "more cores per worker (why_cores.toml)"]),
        *_interval(facts.overhead, CONTENDED),
    )


def slower_compute(facts: PointFacts) -> Cause | None:
    """Return a finding where computing takes longer; its cause only as far as lack of cores is excluded.

    One slow worker alone, and exchanges of batch norm within forward, are told by other rules.
    """
    of_straggler = facts.straggler.share if facts.straggler else 0.0
    if facts.point.model.batch_norm == "sync" or _contended(facts):
        return None
    if not _significant(facts, "compute", of_straggler):
        return None
    overhead = facts.overhead["compute"] - of_straggler
    most = _most_for_cores(facts)
    waits = "unknown" if math.isinf(most) else f"at most {percent(most)}"
    why = "perhaps for lack of cores"
    cure = "more cores per worker (why_cores.toml), to see whether it stays"
    if _is_not_for_cores(facts, "compute", of_straggler):
        why = "and not for lack of cores"
        cure = "fewer workers per host, to see whether memory or the clock is what they share"
    clocks = ""
    if facts.alone is not None:
        alone, here = (each.processor["frequency_mhz"] for each in (facts.alone, facts))
        if abs(here / alone - 1) >= CLOCKS_DIFFER:
            clocks = f"; clock {alone:.0f} MHz on 1 worker, {here:.0f} MHz here"
    more = f"compute takes {percent(overhead)} of the time more than on 1 worker"
    return Cause(
        overhead,
        f"compute is slower, {why}",
        f"{more}; waiting for a core {waits}{clocks}",
        cure,
        *(UNKNOWN_INTERVAL if facts.straggler else _interval(facts.overhead, "compute")),
    )


def shared_cores(facts: PointFacts) -> Cause | None:
    if not facts.cores_shared:
        return None
    return Cause(
        facts.overhead[CONTENDED],
        "workers may run on each other's cores",
        "the headers name cores that two workers may run on",
        "--cpus-per-task and --cpu-bind=cores in the cluster file",
        *_interval(facts.overhead, CONTENDED),
    )


def straggling_host(facts: PointFacts) -> Cause | None:
    imbalance = facts.overhead["imbalance"]
    straggler = facts.straggler
    if straggler is None or not straggler.explains(imbalance) or not _significant(facts, "imbalance"):
        return None
    name = straggler.name
    longer = f"{name} works {percent(straggler.slower)} longer than the others"
    exclude = f"--exclude={name}, or " if straggler.is_host else ""
    return Cause(
        imbalance + straggler.share,
        f"all wait for {name}",
        f"imbalance takes {percent(imbalance)}; {longer} in {straggler.seen} of {straggler.runs} runs",
        f"{exclude}a look at the clock, the memory and the other jobs of {name}",
    )


def load_imbalance(facts: PointFacts) -> Cause | None:
    imbalance = facts.overhead["imbalance"]
    straggler = facts.straggler
    if not _significant(facts, "imbalance") or (straggler and straggler.explains(imbalance)):
        return None
    but = f" but {straggler.name}, by {percent(straggler.of_step)} of a step" if straggler else ""
    return Cause(
        imbalance,
        "load imbalance, no single straggler",
        f"imbalance takes {percent(imbalance)}; none is slower in most of the runs{but}",
        "training.accumulate (fewer waits), nodes without other jobs",
        *_interval(facts.overhead, "imbalance"),
    )


def wire_above_floor(facts: PointFacts) -> Cause | None:
    network = facts.network
    times = network["wire"] / network["floor"]
    if not (_significant(facts, "wire") and times >= FAR_ABOVE_FLOOR):
        return None
    wire = facts.overhead["wire"]
    floor = f"{_milliseconds(network['floor'])} that the probed network needs for the gradients"
    return Cause(
        wire,
        "the wire is far above its floor",
        f"wire takes {percent(wire)}: {_milliseconds(network['wire'])} a step, {times:.1f} times the {floor}",
        WIRE_KNOBS[facts.framework],
        *_interval(facts.overhead, "wire"),
    )


def negotiation(facts: PointFacts) -> Cause | None:
    """Return a finding where Horovod syncs for long on 1 worker: that is its own cycle and negotiation."""
    alone = facts if facts.workers == 1 else facts.alone
    if facts.framework != "horovod" or alone is None:
        return None
    share = alone.shares["wire"]
    shown = share >= NEGOTIATION_ALONE and not alone.shares["wire_low"] < NEGOTIATION_ALONE
    # A thread that waits for a core within sync looks the same.
    if not shown or alone.processor["runqueue_most"] >= EXPLAINS * share:
        return None
    synced = _milliseconds(alone.network["wire"])
    evidence = f"on 1 worker it still syncs {synced} a step, {percent(share)} of it"
    if not math.isnan(facts.network["latency"]):
        evidence += f"; an empty message takes {_milliseconds(facts.network['latency'])}"
    return Cause(
        share,
        "Horovod waits for its own cycle and negotiation",
        evidence,
        "horovod.cycle_time_ms (why_cycle_time.toml)",
        *_interval(alone.shares, "wire"),
    )


def little_work(facts: PointFacts) -> Cause | None:
    network = facts.network
    wire = facts.overhead["wire"]
    near_floor = network["wire"] / network["floor"] < FAR_ABOVE_FLOOR
    if not (wire >= LITTLE_WORK and near_floor and _significant(facts, "wire")):
        return None
    floor = f"near the floor of {_milliseconds(network['floor'])}"
    return Cause(
        wire,
        "a step has too little work for this network",
        f"wire takes {percent(wire)}, and its {_milliseconds(network['wire'])} are {floor}",
        "training.batch_per_worker or training.accumulate (why_work.toml)",
        *_interval(facts.overhead, "wire"),
    )


def synchronised_norm(facts: PointFacts) -> Cause | None:
    if facts.point.model.batch_norm != "sync" or not _is_not_for_cores(facts, "compute"):
        return None
    compute = facts.overhead["compute"]
    return Cause(
        compute,
        "compute holds batch norm's exchanges",
        f"model.batch_norm = 'sync' exchanges inside forward; compute takes {percent(compute)} more",
        "model.batch_norm = 'local'",
        *_interval(facts.overhead, "compute"),
    )


RULES: Mapping[str, Callable[[PointFacts], Cause | None]] = {
    "machine busy": machine_busy,
    "input-bound": input_bound,
    "core contention": core_contention,
    "slower compute": slower_compute,
    "shared cores": shared_cores,
    "straggling host": straggling_host,
    "load imbalance": load_imbalance,
    "wire above its floor": wire_above_floor,
    "negotiation": negotiation,
    "too little work": little_work,
    "synchronised batch norm": synchronised_norm,
}
# What the headers say, whatever the clocks do.
RULES_OF_A_BUSY_MACHINE = ("machine busy", "shared cores")
