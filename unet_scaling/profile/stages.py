"""The stages of loading a batch, each under the clock: decoding files, and gathering from the cache."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.profiler import record_function

from unet_scaling.data.batches import to_floats, transfer
from unet_scaling.data.cache import CachedImages
from unet_scaling.data.decoding import collate, convert_pair, decode_pair, fit_pair, read_pair
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.profile.results import Spread, Stage
from unet_scaling.profile.subject import Subject

Indices = npt.NDArray[np.int64]
Pair = tuple[Tensor, Tensor]

# In the order of the tables. Augmentation belongs to the step, so no stage is called that.
READ, DECODE, CONVERT, RESIZE, COLLATE = "read", "decode", "convert", "resize", "collate"
GATHER, TRANSFER, TO_FLOATS = "gather", "host to device", "to floats"
STAGES = (READ, DECODE, CONVERT, RESIZE, COLLATE, GATHER, TRANSFER, TO_FLOATS)


@dataclass
class StageClock:
    """Seconds per image of each stage, one entry for each time that it ran.

    `labelled` names the stages in a running torch.profiler as well, which costs a few microseconds.
    """

    device: torch.device
    labelled: bool = False
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def stage(self, name: str, images: int = 1) -> Iterator[None]:
        with record_function(name) if self.labelled else nullcontext():
            begin = synchronized_seconds(self.device)
            yield
            self.seconds[name].append((synchronized_seconds(self.device) - begin) / images)

    def result(self) -> list[Stage]:
        return [
            Stage(stage=name, seconds_per_image=Spread.of(self.seconds[name]))
            for name in STAGES
            if name in self.seconds
        ]


def load_by_decoding(subject: Subject, indices: Indices, clock: StageClock) -> Pair:
    """As DecodedImages.gather and to_device, stage by stage: equal tensors."""
    folder, data = subject.folder, subject.config.data
    loaded = []
    for pair in (subject.manifest.pairs[index] for index in indices):
        with clock.stage(READ):
            contents = read_pair(folder, pair)
        with clock.stage(DECODE):
            pixels = decode_pair(folder, pair, *contents)
        with clock.stage(CONVERT):
            converted = convert_pair(folder, data, pair, *pixels)
        with clock.stage(RESIZE):
            loaded.append(fit_pair(data, *converted))
    with clock.stage(COLLATE, len(indices)):
        images, masks = collate(loaded)
    return _on_device(subject, images, masks, clock)


def load_from_cache(subject: Subject, cached: CachedImages, indices: Indices, clock: StageClock) -> Pair:
    """As CachedImages.gather and to_device, stage by stage; gathering collates as well."""
    with clock.stage(GATHER, len(indices)):
        images, masks = cached.gather(indices)
    return _on_device(subject, images, masks, clock)


def _on_device(subject: Subject, images: Tensor, masks: Tensor, clock: StageClock) -> Pair:
    if clock.device.type != "cpu":  # a CPU has the bytes already: no stage, rather than one of 0 seconds
        with clock.stage(TRANSFER, len(images)):
            images, masks = transfer(images, masks, clock.device)
    with clock.stage(TO_FLOATS, len(images)):
        return to_floats(images, masks, subject.config.training.channels_last)
