"""Bring images and masks to one size: resized with their aspect ratio kept, centred, padded with zeros."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]


class Box(NamedTuple):
    """Position and size of the picture within the padded array, in pixels."""

    top: int
    left: int
    height: int
    width: int


def fitted_box(height: int, width: int, target_height: int, target_width: int) -> Box:
    """Return the largest box of the picture's aspect ratio, to a pixel, centred in the target."""
    scale = min(target_height / height, target_width / width)
    box_height = min(target_height, max(1, round(height * scale)))
    box_width = min(target_width, max(1, round(width * scale)))
    return Box((target_height - box_height) // 2, (target_width - box_width) // 2, box_height, box_width)


def fit_image(image: Bytes, height: int, width: int) -> Bytes:
    """Resize uint8 [h, w, channels] to [height, width, channels] by Lanczos: smooth, then shrink."""
    return _fit(image, height, width, Image.Resampling.LANCZOS)


def fit_mask(mask: Bytes, height: int, width: int) -> Bytes:
    """Resize uint8 [h, w] to [height, width] by nearest neighbour, so that no new value appears."""
    return _fit(mask[:, :, None], height, width, Image.Resampling.NEAREST)[:, :, 0]


def _fit(pixels: Bytes, height: int, width: int, resampling: Image.Resampling) -> Bytes:
    box = fitted_box(pixels.shape[0], pixels.shape[1], height, width)
    if pixels.shape[:2] != (box.height, box.width):
        pixels = _resize(pixels, box, resampling)
    if pixels.shape[:2] == (height, width):
        return pixels
    padded = np.zeros((height, width, pixels.shape[2]), dtype=np.uint8)
    padded[box.top : box.top + box.height, box.left : box.left + box.width] = pixels
    return padded


def _resize(pixels: Bytes, box: Box, resampling: Image.Resampling) -> Bytes:
    channels = pixels.shape[2]
    picture = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    resized = picture.resize((box.width, box.height), resampling)
    return np.asarray(resized).reshape(box.height, box.width, channels)
