"""Decode pairs from their files to pixels at the size of the study, and verify that the files stay the same.

Each stage is a function of its own, so that the input profiler times the very code that training runs.

The files are those of the manifest, before the first epoch and until the last: all are hashed before the
first epoch and again before the run is called complete. In between, at each checkpoint, those are hashed
again whose size, times or inode have changed: a file that was changed and changed back between two of these
moments is not noticed. Files of decoded images stay open, since they stay mapped when somebody removes or
replaces them.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_BUG, UserError
from unet_scaling.study.options import Data
from unet_scaling.study.progress import map_in_order
from unet_scaling.study.texts import called

# Of the 64 of a SHA-256: enough to tell two files apart in a message.
SHOWN_DIGEST_CHARACTERS = 12

PackedBatch = tuple[Tensor, Tensor]
Attributes = tuple[int, int, int, int]


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
                found = f"changed since the manifest was made (SHA-256 {digest[:SHOWN_DIGEST_CHARACTERS]}...)"
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


class Verification:
    """The files that a run reads, with the SHA-256 that each must have.

    `mapped` files, the arrays of a cache, stay open and were verified before: of them this worker reads
    pages. Without any, files are read by their names.
    """

    def __init__(self, digests: Mapping[Path, str], cure: str, mapped: Sequence[Path] = ()) -> None:
        """Raises OSError where a mapped file cannot be opened."""
        self._digests = dict(digests)
        self._cure = cure
        self._files = {path: path.open("rb") for path in mapped}
        self._sizes = {path: self._attributes(path)[0] for path in mapped}
        self._seen: dict[Path, Attributes] = {}
        if mapped:
            self._seen = {path: self._attributes(path) for path in digests}

    @property
    def bytes(self) -> int:
        """Return the size of all files when they were hashed."""
        return sum(attributes[0] for attributes in self._seen.values())

    def require_whole(self) -> None:
        """Raise UserError where a mapped file was cut (65) or lost (1): the kernel ends those who read on."""
        for path, size in self._sizes.items():
            remaining = self._attributes(path)[0]
            if remaining < size:
                found = f"was cut from {size} to {remaining} bytes while it was in use"
                raise UserError(f"{path}: {found}; {self._cure}", EXIT_BAD_DATA)

    def verify_all(self) -> None:
        """Hash every file; UserError: 65 where one has changed, 1 where one cannot be read."""
        self._verify(list(self._digests))

    def verify_changed(self) -> None:
        """Hash the files whose attributes have changed since they were hashed; raises as `verify_all`."""
        self._verify([path for path in self._digests if self._attributes(path) != self._seen.get(path)])

    def _verify(self, paths: Sequence[Path]) -> None:
        for path, (attributes, digest) in zip(
            paths, map_in_order(self._hash, paths, "verifying"), strict=True
        ):
            if digest != self._digests[path]:
                found = f"has changed (SHA-256 {digest[:SHOWN_DIGEST_CHARACTERS]}...)"
                raise UserError(f"{path}: {found}; {self._cure}", EXIT_BAD_DATA)
            self._seen[path] = attributes

    def _hash(self, path: Path) -> tuple[Attributes, str]:
        """Return the attributes from before the reading, so that a change during it is seen later."""
        attributes = self._attributes(path)
        try:
            file = self._files.get(path)
            with nullcontext(file) if file else path.open("rb") as opened:
                opened.seek(0)
                return attributes, hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(path, error) from None

    def _attributes(self, path: Path) -> Attributes:
        file = self._files.get(path)
        try:
            status = os.fstat(file.fileno()) if file else path.stat()
        except OSError as error:
            raise _unreadable(path, error) from None
        # The time of the last change of status cannot be set by programs that keep the others (cp -p, rsync).
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def verification_of_files(manifest: Manifest, folder: Path, index: int, count: int) -> Verification:
    """Return the verification of each `count`-th pair from `index` on: the share of one worker of a host."""
    digests = {}
    for pair in manifest.pairs[index::count]:
        for path, entry in zip(pair_paths(folder, pair), (pair.image, pair.mask), strict=True):
            digests[path] = entry.sha256
    cure = f"bring the file back, or run {called('data', 'check', folder)}"
    return Verification(digests, cure)


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be verified ({error.strerror}); is its disk there?", EXIT_BUG)
