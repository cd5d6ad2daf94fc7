"""Images and masks at the size of the study: decoded from their files at each access, or once into a cache.

Each stage is a function of its own, so that the input profiler times the very code that training runs.

The files are those of the manifest, before the first epoch and until the last: all are hashed before the
first epoch and again before the run is called complete. In between, at each checkpoint, those are hashed
again whose size, times or inode have changed: a file that was changed and changed back between two of these
moments is not noticed. Files of decoded images stay open, since they stay mapped when somebody removes or
replaces them.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_BUG, UserError, or_user_error
from unet_scaling.base.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.base.progress import map_in_order
from unet_scaling.data.folder import (
    IMAGES_FOLDER,
    MASKS_FOLDER,
    Manifest,
    PairEntry,
    check_again,
    parse_foreground,
)
from unet_scaling.data.order import Indices
from unet_scaling.data.pixels import (
    Bytes,
    Pixels,
    decode,
    fit_image,
    fit_mask,
    fitted_box,
    fitting_scale,
    packed_width,
    read_bytes,
    to_image,
    to_mask_values,
)
from unet_scaling.study.options import Data, ImageScales

# So many of the 64 characters of a SHA-256 tell two files apart in a message.
SHOWN_DIGEST_CHARACTERS = 12

PackedBatch = tuple[Tensor, Tensor]
Attributes = tuple[int, int, int, int]
# Raised whenever the same files and options give other arrays.
CACHE_FORMAT = 4
ARRAYS = ("images.npy", "masks.npy", "boxes.npy")
FACTS_NAME = "cache.json"
BUILDING_PREFIX = ".building-"
CURE_OF_DISK = "set UNET_SCALING_CACHE to a folder on a disk with space"
# No build takes a day: an older one belongs to a process that was killed.
ABANDONED_SECONDS = 24 * 3600
# Images may take this share of a GPU's free memory before the model is built; training has the rest.
LARGEST_SHARE = 0.5


class DecodedImages:
    """All images of a data set, decoded from their files at every access; nothing is kept."""

    def __init__(self, manifest: Manifest, data: Data) -> None:
        """Raise UserError (2) for a data.intensity or data.foreground that is not for these files."""
        manifest.require_options(data)
        self._manifest = manifest
        self._data = data
        self.boxes = padding_boxes(manifest, data)

    def gather(self, indices: Indices) -> PackedBatch:
        """Return a batch as `ImageSource.gather` does."""
        pairs = [self._manifest.pairs[index] for index in indices]
        return collate([load_pair(self._data, pair) for pair in pairs])


def padding_boxes(manifest: Manifest, data: Data) -> npt.NDArray[np.int32]:
    """Return top, left, height, width [n, 4] of each picture within its padding, in pixels."""
    size = (data.image_height, data.image_width)
    return np.array([fitted_box(pair.height, pair.width, *size) for pair in manifest.pairs], np.int32)


def image_scales(manifest: Manifest, data: Data) -> ImageScales:
    """Return the scales at which the images of a data set are brought to the size of the study."""
    size = (data.image_height, data.image_width)
    scales = [fitting_scale(pair.height, pair.width, *size) for pair in manifest.pairs]
    return ImageScales(
        median_height=float(np.median([pair.height for pair in manifest.pairs])),
        median_width=float(np.median([pair.width for pair in manifest.pairs])),
        lowest=min(scales),
        median=float(np.median(scales)),
        highest=max(scales),
    )


def load_pair(data: Data, pair: PairEntry, verified: bool = False) -> tuple[Bytes, Bytes]:
    """Return image [height, width, channels] and mask [height, width] of 0 and 1, at the study's size.

    Raises UserError (65) for files that are not those of the manifest; `verified` compares checksums.
    """
    contents = read_pair(data, pair)
    if verified:
        paths = pair_paths(data, pair)
        for path, content, entry in zip(paths, contents, (pair.image, pair.mask), strict=True):
            digest = hashlib.sha256(content).hexdigest()
            if digest != entry.sha256:
                found = f"changed since the manifest was made (SHA-256 {digest[:SHOWN_DIGEST_CHARACTERS]}...)"
                raise UserError(f"{path}: {found}; run {_check(data)}", EXIT_BAD_DATA)
    return fit_pair(data, *convert_pair(data, pair, *decode_pair(data, pair, *contents)))


def pair_paths(data: Data, pair: PairEntry) -> tuple[Path, Path]:
    """Return the files of image and mask."""
    folder = Path(data.folder)
    return folder / IMAGES_FOLDER / pair.image.name, folder / MASKS_FOLDER / pair.mask.name


def read_pair(data: Data, pair: PairEntry) -> tuple[bytes, bytes]:
    """Return the bytes of both files."""
    image_path, mask_path = pair_paths(data, pair)
    return read_bytes(image_path), read_bytes(mask_path)


def _check(data: Data) -> str:
    return check_again(data.folder, data.foreground, data.manifest_path)


def decode_pair(data: Data, pair: PairEntry, image: bytes, mask: bytes) -> tuple[Pixels, Pixels]:
    """Return the pixels of both files as they are stored, [h, w, 1 to 4]."""
    image_path, mask_path = pair_paths(data, pair)
    decoded = decode(image_path, image), decode(mask_path, mask, mask=True)
    for path, pixels in zip((image_path, mask_path), decoded, strict=True):
        if pixels.shape[:2] != (pair.height, pair.width):
            found = f"has {pixels.shape[1]} x {pixels.shape[0]} pixels, not {pair.width} x {pair.height}"
            raise UserError(f"{path}: {found}; run {_check(data)}", EXIT_BAD_DATA)
    return decoded


def convert_pair(data: Data, pair: PairEntry, image: Pixels, mask: Pixels) -> tuple[Bytes, Bytes]:
    """Return the uint8 image [h, w, channels], and the mask [h, w] as 0 and 1 by the foreground rule."""
    _, mask_path = pair_paths(data, pair)
    foreground = foreground_of(mask_path, mask, data)
    if np.count_nonzero(foreground) != pair.foreground_pixels:
        found = "its foreground is not that of the manifest"
        raise UserError(f"{mask_path}: {found}; run {_check(data)}", EXIT_BAD_DATA)
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
        file = self._files.get(path)
        with _or_unverified(path), nullcontext(file) if file else path.open("rb") as opened:
            opened.seek(0)
            return attributes, hashlib.file_digest(opened, "sha256").hexdigest()

    def _attributes(self, path: Path) -> Attributes:
        file = self._files.get(path)
        with _or_unverified(path):
            status = os.fstat(file.fileno()) if file else path.stat()
        # The time of the last change of status cannot be set by programs that keep the others (cp -p, rsync).
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def verification_of_files(manifest: Manifest, data: Data, index: int, count: int) -> Verification:
    """Return the verification of each `count`-th pair from `index` on: the share of one worker of a host."""
    digests = {}
    for pair in manifest.pairs[index::count]:
        for path, entry in zip(pair_paths(data, pair), (pair.image, pair.mask), strict=True):
            digests[path] = entry.sha256
    cure = f"bring the file back, or run {_check(data)}"
    return Verification(digests, cure)


def _or_unverified(path: Path) -> AbstractContextManager[None]:
    return or_user_error(f"{path}: cannot be verified", "is its disk there?", EXIT_BUG)


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


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on the device, by way of pinned memory: else the host would wait for the device."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    if 0 in tensor.stride():  # an expanded one, which pinned memory would keep as it is
        tensor = tensor.contiguous()
    return tensor.pin_memory().to(device, non_blocking=True)


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
        chosen = send(torch.from_numpy(indices), self._device)
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


def build_cache(manifest: Manifest, data: Data, cache_root: Path) -> Path:
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
    with or_not_kept(cache_root):
        cache_root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(cache_root)
        needed = len(manifest.pairs) * pair_bytes(data)
        free = shutil.disk_usage(cache_root).free
        if free < needed:
            sizes = f"the decoded images take {needed / 2**20:.0f} MiB, {free / 2**20:.0f} MiB are free"
            raise UserError(f"{cache_root}: {sizes}; {CURE_OF_DISK}, or data.loading = 'decode'")
        _build(manifest, data, cache)
    return cache


def or_not_kept(cache_root: Path) -> AbstractContextManager[None]:
    """Let an OSError inside become a UserError that names the folder of caches."""
    return or_user_error(f"{cache_root}: cannot keep decoded images", CURE_OF_DISK)


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


def _build(manifest: Manifest, data: Data, cache: Path) -> None:
    building = Path(tempfile.mkdtemp(prefix=BUILDING_PREFIX, dir=cache.parent))
    try:
        _write_arrays(manifest, data, building)
        facts = _ingredients(manifest, data) | {"arrays": _digests(building)}
        write_json_with_checksum(building / FACTS_NAME, facts)
        building.rename(cache)
    except OSError:
        if not cache.is_dir():  # else another process was faster, and its cache is equal
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write_arrays(manifest: Manifest, data: Data, building: Path) -> None:
    load = partial(load_pair, data, verified=True)
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


def open_cache(manifest: Manifest, data: Data, cache_root: Path) -> CachedImages:
    """Map a finished cache into memory; UserError (65) where there is none or it is not whole.

    The arrays, and the boxes themselves, have to be as data and options want them.
    """
    cache = cache_path(manifest, data, cache_root)
    try:
        cached = CachedImages.map(cache)
    except (OSError, ValueError) as error:
        cure = "rename it to build it again"
        found = f"no sound cache of {data.folder} ({error})"
        raise UserError(f"{cache}: {found}; {cure}", EXIT_BAD_DATA) from None
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
