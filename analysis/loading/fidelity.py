"""Whether a run on a dilated cluster was slowed as it should be: what a busy machine or a lax quota spoils.

A worker whose quota is used up is throttled, and rightly so: at speed it would have run on. A thread that
polls for messages uses all of its quota and is throttled all the time; it takes its core there, too. So the
limit of throttling follows from what was used: of the periods of its quota, a worker uses up no larger share
than the share of its quota that it used, and in each it is throttled for all but the k-th part that it runs.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from unet_scaling.study.disturbance import TICK_SECONDS
from unet_scaling.study.measurements import CpuFacts
from unet_scaling.study.record import Record
from unet_scaling.study.record_lines import Epoch

# Below it, some worker waits for a processor while it has quota left.
LEAST_IDLE_SHARE = 0.05
# The kernel checks quotas at its ticks, and settles what was used beyond them in later periods.
LARGEST_EXCESS_FACTOR = 1.25
_NOT_KNOWN = (
    'a dilated cluster, and how it was slowed is not recorded: train on Linux with training.budget = "on"'
)


@dataclass(frozen=True)
class _WorkerSums:
    """Of one worker over its epochs, in seconds of the machine that is stood for."""

    worker: int
    seconds: float
    quota_seconds: float
    used_seconds: float
    throttled_seconds: float
    idle_seconds: float
    most_throttled_seconds: float
    training_seconds: float

    @property
    def has_several_cores(self) -> bool:
        return self.quota_seconds > self.seconds


def infidelity(record: Record, stalled: Collection[int] = ()) -> str:
    """Return why the epochs in use of a run were not slowed as they should be, with both values, or nothing.

    Empty for a run of a machine at speed.
    """
    assert record.header is not None
    dilation = record.header.dilation
    used = [epoch for epoch in record.epochs if not epoch.warmup and epoch.epoch not in stalled]
    if dilation is None or not used:
        return ""
    sums = [_sums(worker, used, dilation) for worker in range(len(record.header.workers))]
    known = [each for each in sums if each is not None]
    return next(_faults(known), "") if len(known) == len(sums) else _NOT_KNOWN


def _sums(worker: int, epochs: Sequence[Epoch], dilation: float) -> _WorkerSums | None:
    """Return the sums of a worker over these epochs; None where one of them does not say."""
    total = [0.0] * 7
    for epoch in epochs:
        facts = epoch.cpu[worker] if epoch.cpu else None
        if facts is None or facts.quota is None:
            return None
        added = _of_epoch(facts, epoch.worker_seconds[worker], dilation)
        total = [before + more for before, more in zip(total, added, strict=True)]
    return _WorkerSums(worker, *total)


def _of_epoch(facts: CpuFacts, seconds: float, dilation: float) -> Sequence[float]:
    """Return the fields of _WorkerSums after its first, for one epoch."""
    assert facts.quota is not None
    quota = facts.quota
    # Threads of a worker with several cores are throttled one by one, as one core on one processor is.
    processors_of_a_core = 1 if facts.cores > 1 else quota.processors
    most = quota.used_seconds * (processors_of_a_core - 1 / dilation)
    used = (quota.used_seconds, quota.throttled_seconds, quota.idle_share * seconds)
    return (seconds, facts.cores * seconds, *used, most, facts.thread_seconds["training"])


def _most_accepted(seconds: float) -> float:
    """Return how many seconds are accepted where the quota gives so many."""
    return LARGEST_EXCESS_FACTOR * seconds + TICK_SECONDS


def _faults(workers: Sequence[_WorkerSums]) -> Iterator[str]:
    for each in workers:
        idle = each.idle_seconds / each.seconds
        if idle < LEAST_IDLE_SHARE:
            yield (
                f"the machine was idle for {100 * idle:.1f} % of the time, and {100 * LEAST_IDLE_SHARE:.0f} "
                "% are needed for its workers to have their parts of it: slow it more, or run nothing beside"
            )
        if each.used_seconds > _most_accepted(each.quota_seconds):
            yield (
                f"worker {each.worker} used {each.used_seconds:.3g} CPU seconds, its quota gives "
                f"{each.quota_seconds:.3g}, and up to {LARGEST_EXCESS_FACTOR:g} times as many are accepted"
            )
        if each.has_several_cores and each.training_seconds > _most_accepted(each.seconds):
            yield (
                f"the training thread of worker {each.worker} used {each.training_seconds:.3g} CPU seconds "
                f"in {each.seconds:.3g} s, more than the one core that a thread has"
            )
        if each.throttled_seconds > _most_accepted(each.most_throttled_seconds):
            yield (
                f"worker {each.worker} was throttled for {each.throttled_seconds:.3g} s, and what it used "
                f"explains {each.most_throttled_seconds:.3g}, of which up to {LARGEST_EXCESS_FACTOR:g} times "
                "as many are accepted"
            )
