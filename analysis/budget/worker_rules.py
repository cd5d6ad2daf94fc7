"""Rules of the diagnosis about a worker's own time: the machine, images, cores and computing."""

import math
from collections.abc import Iterator

from analysis.budget.causes import (
    EXPLAINS,
    LEAST_SHOWN_OVERHEAD,
    REPORTED_OVERHEAD,
    Cause,
    milliseconds,
    significant,
)
from analysis.budget.point_facts import PointFacts
from analysis.budget.tables import CONTENDED, CONTENDED_PARTS
from analysis.stats import UNKNOWN_INTERVAL
from analysis.text import percent
from unet_scaling.study.config import RunConfig
from unet_scaling.study.disturbance import DISTURBED_SHARE

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


def machine_busy(facts: PointFacts) -> Cause | None:
    """Other programs took the cores, at this point or on the 1 worker that it is compared with."""
    points = [facts, *([facts.alone] if facts.alone else [])]
    disturbed = sum(point.busy_launches for point in points)
    if not disturbed:
        return None
    launches = sum(point.launches for point in points)
    busy = max(point.busiest for point in points if point.busy_launches)
    least = percent(DISTURBED_SHARE)
    return Cause(
        busy,
        f"the machine was busy: up to {percent(busy)} of a launch's time went to other processes",
        f"{disturbed} of {launches} launches lost {least} or more; no framework is judged by them",
        "the same study without other work on the machine: submit it again with --repeat-disturbed",
    )


def input_bound(facts: PointFacts) -> Cause | None:
    share = facts.shares["data_wait"]
    overhead = facts.overhead["data_wait"]
    slower = overhead >= INPUT_SLOWER and _is_not_for_cores(facts, "data_wait")
    bound = share >= INPUT_BOUND
    if not bound and not slower:
        return None
    found, cure = _how_loaded(facts.point)
    more = "" if math.isnan(overhead) else f", {percent(overhead)} of it more than on 1 worker"
    intervals = facts.share_intervals if bound else facts.overhead_intervals
    return Cause(
        share if bound else overhead,
        f"workers wait for {facts.point.sample}s",
        f"data wait is {percent(share)} of a step of {milliseconds(facts.step_seconds)}{more}; {found}",
        cure,
        *intervals["data_wait"],
    )


def _how_loaded(point: RunConfig) -> tuple[str, str]:
    """Return how the samples of a point are loaded, and what makes that faster."""
    if point.has_own_task:
        in_memory = "samples that are prepared before and kept in memory, or more cores per worker"
        return "the samples of a task of its own are loaded in the training process", in_memory
    loading = point.data.loading
    cache = 'data.loading = "cache" (why_decoding.toml)'
    cure = cache if loading == "decode" else "more cores per worker"
    return (
        f"data.loading = {loading!r}",
        f"{cure}; python -m unet_scaling.profile STUDY.toml names the slow stage",
    )


def core_contention(facts: PointFacts) -> Cause | None:
    overhead = facts.overhead[CONTENDED]
    # That a thread waited is counted in every launch, whatever its pace: no wider interval is asked for.
    lows = [facts.overhead_intervals[part][0] for part in CONTENDED_PARTS]
    lost = overhead >= REPORTED_OVERHEAD and any(not low < LEAST_SHOWN_OVERHEAD for low in lows)
    if not (lost and _contended(facts)):
        return None
    cures = [*_horovod_cures(facts), "more cores per worker (why_cores.toml)"]
    evidence = f"compute and data wait take {percent(overhead)} of the time more than on 1 worker"
    return Cause(
        overhead,
        "threads of the worker compete for its cores",
        "; ".join([evidence, *_thread_evidence(facts)]),
        ", ".join(cures),
        *facts.overhead_intervals[CONTENDED],
    )


def _thread_evidence(facts: PointFacts) -> Iterator[str]:
    processor = facts.processor
    if not math.isnan(processor.communication):
        yield f"communication threads use {percent(processor.communication)} of the cores' time"
    if processor.helpers >= processor.communication + OTHER_HELPERS_COMPUTE:
        yield f"all threads beside the training thread use {percent(processor.helpers)}"
    if not math.isnan(processor.runqueue):
        yield f"the training thread waits for a core {percent(processor.runqueue)} of the time"
    yield f"cores per worker: {processor.cores:g}"


def _horovod_cures(facts: PointFacts) -> Iterator[str]:
    """Yield knobs that keep Horovod's thread from polling: MPICH has none, and Gloo does not poll."""
    if facts.framework != "horovod" or facts.controller.casefold() == "gloo":
        return
    if not facts.mpi or any(name in facts.mpi for name in YIELDING_MPI):
        yield "horovod.yield_when_idle = true (why_yield.toml)"
    yield 'horovod.controller = "gloo" (why_controller.toml)'


def _contended(facts: PointFacts) -> bool:
    """Return whether the wait for a core that its own helpers had can be half of the overhead.

    Where a kernel does not tell how long the training thread waited: whether the helpers' work can. How often
    a thread is taken off its core is no evidence: Linux counts each yield of a polling thread as that.
    """
    waits, helpers = (facts.more_than_alone(name) for name in ("runqueue", "helpers"))
    half = EXPLAINS * facts.overhead[CONTENDED]
    if not math.isnan(facts.processor.runqueue):
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
    return larger and significant(facts, part, explained + most)


def slower_compute(facts: PointFacts) -> Cause | None:
    """Return a finding where computing takes longer; its cause only as far as lack of cores is excluded.

    One slow worker alone, and exchanges of batch norm within forward, are told by other rules.
    """
    of_straggler = facts.straggler.share if facts.straggler else 0.0
    if facts.point.model.batch_norm == "sync" or _contended(facts):
        return None
    if not significant(facts, "compute", of_straggler):
        return None
    overhead = facts.overhead["compute"] - of_straggler
    most = _most_for_cores(facts)
    waits = "unknown" if math.isinf(most) else f"at most {percent(most)}"
    why = "perhaps for lack of cores"
    cure = "more cores per worker (why_cores.toml), to see whether it stays"
    if _is_not_for_cores(facts, "compute", of_straggler):
        why = "and not for lack of cores"
        cure = "fewer workers per host, to see whether memory or the clock is what they share"
    return Cause(
        overhead,
        f"compute is slower, {why}",
        f"compute takes {percent(overhead)} of the time more than on 1 worker; "
        f"waiting for a core {waits}{_clocks(facts)}",
        cure,
        *(UNKNOWN_INTERVAL if facts.straggler else facts.overhead_intervals["compute"]),
    )


def _clocks(facts: PointFacts) -> str:
    if facts.alone is None:
        return ""
    alone = facts.alone.processor.frequency_mhz
    here = facts.processor.frequency_mhz
    differ = abs(here / alone - 1) >= CLOCKS_DIFFER
    return f"; clock {alone:.0f} MHz on 1 worker, {here:.0f} MHz here" if differ else ""


def shared_cores(facts: PointFacts) -> Cause | None:
    if not facts.cores_shared:
        return None
    return Cause(
        facts.overhead[CONTENDED],
        "workers may run on each other's cores",
        "the headers name cores that two workers may run on",
        "--cpus-per-task and --cpu-bind=cores in the cluster file",
        *facts.overhead_intervals[CONTENDED],
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
        *facts.overhead_intervals["compute"],
    )
