"""What cannot be in a record whose lines are all valid and in order, each with the mistake that it tells of.

Writers and readers are honest, and may be in a hurry: no rule here is against one who edits a record by hand
(docs/background/statistics.md). What a busy or paused machine can bring about is no contradiction, but a
disturbance.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np

from unet_scaling.format.disturbance import TICK_SECONDS
from unet_scaling.format.record import Record

# Forward, backward, update of the smallest network (width 1, depth 1) on 2x2 pixels take 800 microseconds on
# a processor's core, for which Python alone spends more than a tenth: a hundredth cannot be.
SHORTEST_STEP_SECONDS = 1e-5
# No job lasts so long: a century.
LONGEST_EPOCH_SECONDS = 100 * 365 * 86_400.0
# Of a dilated cluster: below it, some worker waits for a processor while it has quota left.
LEAST_IDLE_SHARE = 0.05
# The kernel checks quotas at its ticks, and settles what was used beyond them in later periods.
LARGEST_EXCESS_FACTOR = 1.25


def impossible_values(record: Record) -> Iterator[str]:
    """Yield what cannot be in a complete record; each sentence starts with the file."""
    header = record.header
    assert header is not None
    yield from impossible_epochs(record, header.config.workers, f"{header.config.sample}s")
    # Nothing reached the optimizer: a rate of 0, a network or task that detaches its loss.
    weights = [
        (0, header.initial_weights_sha256),
        *((each.epochs, each.weights_sha256) for each in record.results),
    ]
    for (first, before), (last, latest) in pairwise(weights):
        if last > first and latest == before:
            same = f"{latest[:12]}..., as after {first} epochs: nothing was trained between"
            yield f"{record.path}: after {last} epochs the SHA-256 of the weights is {same}"


def impossible_epochs(record: Record, workers: int, samples: str = "images") -> Iterator[str]:
    """Yield what cannot be in the epochs of so many workers; each sentence starts with the file.

    A recorder that lost a worker, or a clock of another unit than seconds.
    """
    for epoch in record.epochs:
        place = f"{record.path}: epoch {epoch.epoch}"
        if len(epoch.worker_seconds) != workers:
            yield f"{place}: it has the seconds of {len(epoch.worker_seconds)} workers, not of {workers}"
        if not epoch.steps * SHORTEST_STEP_SECONDS <= epoch.seconds <= LONGEST_EPOCH_SECONDS:
            done = f"{epoch.images} {samples}, {epoch.steps} steps"
            yield f"{place}: {done} in {epoch.seconds} s cannot be"


def infidelity(record: Record, stalled: Collection[int] = ()) -> str:
    """Return why the epochs in use of a run were not slowed as they should be, with both values, or nothing.

    Empty for a run of a machine at speed. A worker whose quota is used up is throttled, and rightly so: at
    speed it would have run on. A thread that polls for messages uses all of its quota and is throttled all
    the time; it takes its core there, too. So the limit of throttling follows from what was used: of the
    periods of its quota, a worker uses up no larger share than the share of its quota that it used, and in
    each it is throttled for all but the k-th part that it runs.
    """
    assert record.header is not None
    dilation = record.header.dilation
    used = [epoch for epoch in record.epochs if not epoch.warmup and epoch.epoch not in stalled]
    if dilation is None or not used:
        return ""
    sums = []
    for worker in range(len(record.header.workers)):
        rows = []
        for epoch in used:
            facts = epoch.cpu[worker] if epoch.cpu else None
            if facts is None or facts.quota is None:
                return (
                    "a dilated cluster, and how it was slowed is not recorded: train on Linux with "
                    'training.budget = "on"'
                )
            seconds, quota = epoch.worker_seconds[worker], facts.quota
            # Threads of a worker with several cores are throttled one by one, as one core on one processor
            # is.
            processors_of_a_core = 1 if facts.cores > 1 else quota.processors
            most = quota.used_seconds * (processors_of_a_core - 1 / dilation)
            rows.append((
                seconds, facts.cores * seconds, quota.used_seconds, quota.throttled_seconds,
                quota.idle_share * seconds, most, facts.thread_seconds["training"],
            ))  # fmt: skip
        sums.append(np.sum(rows, axis=0).tolist())
    return next((fault for worker, each in enumerate(sums) for fault in _slowing_faults(worker, each)), "")


def _slowing_faults(worker: int, sums: Sequence[float]) -> Iterator[str]:
    """Yield in what a worker was not slowed as it should be, by its sums in seconds of the slowed machine."""
    seconds, quota, used, throttled, idle, most, training = sums

    def accepted(given: float) -> float:
        return LARGEST_EXCESS_FACTOR * given + TICK_SECONDS

    share = idle / seconds
    if share < LEAST_IDLE_SHARE:
        yield (
            f"the machine was idle for {100 * share:.1f} % of the time, and {100 * LEAST_IDLE_SHARE:.0f} "
            "% are needed for its workers to have their parts of it: slow it more, or run nothing beside"
        )
    if used > accepted(quota):
        yield (
            f"worker {worker} used {used:.3g} CPU seconds, its quota gives {quota:.3g}, and up to "
            f"{LARGEST_EXCESS_FACTOR:g} times as many are accepted"
        )
    if quota > seconds and training > accepted(seconds):
        yield (
            f"the training thread of worker {worker} used {training:.3g} CPU seconds in {seconds:.3g} s, "
            "more than the one core that a thread has"
        )
    if throttled > accepted(most):
        yield (
            f"worker {worker} was throttled for {throttled:.3g} s, and what it used explains {most:.3g}, of "
            f"which up to {LARGEST_EXCESS_FACTOR:g} times as many are accepted"
        )
