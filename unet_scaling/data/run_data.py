"""Batches of one run as its workers consume them: steps to train on, a share of the test set to evaluate."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from unet_scaling.data import batches
from unet_scaling.data.image_source import Batch, Indices, Source
from unet_scaling.data.prefetch import Prefetcher
from unet_scaling.data.verification import Verification
from unet_scaling.group.group import Group
from unet_scaling.measure.phases import NO_CLOCK, Clock
from unet_scaling.study.config import RunConfig
from unet_scaling.study.measurements import Phase
from unet_scaling.study.record_lines import ComputeFacts


@dataclass(frozen=True)
class RunData(ABC):
    """All samples of a run, and the part of this worker."""

    source: Source
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

    def steps(self, epoch: int, clock: Clock, first: int = 0) -> Iterator[Iterator[Batch]]:
        """Yield this worker's batches of each step from `first` on; they are loaded as they are taken.

        They are a function of seed, epoch, rank and number of workers alone. Take all of a step before the
        next: memory is that of one batch, however many passes a step has.
        """
        remaining = self._own_indices(epoch)[first:]
        gathered = self._gathered(remaining.reshape(-1, self.config.training.batch_per_worker))
        for step in remaining:
            yield (self._transformed(self._next(gathered, clock), epoch, indices, clock) for indices in step)

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

    def test_share(self) -> Iterator[tuple[int, Batch]]:
        """Yield this worker's test samples, a batch of each, with its position in the test split."""
        positions = batches.test_share_of_worker(
            np.arange(len(self.split.test)), self.group.rank, self.group.size
        )
        for position in positions:
            yield int(position), self.test_sample(int(position))

    def test_sample(self, position: int) -> Batch:
        """Return the test sample at this position of the test split, as a batch of one."""
        one = self.split.test[position : position + 1]
        return self._next(map(self.source.gather, [one]), NO_CLOCK)

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

    def _gathered(self, order: Indices) -> Iterator[Batch]:
        if self.config.data.loader_workers:
            return self._prefetcher.batches(order)
        return map(self.source.gather, order)

    def _next(self, gathered: Iterator[Batch], clock: Clock) -> Batch:
        self.verification.require_whole()
        packed = next(gathered)
        clock.mark(Phase.DATA_WAIT)
        batch = self._on_device(packed)
        clock.mark(Phase.HOST_TO_DEVICE)
        return batch

    @abstractmethod
    def _on_device(self, packed: Batch) -> Batch:
        """Bring a batch to the worker's device."""

    @abstractmethod
    def _transformed(self, batch: Batch, epoch: int, indices: Indices, clock: Clock) -> Batch:
        """Return the batch of these training samples as it is trained on in this epoch."""
