"""Throughput against the number of loader processes: real ones, that decode batches as training does."""

import itertools
import os
import resource
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from unet_scaling.group.shared_memory import SHARED_MEMORY
from unet_scaling.profile.results import LoaderCount, Spread
from unet_scaling.profile.subject import Batches, Source, Subject
from unet_scaling.study.progress import progress

ROUNDS = 3
MOST_PROCESSES = 32
PREFETCHED_BATCHES = 2  # of each process: waiting to be taken, while it works on the next one
ENOUGH_BATCHES, ENOUGH_SECONDS = 8, 0.5  # of each process; fewer where they take long


@dataclass(frozen=True)
class Delivery:
    """One uint8 batch, the process that loaded it, and that process's facts at its end."""

    images: Tensor
    masks: Tensor
    process: int
    switches: int
    seconds: float


class _Batches(Dataset[Delivery]):
    def __init__(self, source: Source, batches: Batches) -> None:
        self.source, self.batches = source, batches

    def __getitem__(self, number: int) -> Delivery:
        images, masks = self.source.gather(self.batches[number])
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        return Delivery(images, masks, os.getpid(), switches, time.perf_counter())


class _Endless(Sampler[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(self.count))


def counts_to_try(subject: Subject, cores: int, wanted: Sequence[int]) -> tuple[list[int], list[str]]:
    """0 and those wanted, else 1, 2, ... up to the cores, above 4 in doublings.

    What shared memory has no room for is left out, with a note.
    """
    usual = [count for count in range(cores + 1) if count <= 4 or count.bit_count() == 1 or count == cores]
    counts = sorted({0, *wanted}) if wanted else [count for count in usual if count <= MOST_PROCESSES]
    room = _processes_in_shared_memory(subject)
    if counts[-1] <= room:
        return counts, []
    note = f"{SHARED_MEMORY} has room for the batches of {room} loader processes: more were not tried"
    return [count for count in counts if count <= room], [note]


def _processes_in_shared_memory(subject: Subject) -> int:
    """How many can hand over batches in half of what is free there; full, it ends them with a bus error."""
    batch_bytes = subject.decoded_bytes(subject.batches.shape[1])
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    return free // 2 // (batch_bytes * (PREFETCHED_BATCHES + 1))


def deliveries(source: Source, batches: Batches, processes: int) -> Iterator[Delivery]:
    """Batches without end from so many processes of one thread each; 0 loads in the calling thread.

    The processes are forked, as DataLoader does on Linux, and end with the iterator.
    """
    ahead: dict[str, Any] = (
        {"multiprocessing_context": "fork", "prefetch_factor": PREFETCHED_BATCHES} if processes else {}
    )
    with warnings.catch_warnings():
        # More processes than cores are tried on purpose; what comes of it is in the profile.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        loader = DataLoader(
            _Batches(source, batches),
            batch_size=None,
            sampler=_Endless(len(batches)),
            num_workers=processes,
            collate_fn=_as_it_is,
            worker_init_fn=_on_one_thread,
            **ahead,
        )
        return iter(loader)


def _as_it_is(delivery: Any) -> Any:  # noqa: ANN401  # DataLoader types a batch as a list
    return delivery


def _on_one_thread(_: int) -> None:
    torch.set_num_threads(1)


def time_loader_counts(subject: Subject, counts: Sequence[int], seconds: float) -> list[LoaderCount]:
    """Every count once in each round, so that what else the machine does falls on all alike.

    The first round is always finished, the others only begin within `seconds`.
    """
    source, end = subject.source(), time.perf_counter() + seconds
    window = seconds / (ROUNDS * len(counts))
    speeds: dict[int, list[float]] = {count: [] for count in counts}
    switches: dict[int, list[float]] = {count: [] for count in counts}
    turns = [(turn, count) for turn in range(ROUNDS) for count in counts]
    for turn, count in progress(turns, len(turns), "loader processes"):
        if turn > 0 and time.perf_counter() + window > end:
            break
        speed, rate = _measure(source, subject.batches, count, window)
        speeds[count].append(speed)
        switches[count] += [] if rate is None else [rate]
    return [_loader_count(count, speeds[count], switches[count]) for count in counts]


def _loader_count(count: int, speeds: list[float], switches: list[float]) -> LoaderCount:
    return LoaderCount(
        processes=count,
        images_per_second=Spread(
            median=median(speeds), low=min(speeds), high=max(speeds), samples=len(speeds)
        ),
        switches_per_second=median(switches) if switches else None,
    )


def _measure(source: Source, batches: Batches, processes: int, window: float) -> tuple[float, float | None]:
    """Images per second of a stream that flows before and after the clock runs, and switches per second."""
    group = max(1, processes)  # they deliver in turn: whole turns are counted
    stream = deliveries(source, batches, processes)
    seen = list(_facts(itertools.islice(stream, group)))
    begin = time.perf_counter()
    for turn in itertools.count(1):
        seen += _facts(itertools.islice(stream, group))
        seconds = time.perf_counter() - begin
        if seconds >= window or (turn >= ENOUGH_BATCHES and seconds >= ENOUGH_SECONDS):
            break
    return turn * group * batches.shape[1] / seconds, _switch_rate(seen)


def _facts(arrived: Iterator[Delivery]) -> Iterator[tuple[int, int, float]]:
    """Without the batch, whose memory is free again."""
    return ((delivery.process, delivery.switches, delivery.seconds) for delivery in arrived)


def _switch_rate(seen: list[tuple[int, int, float]]) -> float | None:
    """Involuntary context switches per second, the mean over processes; None where none delivered twice."""
    rates = []
    for process in {process for process, _, _ in seen}:
        own = [(switches, seconds) for number, switches, seconds in seen if number == process]
        (first, begin), (last, end) = own[0], own[-1]
        rates += [(last - first) / (end - begin)] if end > begin else []
    return sum(rates) / len(rates) if rates else None
