"""Throughput against the number of loader processes, those of training itself, with nobody computing."""

import shutil
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from unet_scaling.data.cache import pair_bytes
from unet_scaling.data.image_source import PackedBatch
from unet_scaling.data.prefetch import PREFETCHED_BATCHES, Prefetcher
from unet_scaling.group.shared_memory import SHARED_MEMORY
from unet_scaling.profile.results import Samples, Throughput
from unet_scaling.profile.subject import Subject
from unet_scaling.study.progress import progress

# Interleaved: a disturbance then falls on all counts of processes alike.
ROUNDS = 3
# Up to here every number is tried, beyond it each doubling.
EVERY_COUNT_UP_TO = 4
# More processes rarely help one host.
MOST_PROCESSES = 32
# A measurement ends early once it is steady: batches of each process, and seconds.
ENOUGH_BATCHES = 8
ENOUGH_SECONDS = 0.5


def counts_to_try(subject: Subject, cores: int) -> tuple[list[int], list[str]]:
    """Return 0, 1, 2, ... up to the cores, in doublings beyond 4, with notes on what is left out.

    Left out is what shared memory has no room for: where it is full, a process dies of a bus error.
    """
    most = min(cores, MOST_PROCESSES)
    doublings = (2**power for power in range(most.bit_length()))
    counts = sorted({*range(min(most, EVERY_COUNT_UP_TO) + 1), *doublings, most})
    room = _room_in_shared_memory(subject)
    if counts[-1] <= room:
        return counts, []
    note = f"{SHARED_MEMORY} has room for the batches of {room} loader processes: more were not tried"
    return [count for count in counts if count <= room], [note]


def _room_in_shared_memory(subject: Subject) -> int:
    """Return how many processes fill half of it with their batches."""
    batch_bytes = subject.batches.shape[1] * pair_bytes(subject.config.data)
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    return int(free // 2 // (batch_bytes * (PREFETCHED_BATCHES + 1)))


def measure_throughput(subject: Subject, counts: Sequence[int], seconds: float) -> list[Throughput]:
    """Measure each count once in every round, so that disturbances fall on all counts alike.

    The first round is always finished; later measurements only start within `seconds`.
    """
    end = time.perf_counter() + seconds
    window = seconds / (ROUNDS * len(counts))
    speeds: dict[int, list[float]] = defaultdict(list)
    for count in progress([*counts] * ROUNDS, ROUNDS * len(counts), "loader processes"):
        if not speeds[count] or time.perf_counter() + window <= end:
            speeds[count].append(_images_per_second(subject, count, window))
    return [Throughput(processes=count, images_per_second=Samples.of(speeds[count])) for count in counts]


def _images_per_second(subject: Subject, processes: int, window: float) -> float:
    # Loader processes deliver in turn: only whole turns of all of them are counted.
    batches_per_turn = max(1, processes)
    stream = _stream(subject, processes)
    _discard(stream, batches_per_turn)
    begin = time.perf_counter()
    seconds = 0.0
    turns = 0
    while seconds < window and not (turns >= ENOUGH_BATCHES and seconds >= ENOUGH_SECONDS):
        _discard(stream, batches_per_turn)
        turns += 1
        seconds = time.perf_counter() - begin
    images = turns * batches_per_turn * int(subject.batches.shape[1])
    return images / seconds


def _stream(subject: Subject, processes: int) -> Iterator[PackedBatch]:
    if processes:
        return Prefetcher(subject.source, processes).batches(cycle(subject.batches))
    return map(subject.source.gather, cycle(subject.batches))


def _discard(stream: Iterator[PackedBatch], count: int) -> None:
    deque(islice(stream, count), maxlen=0)
