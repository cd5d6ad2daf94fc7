"""Decode pairs from their files to pixels at the size of the study, stage by stage.

Each stage is a function of its own, so that the input profiler times the very code that training runs.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.data.folder import IMAGES_FOLDER, MASKS_FOLDER, Manifest, PairEntry, parse_foreground
from unet_scaling.data.order import Indices
from unet_scaling.data.pixels import (
    Bytes,
    Pixels,
    decode,
    fit_image,
    fit_mask,
    fitted_box,
    read_bytes,
    to_image,
    to_mask_values,
)
from unet_scaling.study.command_line import called
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.options import Data

PackedBatch = tuple[Tensor, Tensor]


class DecodedImages:
    """All images of a data set, decoded from their files at every access; nothing is kept."""

    def __init__(self, manifest: Manifest, folder: Path, data: Data) -> None:
        """Raise UserError (2) for a data.intensity or data.foreground that is not for these files."""
        manifest.require_options(data)
        self._manifest = manifest
        self._folder = folder
        self._data = data
        self.boxes = padding_boxes(manifest, data)

    def gather(self, indices: Indices) -> PackedBatch:
        """Return a batch as `ImageSource.gather` does."""
        pairs = [self._manifest.pairs[index] for index in indices]
        return collate([load_pair(self._folder, self._data, pair) for pair in pairs])


def padding_boxes(manifest: Manifest, data: Data) -> npt.NDArray[np.int32]:
    """Return top, left, height, width [n, 4] of each picture within its padding, in pixels."""
    size = (data.image_height, data.image_width)
    return np.array([fitted_box(pair.height, pair.width, *size) for pair in manifest.pairs], np.int32)


def load_pair(folder: Path, data: Data, pair: PairEntry, verified: bool = False) -> tuple[Bytes, Bytes]:
    """Return image [height, width, channels] and mask [height, width] of 0 and 1, at the study's size.

    Raises UserError (65) for files that are not those of the manifest; `verified` compares checksums.
    """
    contents = read_pair(folder, pair)
    if verified:
        paths = pair_paths(folder, pair)
        for path, content, entry in zip(paths, contents, (pair.image, pair.mask), strict=True):
            digest = hashlib.sha256(content).hexdigest()
            if digest != entry.sha256:
                found = f"changed since the manifest was made (SHA-256 {digest[:12]}...)"
                raise UserError(f"{path}: {found}; run {called('data', 'check', folder)}", EXIT_BAD_DATA)
    return fit_pair(data, *convert_pair(folder, data, pair, *decode_pair(folder, pair, *contents)))


def pair_paths(folder: Path, pair: PairEntry) -> tuple[Path, Path]:
    """Return the files of image and mask."""
    return folder / IMAGES_FOLDER / pair.image.name, folder / MASKS_FOLDER / pair.mask.name


def read_pair(folder: Path, pair: PairEntry) -> tuple[bytes, bytes]:
    """Return the bytes of both files."""
    image_path, mask_path = pair_paths(folder, pair)
    return read_bytes(image_path), read_bytes(mask_path)


def decode_pair(folder: Path, pair: PairEntry, image: bytes, mask: bytes) -> tuple[Pixels, Pixels]:
    """Return the pixels of both files as they are stored, [h, w, 1 to 4]."""
    image_path, mask_path = pair_paths(folder, pair)
    decoded = decode(image_path, image), decode(mask_path, mask, mask=True)
    for path, pixels in zip((image_path, mask_path), decoded, strict=True):
        if pixels.shape[:2] != (pair.height, pair.width):
            found = f"has {pixels.shape[1]} x {pixels.shape[0]} pixels, not {pair.width} x {pair.height}"
            raise UserError(f"{path}: {found}; run {called('data', 'check', folder)}", EXIT_BAD_DATA)
    return decoded


def convert_pair(
    folder: Path, data: Data, pair: PairEntry, image: Pixels, mask: Pixels
) -> tuple[Bytes, Bytes]:
    """Return the uint8 image [h, w, channels], and the mask [h, w] as 0 and 1 by the foreground rule."""
    _, mask_path = pair_paths(folder, pair)
    foreground = foreground_of(mask_path, mask, data)
    if np.count_nonzero(foreground) != pair.foreground_pixels:
        found = "its foreground is not that of the manifest"
        raise UserError(f"{mask_path}: {found}; run {called('data', 'check', folder)}", EXIT_BAD_DATA)
    return to_image(image, data.channels, data.intensity), foreground


def foreground_of(path: Path, mask: Pixels, data: Data) -> Bytes:
    """Return a decoded mask as 0 and 1 [h, w] by the foreground rule."""
    return parse_foreground(data.foreground).mask(to_mask_values(path, mask))


def fit_pair(data: Data, image: Bytes, mask: Bytes) -> tuple[Bytes, Bytes]:
    """Return both at the size of the study."""
    size = (data.image_height, data.image_width)
    return fit_image(image, *size), fit_mask(mask, *size)


def collate(pairs: Sequence[tuple[Bytes, Bytes]]) -> PackedBatch:
    """Return uint8 images [b, channels, height, width], stored channels-last, and packed masks."""
    images = torch.from_numpy(np.stack([image for image, _ in pairs]))
    masks = np.packbits(np.stack([mask for _, mask in pairs]), axis=-1)
    return images.permute(0, 3, 1, 2), torch.from_numpy(masks)
