"""Images ready for training: decoded once into memory-mapped arrays, or decoded at every access.

A cache is a folder named by the SHA-256 of the data and of every option that changes a pixel:

    images.npy   uint8 [n, height, width, channels]
    masks.npy    uint8 [n, height, width], 0 and 1
    boxes.npy    int32 [n, 4]: top, left, height, width of the picture within its padding
    cache.json   what it was made from, for people

It is built beside its place and renamed, so one that is there is whole.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.config import Data
from unet_scaling.data.fitting import Bytes, fit_image, fit_mask, fitted_box
from unet_scaling.data.foreground import parse_foreground
from unet_scaling.data.images import Pixels, decode, read_bytes, to_image, to_mask_values
from unet_scaling.data.manifest import FileEntry, Manifest, PairEntry
from unet_scaling.data.pairs import IMAGES, MASKS
from unet_scaling.data.parallel import map_in_order
from unet_scaling.errors import EXIT_BAD_DATA, UserError

CACHE_FORMAT = 1  # to be raised whenever the same file and options give other pixels
BUILDING_PREFIX = ".building-"
ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True)
class ImageSet:
    """All images of a data set in memory-mapped arrays; row i belongs to stems[i]."""

    images: Bytes
    masks: Bytes
    boxes: npt.NDArray[np.int32]
    stems: tuple[str, ...]

    def gather(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """uint8 images [b, channels, height, width], stored channels-last, and masks [b, height, width]."""
        images = torch.from_numpy(self.images[indices])
        return images.permute(0, 3, 1, 2), torch.from_numpy(self.masks[indices])


class DecodedImages:
    """The same images, decoded from their files at every access; nothing is kept."""

    def __init__(self, manifest: Manifest, folder: Path, data: Data) -> None:
        """Raises UserError (2) where the masks were checked with another rule than data.foreground."""
        manifest.require_foreground(data.foreground)
        self._manifest, self._folder, self._data = manifest, folder, data
        self.boxes = _boxes(manifest, data)
        self.stems = _stems(manifest)

    def gather(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """As ImageSet.gather; UserError (65) for a file that cannot be decoded any more."""
        loaded = [_load_pair(self._folder, self._data, self._manifest.pairs[index]) for index in indices]
        images = torch.from_numpy(np.stack([image for image, _ in loaded]))
        return images.permute(0, 3, 1, 2), torch.from_numpy(np.stack([mask for _, mask in loaded]))


def default_cache_root() -> Path:
    """$UNET_SCALING_CACHE, or unet-scaling in $XDG_CACHE_HOME or ~/.cache; there the folder images."""
    own = os.environ.get("UNET_SCALING_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    root = Path(own) if own else (Path(shared) if shared else Path.home() / ".cache") / "unet-scaling"
    return root / "images"


def cache_path(manifest: Manifest, data: Data, cache_root: Path) -> Path:
    """Where the cache of these data and options is, or would be."""
    canonical = json.dumps(_ingredients(manifest, data), sort_keys=True)
    return cache_root / hashlib.sha256(canonical.encode()).hexdigest()


def build_cache(manifest: Manifest, folder: Path, data: Data, cache_root: Path) -> Path:
    """Decode every image once, unless that was done before; returns the finished cache's folder.

    May be called by several processes at a time: the first to finish wins, and a process that is
    killed leaves nothing that could be taken for a cache. Raises UserError: 65 for files that are
    not those of the manifest, 2 for a place that is full or cannot be written.
    """
    manifest.require_foreground(data.foreground)
    place = cache_path(manifest, data, cache_root)
    if place.is_dir():
        return place
    try:
        cache_root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache_root)
        _require_space(manifest, data, cache_root)
        _build(manifest, folder, data, place)
    except OSError as error:
        raise UserError(
            f"{cache_root}: the decoded images cannot be kept here ({error.strerror});"
            " set UNET_SCALING_CACHE to a folder on a disk with space"
        ) from None
    return place


def open_cache(manifest: Manifest, folder: Path, data: Data, cache_root: Path) -> ImageSet:
    """Map a finished cache into memory; UserError (65) where there is none or it is not whole."""
    place = cache_path(manifest, data, cache_root)
    try:
        images, masks, boxes = (
            np.load(place / f"{name}.npy", mmap_mode="r") for name in ("images", "masks", "boxes")
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{place}: no sound cache of {folder} ({error}); remove it and build it again", EXIT_BAD_DATA
        ) from None
    shape = (len(manifest.pairs), data.image_height, data.image_width)
    expected = [(*shape, data.channels), shape, (len(manifest.pairs), 4)]
    found = [array.shape for array in (images, masks, boxes)]
    if found != expected or not np.array_equal(boxes, _boxes(manifest, data)):
        raise UserError(
            f"{place}: the cache has shapes {found} instead of {expected}; remove it", EXIT_BAD_DATA
        )
    return ImageSet(images, masks, boxes, _stems(manifest))


def _ingredients(manifest: Manifest, data: Data) -> dict[str, str | int]:
    """Everything that a pixel of the cache depends on."""
    return {
        "cache_format": CACHE_FORMAT,
        "manifest_sha256": manifest.sha256,
        "image_height": data.image_height,
        "image_width": data.image_width,
        "channels": data.channels,
        "foreground": parse_foreground(data.foreground).text,
        "intensity": data.intensity,
    }


def _build(manifest: Manifest, folder: Path, data: Data, place: Path) -> None:
    building = Path(tempfile.mkdtemp(prefix=BUILDING_PREFIX, dir=place.parent))
    try:
        _write_arrays(manifest, folder, data, building)
        (building / "cache.json").write_text(json.dumps(_ingredients(manifest, data), indent=1) + "\n")
        _rename_unless_there(building, place)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _rename_unless_there(building: Path, place: Path) -> None:
    try:
        building.rename(place)
    except OSError:
        if not place.is_dir():  # else another process was faster, and its cache is equal
            raise


def _write_arrays(manifest: Manifest, folder: Path, data: Data, building: Path) -> None:
    """Written as streams: on a full disk a write fails, where a mapped page would end the process."""
    shape = (len(manifest.pairs), data.image_height, data.image_width)
    load = partial(_load_pair, folder, data, verified=True)
    with (building / "images.npy").open("wb") as images, (building / "masks.npy").open("wb") as masks:
        for file, dimensions in ((images, (*shape, data.channels)), (masks, shape)):
            header = {"descr": "|u1", "fortran_order": False, "shape": dimensions}
            np.lib.format.write_array_header_1_0(file, header)
        for image, mask in map_in_order(load, manifest.pairs, "decoding"):
            images.write(image.tobytes())
            masks.write(mask.tobytes())
        for file in (images, masks):
            file.flush()
            os.fsync(file.fileno())
    np.save(building / "boxes.npy", _boxes(manifest, data))


def _load_pair(folder: Path, data: Data, pair: PairEntry, verified: bool = False) -> tuple[Bytes, Bytes]:
    """Image [height, width, channels] and mask [height, width] of 0 and 1 at the size of the study."""
    image_path, mask_path = folder / IMAGES / pair.image.name, folder / MASKS / pair.mask.name
    image_content, mask_content = read_bytes(image_path), read_bytes(mask_path)
    if verified:
        _require_same_content(image_path, image_content, pair.image)
        _require_same_content(mask_path, mask_content, pair.mask)
    image_pixels, mask_pixels = decode(image_path, image_content), decode(mask_path, mask_content)
    _require_same_size(image_path, image_pixels, pair)
    _require_same_size(mask_path, mask_pixels, pair)
    image = to_image(image_pixels, data.channels, data.intensity)
    mask = parse_foreground(data.foreground).mask(to_mask_values(mask_path, mask_pixels))
    size = (data.image_height, data.image_width)
    return fit_image(image, *size), fit_mask(mask, *size)


def _require_same_size(path: Path, pixels: Pixels, pair: PairEntry) -> None:
    if pixels.shape[:2] != (pair.height, pair.width):
        raise UserError(
            f"{path}: has {pixels.shape[1]} x {pixels.shape[0]} pixels, {pair.width} x {pair.height} in the"
            f" manifest; run python -m unet_scaling.data check {path.parents[1]}",
            EXIT_BAD_DATA,
        )


def _require_same_content(path: Path, content: bytes, entry: FileEntry) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256:
        raise UserError(
            f"{path}: changed since the manifest was made (SHA-256 {found[:12]}..., there"
            f" {entry.sha256[:12]}...); run python -m unet_scaling.data check {path.parents[1]}",
            EXIT_BAD_DATA,
        )


def _boxes(manifest: Manifest, data: Data) -> npt.NDArray[np.int32]:
    target = (data.image_height, data.image_width)
    return np.array([fitted_box(pair.height, pair.width, *target) for pair in manifest.pairs], np.int32)


def _stems(manifest: Manifest) -> tuple[str, ...]:
    return tuple(pair.stem for pair in manifest.pairs)


def _require_space(manifest: Manifest, data: Data, cache_root: Path) -> None:
    needed = len(manifest.pairs) * data.image_height * data.image_width * (data.channels + 1)
    free = shutil.disk_usage(cache_root).free
    if free < needed:
        raise UserError(
            f"{cache_root}: the decoded images take {needed / 2**20:.0f} MiB, {free / 2**20:.0f} MiB are"
            " free; set UNET_SCALING_CACHE to a folder on a disk with space, or data.loading = 'decode'"
        )


def _remove_abandoned(cache_root: Path) -> None:
    """Remove what killed processes left; younger folders may be someone's work."""
    for folder in cache_root.glob(f"{BUILDING_PREFIX}*"):
        try:
            abandoned = time.time() - folder.stat().st_mtime > ABANDONED_SECONDS
        except FileNotFoundError:
            continue  # another process removed it, or finished
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)
