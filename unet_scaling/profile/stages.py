"""Time the stages of loading a batch in one process, with files in the page cache."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from unet_scaling.data.batches import to_floats, transfer
from unet_scaling.data.decoding import collate, convert_pair, decode_pair, fit_pair, read_pair
from unet_scaling.data.fitting import Bytes
from unet_scaling.data.image_source import Indices, PackedBatch
from unet_scaling.data.manifest import PairEntry
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.profile.results import LoadingName, Samples
from unet_scaling.profile.subject import Subject
from unet_scaling.study.progress import progress

# In the order in which they run.
READ = "read"
DECODE = "decode"
CONVERT = "convert"
RESIZE = "resize"
COLLATE = "collate"
GATHER = "gather"
TRANSFER = "host to device"
TO_FLOATS = "to floats"
STAGES = (READ, DECODE, CONVERT, RESIZE, COLLATE, GATHER, TRANSFER, TO_FLOATS)


class StageClock:
    """Seconds per image of each stage, one entry for each time that it ran."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def stage(self, name: str, images: int = 1) -> Iterator[None]:
        begin = synchronized_seconds(self.device)
        yield
        self.seconds[name].append((synchronized_seconds(self.device) - begin) / images)


def time_stages(
    subject: Subject, loading: LoadingName, device: torch.device, seconds: float
) -> dict[str, Samples]:
    """Return the seconds per image of every stage, over all images or for about so many seconds."""
    # Takes what only the first batch costs. Building the cache has read all files into the page cache.
    load_batch(subject, loading, subject.batches[0], StageClock(device))
    clock = StageClock(device)
    end = time.perf_counter() + seconds
    for indices in progress(subject.batches, len(subject.batches), f"stages of {loading}"):
        load_batch(subject, loading, indices, clock)
        if time.perf_counter() > end:
            break
    return {name: Samples.of(clock.seconds[name]) for name in STAGES if name in clock.seconds}


def load_batch(
    subject: Subject, loading: LoadingName, indices: Indices, clock: StageClock
) -> tuple[Tensor, Tensor]:
    """Load a batch stage by stage; equal to `to_device` of what `gather` returns."""
    if loading == "decode":
        images, masks = _decode(subject, indices, clock)
    else:
        with clock.stage(GATHER, len(indices)):
            images, masks = subject.cached.gather(indices)
    if clock.device.type != "cpu":  # on a CPU nothing is transferred: no stage rather than one of 0 seconds
        with clock.stage(TRANSFER, len(indices)):
            images, masks = transfer(images, masks, clock.device)
    with clock.stage(TO_FLOATS, len(indices)):
        return to_floats(images, masks, subject.config.training.channels_last)


def _decode(subject: Subject, indices: Indices, clock: StageClock) -> PackedBatch:
    loaded = [_decode_one(subject, subject.manifest.pairs[index], clock) for index in indices]
    with clock.stage(COLLATE, len(indices)):
        return collate(loaded)


def _decode_one(subject: Subject, pair: PairEntry, clock: StageClock) -> tuple[Bytes, Bytes]:
    folder = subject.folder
    data = subject.config.data
    with clock.stage(READ):
        contents = read_pair(folder, pair)
    with clock.stage(DECODE):
        pixels = decode_pair(folder, pair, *contents)
    with clock.stage(CONVERT):
        converted = convert_pair(folder, data, pair, *pixels)
    with clock.stage(RESIZE):
        return fit_pair(data, *converted)
