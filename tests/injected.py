"""Run a twin with known faults, one per epoch: python tests/injected.py TRAIN_PY RUN_FOLDER SECONDS.

What a fault costs is known, so that the budget of the run can be held against it. Nothing of the twin
is changed: what it calls sleeps. A sleep lasts as long as the machine lets it, so how long each one took is
written beside the run folder.
"""

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
import torch

from unet_scaling.data.batches import RunData
from unet_scaling.data.images import CachedImages
from unet_scaling.group.identity import identify
from unet_scaling.model import UNet
from unet_scaling.study.record import Record

WARMUP, SOUND, LOADER, FORWARD, OPTIMIZER = range(5)
SLEEPING = (LOADER, FORWARD, OPTIMIZER)
EPOCHS = 5
SLOW_WORKER = 1


def near(record: Record, seconds: float, *epochs: int) -> float:
    """A tenth of a fault, and what other processes took of a step: how long a worker waited for its core.

    At most half of the fault is allowed for, so that a fault in a wrong part is always told.
    """
    stolen = 0.0
    for line in (record.epochs[epoch] for epoch in epochs):
        for worker in line.cpu or []:
            stolen += (worker.training_runqueue_seconds or 0.0) / line.steps
    return 0.1 * seconds + min(stolen, 0.4 * seconds)


def slept(folder: Path, record: Record) -> npt.NDArray[np.float64]:
    """Seconds that each worker slept in each step [epochs, steps, workers]."""
    workers = len(record.epochs[0].worker_seconds)
    steps = record.epochs[0].steps
    seconds = np.zeros((EPOCHS, steps, workers))
    for rank in range(workers):
        notes = [line.split() for line in _notes(folder, rank).read_text().splitlines()]
        for epoch in range(EPOCHS):
            of_epoch = [float(duration) for noted, duration in notes if int(noted) == epoch]
            # What sleeps after the steps of its epoch is evaluation.
            seconds[epoch, : len(of_epoch), rank] = of_epoch[:steps]
    return seconds


def _notes(folder: Path, rank: int) -> Path:
    return Path(f"{folder}.slept{rank}")


class Now:
    """The epoch that this worker is in."""

    epoch = WARMUP


def sleeping(
    original: Callable[..., Any], due: Callable[[], bool], seconds: float, notes: TextIO
) -> Callable[..., Any]:
    """The function, after a sleep where it is due."""

    def slow(*arguments: Any, **options: Any) -> Any:
        if due():
            begun = time.perf_counter()
            time.sleep(seconds)
            print(Now.epoch, time.perf_counter() - begun, file=notes)
        return original(*arguments, **options)

    return slow


def noting_the_epoch(original: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def steps(data: RunData, epoch: int, clock: Any, first: int = 0) -> Iterator[Any]:
        Now.epoch = epoch
        yield from original(data, epoch, clock, first)

    return steps


def inject(folder: Path, seconds: float) -> None:
    rank = identify(os.environ).rank
    notes = _notes(folder, rank).open("w", buffering=1)
    patches: list[tuple[Any, str, Callable[[], bool]]] = [
        (CachedImages, "gather", lambda: Now.epoch == LOADER),
        (UNet, "forward", lambda: Now.epoch == FORWARD and rank == SLOW_WORKER and torch.is_grad_enabled()),
        (torch.optim.Adam, "step", lambda: Now.epoch == OPTIMIZER),
    ]
    for owner, name, due in patches:
        setattr(owner, name, sleeping(getattr(owner, name), due, seconds, notes))
    RunData.steps = noting_the_epoch(RunData.steps)  # type: ignore[method-assign]


if __name__ == "__main__":
    train, folder, fault_seconds = sys.argv[1:]
    inject(Path(folder), float(fault_seconds))
    sys.argv = [train, folder]
    runpy.run_path(train, run_name="__main__")
