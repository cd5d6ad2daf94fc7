"""Samples of any kind as the workers of a run consume them: those of the data sets that a task brings."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from unet_scaling.data.batches import RunData
from unet_scaling.data.order import Indices, Split
from unet_scaling.data.prefetch import Batch
from unet_scaling.measure.phases import Clock
from unet_scaling.study.measurements import Phase
from unet_scaling.study.random_streams import TRANSFORM_STREAM

Collate = Callable[[list[Any]], Batch]
Transform = Callable[[Batch, Tensor | None], Batch]
# Of the training set and of the test set: enough to tell two data sets apart, and read in no time.
COMPARED_SAMPLES = 8
# Seeds are int64, and not negative.
SEED_BITS = 63


class MapStyleData(Protocol):
    """A map-style data set: `samples[i]`, tensors and numbers in any nest, is a pure function of i."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...  # noqa: ANN401


class SampleSource:
    """Training samples, and behind them the test samples, under one numbering."""

    def __init__(self, train: MapStyleData, test: MapStyleData, collate: Collate = default_collate) -> None:
        self._train = train
        self._test = test
        self._collate = collate
        self._first_test = len(train)

    def gather(self, indices: Indices) -> Batch:
        """Return the samples of these numbers as one batch in memory."""
        return self._collate([self.sample(int(index)) for index in indices])

    def sample(self, index: int) -> Any:  # noqa: ANN401
        """Return one sample as its data set gives it."""
        if index < self._first_test:
            return self._train[index]
        return self._test[index - self._first_test]


@dataclass(frozen=True)
class SampleData(RunData):
    """All samples of a run, and the part of this worker."""

    source: SampleSource
    transform: Transform | None = None
    digests: Mapping[int, str] = field(default_factory=dict)

    def test_share(self) -> Iterator[tuple[int, Batch]]:
        """Yield this worker's test samples, a batch of each, with its position in the test split."""
        for position, batch in super().test_share():
            yield position, self.transform(batch, None) if self.transform else batch

    def batch(self, indices: Indices, epoch: int | None = None) -> Batch:
        """Return a batch of these samples on the device; training samples as they are in `epoch`."""
        batch = self._on_device(self.source.gather(indices))
        if self.transform is None:
            return batch
        return self.transform(batch, None if epoch is None else self._seeds(epoch, indices))

    def _on_device(self, packed: Batch) -> Batch:
        return _moved(packed, self.group.device, self.config.training.channels_last)

    def _transformed(self, batch: Batch, epoch: int, indices: Indices, clock: Clock) -> Batch:
        if self.transform is None:
            return batch
        transformed = self.transform(batch, self._seeds(epoch, indices))
        clock.mark(Phase.HOST_TO_DEVICE)
        return transformed

    def _seeds(self, epoch: int, indices: Indices) -> Tensor:
        """Return int64 [b]: a pure function of (seed, epoch, sample), at any number of workers."""
        raw = [
            np.random.PCG64([self.config.seed, epoch, int(index), TRANSFORM_STREAM]).random_raw()
            for index in indices
        ]
        return torch.tensor([number >> (64 - SEED_BITS) for number in raw], device=self.group.device)


def _moved(batch: Batch, device: torch.device, channels_last: bool) -> Batch:
    """Return the tensors of a batch on the device; images [b, C, H, W] of floats in the layout asked for."""
    if isinstance(batch, Tensor):
        if channels_last and batch.dim() == 4 and batch.is_floating_point():
            return batch.to(device, non_blocking=True, memory_format=torch.channels_last)
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _moved(each, device, channels_last) for key, each in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_moved(each, device, channels_last) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_moved(each, device, channels_last) for each in batch)
    return batch


def sample_digests(source: SampleSource, split: Split, backwards: bool = False) -> dict[int, str]:
    """Return the SHA-256 of some samples, spread evenly over both sets, by number, and read in this order."""
    numbers: list[int] = []
    for part in (split.train, split.test):
        places = np.linspace(0, len(part) - 1, min(COMPARED_SAMPLES, len(part))).round()
        numbers += part[places.astype(np.int64)].tolist()
    read = {index: sample_sha256(source.sample(index)) for index in sorted(numbers, reverse=backwards)}
    return {index: read[index] for index in numbers}


def samples_sha256(split: Split, digests: Mapping[int, str]) -> str:
    """Return the SHA-256 over the numbers of samples, and over these digests of some of them."""
    digest = hashlib.sha256(f"{len(split.train)} {len(split.test)} ".encode())
    for sample in digests.values():
        digest.update(sample.encode())
    return digest.hexdigest()


def sample_sha256(sample: Any) -> str:  # noqa: ANN401
    """Return the SHA-256 of the types, shapes and values in a sample."""
    digest = hashlib.sha256()
    for part in _parts(sample):
        digest.update(part)
    return digest.hexdigest()


def _parts(sample: Any) -> Iterator[bytes]:  # noqa: ANN401
    if isinstance(sample, np.ndarray):
        sample = torch.from_numpy(sample)
    if isinstance(sample, Tensor):
        yield f"{sample.dtype} {tuple(sample.shape)} ".encode()
        yield sample.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(sample, dict):
        for key, each in sample.items():
            yield f"{key}: ".encode()
            yield from _parts(each)
    elif isinstance(sample, list | tuple):
        for each in sample:
            yield from _parts(each)
    else:
        yield f"{sample!r} ".encode()
