"""Loader processes that decode batches ahead, while the training process takes its steps.

They come from a fork server: forking this process would copy the threads and locks of MPI. Each works on one
thread, on the cores of its worker. They live as long as the run and end with their worker.
"""

import atexit
import os
import signal
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import forkserver, resource_tracker
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from unet_scaling.data.order import Indices
from unet_scaling.group.identity import STOP_SIGNALS
from unet_scaling.study.errors import UserError, kill_loader_processes

# Of each process, waiting to be taken while it works on the next one: torch's default.
PREFETCHED_BATCHES = 2
# Imported once by the fork server: a loader process then starts in milliseconds instead of seconds.
PRELOADED = ["torch", "unet_scaling.data.prefetch", "unet_scaling.data.cache"]


# Tensors, alone or nested as the task's functions take them.
Batch = Any


class Source(Protocol):
    """Samples of a data set, by their number."""

    def gather(self, indices: Indices) -> Batch:
        """Return the samples of these numbers as one batch in memory."""


class Prefetcher:
    """Loader processes that gather the batches of one source, in the order in which they are requested."""

    def __init__(self, source: Source, processes: int) -> None:
        self._order = _Order()
        cores = os.sched_getaffinity(0)
        _start_forkserver_with_signals_blocked(STOP_SIGNALS)
        self._loader: DataLoader[Any] = DataLoader(
            _Gathered(source),
            batch_size=None,
            sampler=self._order,
            num_workers=processes,
            collate_fn=_identity,
            worker_init_fn=partial(_stay_on, cores),
            prefetch_factor=PREFETCHED_BATCHES,
            persistent_workers=True,
            multiprocessing_context="forkserver",
            generator=torch.Generator(),  # each epoch draws a number, not from the one of dropout
        )

    def batches(self, order: Iterable[Indices]) -> Iterator[Batch]:
        """Yield the batch of each entry [b] of `order`; raises UserError as the source does."""
        self._order.batches = order
        for batch in self._loader:
            if isinstance(batch, _Failure):
                raise UserError(*batch)
            yield batch


class _Failure(NamedTuple):
    """A UserError on its way from a loader process; pickled as an exception it would lose its exit code."""

    text: str
    exit_code: int


class _Order(Sampler[Indices]):
    def __init__(self) -> None:
        self.batches: Iterable[Indices] = ()

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.batches)


class _Gathered(Dataset[Any]):
    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, indices: Indices) -> Batch | _Failure:
        try:
            return self.source.gather(indices)
        except UserError as error:
            return _Failure(str(error), error.exit_code)


def _identity(batch: Any) -> Any:  # noqa: ANN401  # DataLoader types a batch as a list
    return batch


def _stay_on(cores: set[int], _process: int) -> None:
    # The fork server keeps the cores that this process had when it was started.
    os.sched_setaffinity(0, cores)


def _start_forkserver_with_signals_blocked(signals: tuple[signal.Signals, ...]) -> None:
    """Start the fork server so that loader processes outlive the signal that asks their worker to stop.

    Slurm signals every process of a step, and the worker still needs batches up to its next safe point.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # ensure_running has unblocked SIGTERM
        forkserver.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    atexit.unregister(kill_loader_processes)
    atexit.register(kill_loader_processes)
