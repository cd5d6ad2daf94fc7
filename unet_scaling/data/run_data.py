"""Batches of one run as its workers consume them: steps to train on, a share of the test set to evaluate."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from unet_scaling.data import batches
from unet_scaling.data.augmentation import Augmentation, draw
from unet_scaling.data.image_source import ImageSource, Indices
from unet_scaling.data.prefetch import Prefetcher
from unet_scaling.data.verification import Verification
from unet_scaling.group.group import Group
from unet_scaling.measure.phases import NO_CLOCK, Clock
from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import Phase
from unet_scaling.study.record_lines import ComputeFacts


@dataclass(frozen=True)
class Batch:
    """float32 images [batch, channels, height, width] in 0..1, masks [batch, 1, height, width] in {0, 1}."""

    images: Tensor
    masks: Tensor


@dataclass(frozen=True)
class RunData:
    """All images of a run, and the part of this worker."""

    source: ImageSource
    verification: Verification
    split: batches.Split
    config: RunConfig
    group: Group
    manifest_sha256: str
    opened: float = field(default_factory=time.perf_counter)

    @property
    def compute(self) -> ComputeFacts | None:
        """Return by which profile the workers wait; none where they compute."""
        return None

    @property
    def train_images(self) -> int:
        """Return the number of images in the training split, each counted once."""
        return len(self.split.train)

    @property
    def test_images(self) -> int:
        """Return the number of images in the test split."""
        return len(self.split.test)

    @property
    def steps_per_epoch(self) -> int:
        """Return the optimizer steps: equal on all workers, what does not fill a step is left out."""
        return self._order_length // self._images_per_step

    @property
    def images_per_epoch(self) -> int:
        """Return how many images all workers together process in one epoch."""
        return self.steps_per_epoch * self._images_per_step

    @property
    def test_pixels(self) -> list[int]:
        """Return the pixels of each test image without its padding, in the order of the test split."""
        return [int(height * width) for _, _, height, width in self.source.boxes[self.split.test]]

    def steps(self, epoch: int, clock: Clock, first: int = 0) -> Iterator[Iterator[Batch]]:
        """Yield this worker's batches of each step from `first` on; they are loaded as they are taken.

        They are a function of seed, epoch, rank and number of workers alone. Take all of a step before the
        next: memory is that of one batch, however many passes a step has.
        """
        remaining = self._own_indices(epoch)[first:]
        gathered = self._gathered(remaining.reshape(-1, self.config.training.batch_per_worker))
        for step in remaining:
            yield (self._augmented(self._next(gathered, clock), epoch, indices, clock) for indices in step)

    def _own_indices(self, epoch: int) -> Indices:
        """Return the images of this worker in an epoch, [steps, passes, batch]."""
        training = self.config.training
        passes = self.config.data.passes_per_epoch
        order = batches.epoch_order(self.split.train, passes, self.config.seed, epoch)
        return batches.worker_batches(
            order,
            self.group.rank,
            self.group.size,
            training.batch_per_worker,
            training.accumulate,
            self.config.plays_per_worker,
        )

    def test_share(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield this worker's test images one by one: position in the test split, image, mask."""
        positions = batches.test_share_of_worker(
            np.arange(len(self.split.test)), self.group.rank, self.group.size
        )
        for position in positions:
            one = self.split.test[position : position + 1]
            batch = self._next(map(self.source.gather, [one]), NO_CLOCK)
            yield int(position), batch.images, batch.masks

    def cropped(self, position: int, maps: Tensor) -> Tensor:
        """Return maps [..., height, width] of one test image without the padding that resizing added."""
        top, left, height, width = (int(edge) for edge in self.source.boxes[self.split.test[position]])
        return maps[..., top : top + height, left : left + width]

    @property
    def _order_length(self) -> int:
        return self.train_images * self.config.data.passes_per_epoch

    @property
    def _images_per_step(self) -> int:
        training = self.config.training
        return self.config.played_workers * training.batch_per_worker * training.accumulate

    @cached_property
    def _prefetcher(self) -> Prefetcher:
        return Prefetcher(self.source, self.config.data.loader_workers)

    def _gathered(self, order: Indices) -> Iterator[tuple[Tensor, Tensor]]:
        if self.config.data.loader_workers:
            return self._prefetcher.batches(order)
        return map(self.source.gather, order)

    def _next(self, gathered: Iterator[tuple[Tensor, Tensor]], clock: Clock) -> Batch:
        self.verification.require_whole()
        images, masks = next(gathered)
        clock.mark(Phase.DATA_WAIT)
        layout = self.config.training.channels_last
        batch = Batch(*batches.to_device(images, masks, self.group.device, layout))
        clock.mark(Phase.HOST_TO_DEVICE)
        return batch

    def _augmented(self, batch: Batch, epoch: int, indices: Indices, clock: Clock) -> Batch:
        augmentation = Augmentation.of(self.config.data)
        if augmentation.is_off:
            return batch
        draws = draw(self.config.seed, epoch, indices)
        augmented = Batch(*augmentation.augment(batch.images, batch.masks, draws))
        clock.mark(Phase.HOST_TO_DEVICE)
        return augmented
