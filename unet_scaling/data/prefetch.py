"""Batches that other processes decode ahead, while the training process takes its steps.

The processes come from a fork server: forking this one would copy the threads and locks of MPI. Each works on
one thread, on the cores of its worker. They live as long as the run, and end with their worker.
"""

import atexit
import signal
from collections.abc import Iterator
from multiprocessing import active_children, forkserver, resource_tracker
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from unet_scaling.group.signals import STOP_SIGNALS
from unet_scaling.study.errors import UserError

PREFETCHED_BATCHES = 2  # of each process: waiting to be taken, while it works on the next one

Indices = npt.NDArray[np.int64]
Pixels = tuple[Tensor, Tensor]


class Source(Protocol):
    """What batches come from."""

    def gather(self, indices: Indices) -> Pixels:
        """uint8 images [b, channels, height, width] and packed masks [b, height, ceil(width / 8)]."""


class Prefetcher:
    """So many processes that gather the batches of one source, in the order in which they are asked for."""

    def __init__(self, source: Source, processes: int) -> None:
        self._order = _Order()
        _start_forkserver_with_signals_blocked(STOP_SIGNALS)
        self._loader: DataLoader[Any] = DataLoader(
            _Gathered(source),
            batch_size=None,
            sampler=self._order,
            num_workers=processes,
            collate_fn=_as_it_is,
            prefetch_factor=PREFETCHED_BATCHES,
            persistent_workers=True,
            multiprocessing_context="forkserver",
        )

    def batches(self, order: Indices) -> Iterator[Pixels]:
        """The batches of `order` [batches, b], one after the other; UserError as the source raises it."""
        self._order.batches = order
        for arrived in self._loader:
            if isinstance(arrived, _Refused):
                raise UserError(arrived.text, arrived.exit_code)
            yield arrived


class _Refused:
    """A user's error on its way here: pickled as an exception it would lose its exit code."""

    def __init__(self, error: UserError) -> None:
        self.text, self.exit_code = str(error), error.exit_code


class _Order(Sampler[Indices]):
    def __init__(self) -> None:
        self.batches: Indices = np.empty((0, 0), dtype=np.int64)

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.batches)


class _Gathered(Dataset[Any]):
    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, indices: Indices) -> Pixels | _Refused:
        try:
            return self.source.gather(indices)
        except UserError as error:
            return _Refused(error)


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401  # DataLoader types a batch as a list
    return batch


def _start_forkserver_with_signals_blocked(signals: tuple[signal.Signals, ...]) -> None:
    """Slurm signals every process of a step; a worker must still have its loaders while it stops in order."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # that lets SIGTERM through again
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    atexit.unregister(_kill_loader_processes)
    atexit.register(_kill_loader_processes)


def _kill_loader_processes() -> None:
    """multiprocessing would ask them by SIGTERM, and wait for ever."""
    for process in active_children():
        if process.daemon:
            process.kill()
