"""Random flips, crop, brightness and contrast of a batch, computed on the device of the batch.

The result is a pure function of (seed, epoch, image): the same under all frameworks, at any number of
workers, in any batch, and in a resumed run. Flips and crops move pixels and compute none, so that a mask
stays a mask; brightness and contrast change images alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.study.options import Data
from unet_scaling.study.random_streams import AUGMENTATION_STREAM

# The raw numbers of an image, in this order: a new one goes to the end.
FLIP_ROWS, FLIP_COLUMNS, TOP, LEFT, BRIGHTNESS, CONTRAST = range(6)
DRAWN = 6
RAW_BITS = 64
FLOAT_BITS = 53
MIDDLE_GREY = 0.5
FLIP_PROBABILITY = 0.5

Draws = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of a study; `augment` returns its arguments where all of it is off."""

    flips: bool
    crop: float
    brightness: float
    contrast: float

    @classmethod
    def of(cls, data: Data) -> "Augmentation":
        return cls(data.augment_flips, data.augment_crop, data.augment_brightness, data.augment_contrast)

    @property
    def is_off(self) -> bool:
        return not self.flips and self.crop == 1 and self.brightness == 0 and self.contrast == 0

    def augment(self, images: Tensor, masks: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Augment float32 images [b, C, H, W] of 0..1 and masks [b, 1, H, W], with a row of `draws` each."""
        if self.flips or self.crop < 1:
            rows, columns = self._kept_pixels(images, draws)
            images = _select(images, rows, columns)
            masks = _select(masks, rows, columns)
        if self.brightness or self.contrast:
            images = self._adjust(images, _signed(draws[:, BRIGHTNESS]), _signed(draws[:, CONTRAST]))
        return images, masks

    def _kept_pixels(self, images: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Return the rows and columns [b, kept] of each image that are kept, in their new order."""
        height, width = images.shape[2:]
        rows = self._kept(height, draws[:, TOP], draws[:, FLIP_ROWS])
        return rows, self._kept(width, draws[:, LEFT], draws[:, FLIP_COLUMNS])

    def _kept(self, length: int, offset: Draws, flip: Draws) -> Tensor:
        kept = max(1, round(self.crop * length))
        first = (offset * (length - kept + 1)).astype(np.int64)
        numbers = first[:, None] + np.arange(kept)
        flipped = (flip < FLIP_PROBABILITY) & self.flips
        return torch.from_numpy(np.where(flipped[:, None], numbers[:, ::-1], numbers))

    def _adjust(self, images: Tensor, brightness: Draws, contrast: Draws) -> Tensor:
        shift = _per_image(self.brightness * brightness, images)
        gain = _per_image(1 + self.contrast * contrast, images)
        return ((images - MIDDLE_GREY) * gain + (MIDDLE_GREY + shift)).clamp_(0, 1)


def draw(seed: int, epoch: int, images: npt.NDArray[np.int64]) -> Draws:
    """Return [b, DRAWN] numbers of 0..1 for these images, by their place in the data set.

    numpy promises the raw numbers of a bit generator to stay the same in all its versions.
    """
    raw = [
        np.random.PCG64([seed, epoch, int(image), AUGMENTATION_STREAM]).random_raw(DRAWN) for image in images
    ]
    integers = np.array(raw, dtype=np.uint64) >> np.uint64(RAW_BITS - FLOAT_BITS)
    return integers.astype(np.float64) * 2.0**-FLOAT_BITS


def _signed(draws: Draws) -> Draws:
    """Map 0..1 to -1..1."""
    return 2 * draws - 1


def _per_image(values: Draws, images: Tensor) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(images.device).view(-1, 1, 1, 1)


def _select(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return these rows and columns of each of the maps [b, c, H, W], on their device and in their layout."""
    device = maps.device
    numbers = torch.arange(len(maps), device=device)[:, None, None]
    pixels = maps.permute(0, 2, 3, 1)
    selected = pixels[numbers, rows.to(device)[:, :, None], columns.to(device)[:, None, :]]
    selected = selected.permute(0, 3, 1, 2)
    channels_last = maps.stride(1) == 1
    return selected if channels_last else selected.clone(memory_format=torch.contiguous_format)
