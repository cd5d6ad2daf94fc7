"""Images decoded once into memory-mapped arrays, or kept on a device.

A cache is a folder named by the SHA-256 of the data and of every option that changes a pixel:

    images.npy   uint8 [n, height, width, channels]
    masks.npy    uint8 [n, height, ceil(width / 8)]: a bit for each pixel
    boxes.npy    int32 [n, 4]: top, left, height, width of the picture within its padding
    cache.json   what it was made from, and the SHA-256 of the three

It is built under another name and renamed, so a cache that exists is whole. The first worker of a host reads
it once and compares the checksums, which also brings it into memory.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.data.decoding import Verification, load_pair, padding_boxes
from unet_scaling.data.folder import Manifest, parse_foreground
from unet_scaling.data.order import Indices
from unet_scaling.data.pixels import Bytes, packed_width
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.study.options import Data
from unet_scaling.study.progress import map_in_order

# Raised whenever the same files and options give other arrays.
CACHE_FORMAT = 4
ARRAYS = ("images.npy", "masks.npy", "boxes.npy")
FACTS_NAME = "cache.json"
BUILDING_PREFIX = ".building-"
CURE_OF_DISK = "set UNET_SCALING_CACHE to a folder on a disk with space"
# No build takes a day: an older one belongs to a process that was killed.
ABANDONED_SECONDS = 24 * 3600
# Of the memory of a GPU that is free before the model is built; the rest is for training.
LARGEST_SHARE = 0.5


@dataclass(frozen=True)
class CachedImages:
    """All images of a data set in memory-mapped arrays; row i belongs to pair i of the manifest."""

    images: Bytes
    masks: Bytes
    boxes: npt.NDArray[np.int32]
    folder: Path

    @classmethod
    def map(cls, folder: Path) -> Self:
        """Map the arrays of a cache into memory. Raises OSError and ValueError."""
        images, masks, boxes = (np.load(folder / name, mmap_mode="r") for name in ARRAYS)
        return cls(images, masks, boxes, folder)

    def __reduce__(self) -> tuple[Callable[[Path], Self], tuple[Path]]:
        # A loader process maps the files itself: a pickled memory map would hold all pixels.
        return self.map, (self.folder,)

    def gather(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return a batch as `ImageSource.gather` does."""
        images = torch.from_numpy(self.images[indices])
        return images.permute(0, 3, 1, 2), torch.from_numpy(self.masks[indices])


class ResidentImages:
    """The bytes of a cache, kept on a device, so that nothing is left to load; a batch is gathered there."""

    def __init__(self, cached: CachedImages, device: torch.device) -> None:
        """Raise UserError (2) where they would take more than half of a GPU's free memory."""
        needed = cached.images.nbytes + cached.masks.nbytes
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else np.inf
        if needed > LARGEST_SHARE * free:
            found = f"the images take {needed / 2**20:.0f} MiB, over half of the {free / 2**20:.0f} MiB free"
            raise UserError(f"data.loading = 'device': {found} on {device}; use 'cache'")
        self._device = device
        self._images = torch.from_numpy(np.array(cached.images)).to(device)
        self._masks = torch.from_numpy(np.array(cached.masks)).to(device)
        self.boxes = cached.boxes

    def gather(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return a batch as `ImageSource.gather` does, on the device."""
        chosen = torch.from_numpy(indices).to(self._device)
        return self._images[chosen].permute(0, 3, 1, 2), self._masks[chosen]


def default_cache_root() -> Path:
    """Return images/ in $UNET_SCALING_CACHE, or in unet-scaling of $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("UNET_SCALING_CACHE"):
        return Path(own) / "images"
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "unet-scaling" / "images"


def cache_path(manifest: Manifest, data: Data, cache_root: Path) -> Path:
    """Return the folder of the cache of these data and options, which need not exist."""
    canonical = json.dumps(_ingredients(manifest, data), sort_keys=True)
    return cache_root / hashlib.sha256(canonical.encode()).hexdigest()


def _ingredients(manifest: Manifest, data: Data) -> dict[str, Any]:
    """Return everything that a pixel of the cache depends on."""
    return {
        "cache_format": CACHE_FORMAT,
        "manifest_sha256": manifest.sha256,
        "image_height": data.image_height,
        "image_width": data.image_width,
        "channels": data.channels,
        "foreground": parse_foreground(data.foreground).text,
        "intensity": data.intensity,
    }


def pair_bytes(data: Data) -> int:
    """Return the bytes of an image with its mask, in the cache and on its way to the device."""
    return data.image_height * (data.image_width * data.channels + packed_width(data.image_width))


def build_cache(manifest: Manifest, folder: Path, data: Data, cache_root: Path) -> Path:
    """Decode every image once, unless that was done before; return the finished cache's folder.

    Several processes may call this at a time: the first to finish wins, and a process that is killed
    leaves nothing that could be taken for a cache. Raises UserError: 65 for files that are not those
    of the manifest or a damaged cache, 2 for a disk that is full or cannot be written.
    """
    manifest.require_options(data)
    cache = cache_path(manifest, data, cache_root)
    if cache.is_dir():
        _require_undamaged(cache)
        return cache
    try:
        cache_root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache_root)
        needed = len(manifest.pairs) * pair_bytes(data)
        free = shutil.disk_usage(cache_root).free
        if free < needed:
            sizes = f"the decoded images take {needed / 2**20:.0f} MiB, {free / 2**20:.0f} MiB are free"
            raise UserError(f"{cache_root}: {sizes}; {CURE_OF_DISK}, or data.loading = 'decode'")
        _build(manifest, folder, data, cache)
    except OSError as error:
        raise cannot_be_kept(cache_root, error) from None
    return cache


