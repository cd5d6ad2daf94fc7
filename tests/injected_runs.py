"""Launches of tests/injected.py that can be judged: others took little of the machine meanwhile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.local import launch
from tests.injected import BUSY, SOUND
from tests.studies import make_run
from unet_scaling.config import PROJECT, Point
from unet_scaling.record import RECORD_NAME, Record, read_record

FAULT_SECONDS = 0.2
TRIES = 3
MOST_TAKEN = 0.15


def run_with_faults(make_folder: Callable[[], Path], point: Point, seconds: float) -> Path:
    """The folder of a run whose faults last so long; skips the test where the machine is never quiet."""
    for _ in range(TRIES):
        folder = make_run(make_folder() / point.run, point)
        wrapper = [str(PROJECT / "tests" / "injected.py"), str(PROJECT / point.framework / "train.py")]
        output = folder / "output.log"
        code = launch([*wrapper, str(folder), str(seconds)], point.workers, output, cores_each=1)
        assert code == 0, output.read_text()
        taken = taken_by_others(read_record(folder / RECORD_NAME))
        if taken < MOST_TAKEN:
            return folder
    pytest.skip(f"others took {100 * taken:.0f} % of a worker's time: no time can be trusted here")


def taken_by_others(record: Record) -> float:
    """Largest share of a worker's time in which it neither worked nor waited for core or gradients.

    Of the epochs without a sleep. The host of a virtual machine takes it, and its kernel does not know.
    """
    shares = [0.0]
    for epoch in (record.epochs[SOUND], record.epochs[BUSY]):
        assert epoch.budget is not None
        for worker, facts in enumerate(epoch.cpu or []):
            explained = facts.thread_seconds["training"] + (facts.training_runqueue_seconds or 0.0)
            explained += epoch.budget.sync_seconds[worker]
            shares.append(1 - explained / epoch.worker_seconds[worker])
    return max(shares)
