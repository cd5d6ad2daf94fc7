"""Images and masks of one run, as its workers consume them."""

from dataclasses import dataclass, replace

from torch import Tensor

from unet_scaling.data import batches
from unet_scaling.data.augmentation import Augmentation, draw
from unet_scaling.data.image_source import ImageSource, Indices, PackedBatch
from unet_scaling.data.run_data import RunData
from unet_scaling.measure.phases import Clock
from unet_scaling.study.measurements import Phase

CropBox = tuple[int, int, int, int]


@dataclass(frozen=True)
class ImageBatch:
    """float32 images [batch, channels, height, width] in 0..1, masks [batch, 1, height, width] in {0, 1}.

    `box` is top, left, height and width in pixels of a test image within the padding that resizing added.
    """

    images: Tensor
    masks: Tensor
    box: CropBox | None = None

    def cropped(self, maps: Tensor) -> Tensor:
        """Return maps [..., height, width] of a test image without its padding."""
        assert self.box is not None
        top, left, height, width = self.box
        inside = maps[..., top : top + height, left : left + width]
        counted = tuple(inside.shape[-2:])
        assert counted == (height, width), f"of a test image {counted} pixels, there are {height, width}"
        return inside


@dataclass(frozen=True)
class ImageData(RunData):
    """All images of a run, and the part of this worker."""

    source: ImageSource

    def test_sample(self, position: int) -> ImageBatch:
        """Return the test image at this position of the test split."""
        batch: ImageBatch = super().test_sample(position)
        return replace(batch, box=self._box(position))

    def _box(self, position: int) -> CropBox:
        top, left, height, width = self.source.boxes[self.split.test[position]].tolist()
        return top, left, height, width

    def _on_device(self, packed: PackedBatch) -> ImageBatch:
        layout = self.config.training.channels_last
        return ImageBatch(*batches.to_device(*packed, self.group.device, layout))

    def _transformed(self, batch: ImageBatch, epoch: int, indices: Indices, clock: Clock) -> ImageBatch:
        augmentation = Augmentation.of(self.config.data)
        if augmentation.is_off:
            return batch
        draws = draw(self.config.seed, epoch, indices)
        augmented = ImageBatch(*augmentation.augment(batch.images, batch.masks, draws))
        clock.mark(Phase.HOST_TO_DEVICE)
        return augmented