def cannot_be_kept(cache_root: Path, error: OSError) -> UserError:
    return UserError(f"{cache_root}: cannot keep decoded images ({error.strerror}); {CURE_OF_DISK}")


def _require_undamaged(cache: Path) -> None:
    """Raise UserError (65) unless the arrays are those that were written."""
    problem = "the arrays do not match their checksums"
    try:
        facts: Any = read_json_with_checksum(cache / FACTS_NAME)
        if facts["arrays"] == _digests(cache):
            return
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = str(error)
    raise UserError(f"{cache}: the cache is damaged ({problem}); rename it", EXIT_BAD_DATA)


def _digests(cache: Path) -> dict[str, str]:
    """Return the SHA-256 of the arrays. Raises OSError."""
    digests = {}
    for name in ARRAYS:
        with (cache / name).open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _remove_abandoned(cache_root: Path) -> None:
    """Remove what killed processes left; younger folders may be in use."""
    for folder in cache_root.glob(f"{BUILDING_PREFIX}*"):
        try:
            abandoned = time.time() - folder.stat().st_mtime > ABANDONED_SECONDS
        except FileNotFoundError:
            continue  # another process removed it, or finished
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)


def _build(manifest: Manifest, folder: Path, data: Data, cache: Path) -> None:
    building = Path(tempfile.mkdtemp(prefix=BUILDING_PREFIX, dir=cache.parent))
    try:
        _write_arrays(manifest, folder, data, building)
        facts = _ingredients(manifest, data) | {"arrays": _digests(building)}
        write_json_with_checksum(building / FACTS_NAME, facts)
        building.rename(cache)
    except OSError:
        if not cache.is_dir():  # else another process was faster, and its cache is equal
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write_arrays(manifest: Manifest, folder: Path, data: Data, building: Path) -> None:
    load = partial(load_pair, folder, data, verified=True)
    image_shape, mask_shape = _shapes(manifest, data)
    with (
        _open_array(building / "images.npy", image_shape) as images,
        _open_array(building / "masks.npy", mask_shape) as masks,
    ):
        for image, mask in map_in_order(load, manifest.pairs, "decoding"):
            images.write(image.tobytes())
            masks.write(np.packbits(mask, axis=-1).tobytes())
    np.save(building / "boxes.npy", padding_boxes(manifest, data))


@contextmanager
def _open_array(path: Path, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """Write an array of bytes as a stream: where a disk is full, a mapped page would end the process."""
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        yield file
        file.flush()
        os.fsync(file.fileno())


def _shapes(manifest: Manifest, data: Data) -> list[tuple[int, ...]]:
    """Return the shapes of images and packed masks."""
    rows = (len(manifest.pairs), data.image_height)
    return [(*rows, data.image_width, data.channels), (*rows, packed_width(data.image_width))]


def open_cache(manifest: Manifest, folder: Path, data: Data, cache_root: Path) -> CachedImages:
    """Map a finished cache into memory; UserError (65) where there is none or it is not whole.

    The arrays, and the boxes themselves, have to be as data and options want them.
    """
    cache = cache_path(manifest, data, cache_root)
    try:
        cached = CachedImages.map(cache)
    except (OSError, ValueError) as error:
        cure = "rename it to build it again"
        raise UserError(f"{cache}: no sound cache of {folder} ({error}); {cure}", EXIT_BAD_DATA) from None
    expected = [*_shapes(manifest, data), (len(manifest.pairs), 4)]
    shapes = [array.shape for array in (cached.images, cached.masks, cached.boxes)]
    if shapes != expected or not np.array_equal(cached.boxes, padding_boxes(manifest, data)):
        found = f"the cache has shapes {shapes} instead of {expected}"
        raise UserError(f"{cache}: {found}; rename it", EXIT_BAD_DATA)
    return cached


def verification_of_cache(cache: Path, index: int, count: int) -> Verification:
    """Return the verification of a finished cache; each of `count` workers hashes some of its arrays.

    Raises UserError (65) where the cache is not whole.
    """
    cure = f"remove {cache} to have it built again"
    paths = [cache / name for name in ARRAYS]
    try:
        facts: Any = read_json_with_checksum(cache / FACTS_NAME)
        digests = {cache / name: facts["arrays"][name] for name in ARRAYS[index::count]}
        return Verification(digests, cure, paths)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{cache}: the cache is damaged ({error}); {cure}", EXIT_BAD_DATA) from None
