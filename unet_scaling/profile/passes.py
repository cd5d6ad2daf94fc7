"""Repeat the stages over the images of the profile, with their files in memory and not in memory."""

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import torch

from unet_scaling.data.batches import to_device
from unet_scaling.data.decoding import pair_paths
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.profile.page_cache import put_in, put_out, storage_bytes
from unet_scaling.profile.results import Loading, LoadingName, Spread, Threads
from unet_scaling.profile.stages import Indices, Pair, StageClock, load_by_decoding, load_from_cache
from unet_scaling.profile.subject import Source, Subject
from unet_scaling.profile.threads import watch_threads
from unet_scaling.study.progress import progress

# Of the bytes of the images that must come from storage for a pass to be called cold.
FEWEST_COLD_SHARE = 0.5
THREADS_SECONDS = 0.3

Load = Callable[[Indices, StageClock], Pair]


def time_loading(subject: Subject, name: LoadingName, device: torch.device, seconds: float) -> Loading:
    """Every stage with cold and then with warm files, each for half of `seconds` or over all images."""
    cold, share_read = _cold_pass(subject, name, device, seconds / 2)
    warm, whole = _warm_pass(subject, name, device, seconds / 2)
    return Loading(
        loading=name,
        warm=warm.result(),
        cold=cold.result() if share_read >= FEWEST_COLD_SHARE else None,
        whole=Spread.of(whole),
    )


def watch_loading(subject: Subject) -> Threads:
    """Threads that the study's own way of loading starts; to be asked before torch has started its own."""
    source, turns = subject.source(), cycle(subject.batches)
    return watch_threads(lambda: source.gather(next(turns)), THREADS_SECONDS)


def _cold_pass(
    subject: Subject, name: LoadingName, device: torch.device, seconds: float
) -> tuple[StageClock, float]:
    """The stages, and which share of the images' bytes really came from storage."""
    clock, read, wanted = StageClock(device), 0, 0
    _load(subject, name)(subject.batches[0], StageClock(device))  # what only the first image costs
    for indices in _until(subject.batches, seconds, f"{name}, cold"):
        # Opened anew: pages once touched through a mapping stay. Opened before: that reads a header.
        load = _load(subject, name)
        size = put_out(_files(subject, name, indices))
        wanted += size if name == "decode" else subject.decoded_bytes(len(indices))
        before = storage_bytes()
        load(indices, clock)
        read += storage_bytes() - before
        del load
    return clock, read / wanted


def _warm_pass(
    subject: Subject, name: LoadingName, device: torch.device, seconds: float
) -> tuple[StageClock, list[float]]:
    """The stages, and after those of each batch the undivided call, in seconds per image."""
    clock, whole = StageClock(device), []
    load, source = _load(subject, name), subject.source(name)
    for indices in _until(subject.batches, seconds, f"{name}, warm"):
        put_in(_files(subject, name, indices)) if name == "decode" else source.gather(indices)
        load(indices, clock)
        whole.append(_undivided_seconds(subject, source, indices, device) / len(indices))
    return clock, whole


def _undivided_seconds(subject: Subject, source: Source, indices: Indices, device: torch.device) -> float:
    begin = synchronized_seconds(device)
    to_device(*source.gather(indices), device, subject.config.training.channels_last)
    return synchronized_seconds(device) - begin


def _load(subject: Subject, name: LoadingName) -> Load:
    if name == "decode":
        return lambda indices, clock: load_by_decoding(subject, indices, clock)
    cached = subject.cached()
    return lambda indices, clock: load_from_cache(subject, cached, indices, clock)


def _files(subject: Subject, name: LoadingName, indices: Indices) -> list[Path]:
    if name == "cache":
        return subject.cache_files()
    pairs = (subject.manifest.pairs[index] for index in indices)
    return [path for pair in pairs for path in pair_paths(subject.folder, pair)]


def _until(batches: Indices, seconds: float, label: str) -> Iterator[Indices]:
    """At least one batch, and no further one once the time is over."""
    end = time.perf_counter() + seconds
    for indices in progress(batches, len(batches), label):
        yield indices
        if time.perf_counter() > end:
            return
