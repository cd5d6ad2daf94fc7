"""The images of one run, as the workers consume them: batches to train on, a share to evaluate."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from unet_scaling.config import Point
from unet_scaling.data import batches
from unet_scaling.data.cache import DecodedImages, ImageSet, build_cache, default_cache_root, open_cache
from unet_scaling.data.manifest import Manifest, read_manifest
from unet_scaling.worker import Group


@dataclass(frozen=True)
class Batch:
    """float32 images [batch, channels, height, width] in 0..1, masks [batch, 1, height, width] in {0, 1}."""

    images: Tensor
    masks: Tensor


@dataclass(frozen=True)
class RunData:
    """All images of a run with this worker's place among them."""

    source: ImageSet | DecodedImages
    split: batches.Split
    point: Point
    group: Group
    manifest_sha256: str

    @property
    def train_images(self) -> int:
        """Images in the training split, each counted once."""
        return len(self.split.train)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps: equal on all workers, what does not fill a step is left out."""
        return self._order_length // self._images_per_step

    @property
    def images_per_epoch(self) -> int:
        """Images that all workers together process in one epoch."""
        return self.steps_per_epoch * self._images_per_step

    @property
    def test_pixels(self) -> list[int]:
        """Pixels of each test image without its padding, in the order of the test split."""
        return [int(height * width) for _, _, height, width in self.source.boxes[self.split.test]]

    def steps(self, epoch: int) -> Iterator[list[Batch]]:
        """This worker's batches of each optimizer step; a function of seed, epoch and place only."""
        training = self.point.training
        order = batches.epoch_order(
            self.split.train, self.point.data.passes_per_epoch, self.point.seed, epoch
        )
        own = batches.worker_batches(
            order, self.group.rank, self.group.size, training.batch_per_worker, training.accumulate
        )
        for step in own:
            yield [self._batch(indices) for indices in step]

    def test_share(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """This worker's test images one by one: position in the test split, image, mask."""
        positions = batches.test_share_of_worker(
            np.arange(len(self.split.test)), self.group.rank, self.group.size
        )
        for position in positions:
            batch = self._batch(self.split.test[position : position + 1])
            yield int(position), batch.images, batch.masks

    def cropped(self, position: int, maps: Tensor) -> Tensor:
        """Maps [..., height, width] of one test image without the padding that resizing added."""
        top, left, height, width = (int(edge) for edge in self.source.boxes[self.split.test[position]])
        return maps[..., top : top + height, left : left + width]

    @property
    def _order_length(self) -> int:
        return self.train_images * self.point.data.passes_per_epoch

    @property
    def _images_per_step(self) -> int:
        training = self.point.training
        return self.point.workers * training.batch_per_worker * training.accumulate

    def _batch(self, indices: np.ndarray) -> Batch:
        images, masks = self.source.gather(indices)
        return Batch(*batches.to_device(images, masks, self.group.device, self.point.training.channels_last))


def load_data(point: Point, group: Group) -> RunData:
    """Open the images of a point; the first worker of each host decodes them once for all.

    Raises UserError (65), before any training, for a folder that does not match its manifest and
    for more workers or larger batches than the images can serve.
    """
    folder = Path(point.data.folder)
    manifest = read_manifest(point.data.manifest_path)
    manifest.require_unchanged(folder)
    split = batches.split(len(manifest.pairs), point.data.test_share, point.data.split_seed)
    training = point.training
    if training.epochs > 0:
        available = len(split.train) * point.data.passes_per_epoch
        batches.require_enough(available, point.workers, training.batch_per_worker, training.accumulate)
    return RunData(_open_images(manifest, folder, point, group), split, point, group, manifest.sha256)


def _open_images(manifest: Manifest, folder: Path, point: Point, group: Group) -> ImageSet | DecodedImages:
    if point.data.loading == "decode":
        return DecodedImages(manifest, folder, point.data)
    if group.identity.local_rank == 0:
        build_cache(manifest, folder, point.data, default_cache_root())
    group.wait_for_all()
    return open_cache(manifest, folder, point.data, default_cache_root())
