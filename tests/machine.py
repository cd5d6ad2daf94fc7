"""Skip a comparison of measured times where the machine was not quiet while they were measured.

On a machine that others use, such a comparison shows nothing: the test is skipped, with the share of the
cores that others took. On a quiet machine it is judged, and may fail.
"""

import os
import time
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import contextmanager

import pytest

from unet_scaling.group.watchdog import busy_seconds
from unet_scaling.study.disturbance import DISTURBED_SHARE
from unet_scaling.study.record import Record

needs_a_core_each = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two workers need a core each"
)
# Of the time of a worker: some of it is waiting for memory and files, also where its host takes nothing.
MOST_UNEXPLAINED = 0.15


@contextmanager
def quiet_machine() -> Iterator[None]:
    """Skip the test where others took too much of its cores meanwhile, by the kernel's own account.

    What this process and its children took, which must have ended, is not others'.
    """
    began = time.monotonic()
    busy = _core_seconds()
    own = _own_seconds()
    yield
    offered = (time.monotonic() - began) * len(os.sched_getaffinity(0))
    taken = (_core_seconds() - busy) - (_own_seconds() - own)
    skip_if_taken(taken / offered)


def skip_where_disturbed(record: Record, asleep: Container[int] = (), most: float = DISTURBED_SHARE) -> None:
    """Skip the test where the record of its run says that others took too much of a worker's time.

    `asleep` are the epochs in which the test lets workers sleep.
    """
    skip_if_taken(taken_by_others(record), most)
    skip_if_taken(unexplained(record, asleep), MOST_UNEXPLAINED)


def skip_if_taken(share: float, most: float = DISTURBED_SHARE) -> None:
    """Skip the test where others took more of the cores than a comparison of times allows."""
    if share > most:
        pytest.skip(f"others took {share:.0%} of these cores meanwhile, at most {most:.0%} may be")


def taken_by_others(record: Record) -> float:
    """Return the largest share of a worker's time that its cores gave to other processes."""
    offered: dict[int, float] = defaultdict(float)
    taken: dict[int, float] = defaultdict(float)
    for epoch in record.epochs:
        for worker, facts in enumerate(epoch.cpu or []):
            offered[worker] += epoch.worker_seconds[worker] * facts.cores
            taken[worker] += (facts.other_seconds or 0.0) - (facts.other_workers_seconds or 0.0)
    return max((taken[worker] / offered[worker] for worker in offered), default=0.0)


def unexplained(record: Record, asleep: Container[int] = ()) -> float:
    """Return the largest share of an epoch in which a worker neither worked nor waited for core or gradients.

    The host of a virtual machine takes it, and the kernel here may not know.
    """
    shares = [0.0]
    for epoch in record.epochs:
        if epoch.epoch in asleep or epoch.budget is None:
            continue
        for worker, facts in enumerate(epoch.cpu or []):
            explained = facts.thread_seconds["training"] + (facts.training_runqueue_seconds or 0.0)
            explained += epoch.budget.sync_seconds[worker]
            shares.append(1 - explained / epoch.worker_seconds[worker])
    return max(shares)


def _core_seconds() -> float:
    """Return for how long the cores of this process were not idle; skip the test where that is not known."""
    seconds = busy_seconds(os.sched_getaffinity(0))
    if seconds is None:
        pytest.skip("this system does not tell how busy its cores are")
    return seconds


def _own_seconds() -> float:
    return sum(os.times()[:4])
