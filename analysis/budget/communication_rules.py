"""Rules of the diagnosis about waiting: for other workers, for the wire, for Horovod's own cycle."""

import math
from collections.abc import Mapping

from analysis.budget.causes import EXPLAINS, Cause, milliseconds, significant
from analysis.budget.point_facts import PointFacts, Straggler
from analysis.text import percent
from unet_scaling.study.config import Framework

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


def straggling_host(facts: PointFacts) -> Cause | None:
    imbalance = facts.overhead["imbalance"]
    straggler = facts.straggler
    if straggler is None or not _explains(straggler, imbalance) or not significant(facts, "imbalance"):
        return None
    name = straggler.name
    exclude = f"--exclude={name}, or " if straggler.is_host else ""
    return Cause(
        imbalance + straggler.share,
        f"all wait for {name}",
        f"imbalance takes {percent(imbalance)}; {name} works {percent(straggler.slower)} longer "
        f"than the others in {straggler.seen} of {straggler.runs} runs",
        f"{exclude}a look at the clock, the memory and the other jobs of {name}",
    )


def _explains(straggler: Straggler, imbalance: float) -> bool:
    """Return whether what it works longer can be half of what the workers wait for each other."""
    return straggler.of_step >= EXPLAINS * imbalance


def load_imbalance(facts: PointFacts) -> Cause | None:
    imbalance = facts.overhead["imbalance"]
    straggler = facts.straggler
    if not significant(facts, "imbalance") or (straggler and _explains(straggler, imbalance)):
        return None
    but = f" but {straggler.name}, by {percent(straggler.of_step)} of a step" if straggler else ""
    return Cause(
        imbalance,
        "load imbalance, no single straggler",
        f"imbalance takes {percent(imbalance)}; none is slower in most of the runs{but}",
        "training.accumulate (fewer waits), nodes without other jobs",
        *facts.overhead_intervals["imbalance"],
    )


def wire_above_floor(facts: PointFacts) -> Cause | None:
    times = facts.wire_seconds / facts.floor_seconds
    if not (significant(facts, "wire") and times >= FAR_ABOVE_FLOOR):
        return None
    wire = facts.overhead["wire"]
    return Cause(
        wire,
        "the wire is far above its floor",
        f"wire takes {percent(wire)}: {milliseconds(facts.wire_seconds)} a step, {times:.1f} times the "
        f"{milliseconds(facts.floor_seconds)} that the probed network needs for the gradients",
        WIRE_KNOBS[facts.framework],
        *facts.overhead_intervals["wire"],
    )


def negotiation(facts: PointFacts) -> Cause | None:
    """Return a finding where Horovod syncs for long on 1 worker: that is its own cycle and negotiation."""
    alone = facts if facts.workers == 1 else facts.alone
    if facts.framework != "horovod" or alone is None:
        return None
    share = alone.shares["wire"]
    low = alone.share_intervals["wire"][0]
    shown = share >= NEGOTIATION_ALONE and not low < NEGOTIATION_ALONE
    # A thread that waits for a core within sync looks the same.
    if not shown or alone.processor.runqueue_most >= EXPLAINS * share:
        return None
    evidence = f"on 1 worker it still syncs {milliseconds(alone.wire_seconds)} a step, {percent(share)} of it"
    if not math.isnan(facts.latency_seconds):
        evidence += f"; an empty message takes {milliseconds(facts.latency_seconds)}"
    return Cause(
        share,
        "Horovod waits for its own cycle and negotiation",
        evidence,
        "horovod.cycle_time_ms (why_cycle_time.toml)",
        *alone.share_intervals["wire"],
    )


def little_work(facts: PointFacts) -> Cause | None:
    wire = facts.overhead["wire"]
    near_floor = facts.wire_seconds / facts.floor_seconds < FAR_ABOVE_FLOOR
    if not (wire >= LITTLE_WORK and near_floor and significant(facts, "wire")):
        return None
    return Cause(
        wire,
        "a step has too little work for this network",
        f"wire takes {percent(wire)}, and its {milliseconds(facts.wire_seconds)} are near the floor of "
        f"{milliseconds(facts.floor_seconds)}",
        "training.batch_per_worker or training.accumulate (why_work.toml)",
        *facts.overhead_intervals["wire"],
    )
