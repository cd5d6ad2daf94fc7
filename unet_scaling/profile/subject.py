"""What is profiled: the first point of a study, some of its images, and both ways of loading them."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unet_scaling.data import batches
from unet_scaling.data.cache import (
    BUILDING_PREFIX,
    CachedImages,
    DecodedImages,
    build_cache,
    cache_path,
    default_cache_root,
    open_cache,
    pair_bytes,
)
from unet_scaling.data.manifest import Manifest, read_manifest
from unet_scaling.profile.results import LoadingName
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import TABLES

Batches = npt.NDArray[np.int64]
Source = DecodedImages | CachedImages


@dataclass(frozen=True)
class Subject:
    """Images of one point in the order of its first epoch; batches [n, batch] index the manifest."""

    config: RunConfig
    folder: Path
    manifest: Manifest
    cache_root: Path
    batches: Batches
    notes: tuple[str, ...]

    def decoded(self) -> DecodedImages:
        return DecodedImages(self.manifest, self.folder, self.config.data)

    def cached(self) -> CachedImages:
        return open_cache(self.manifest, self.folder, self.config.data, self.cache_root)

    def source(self, loading: LoadingName | None = None) -> Source:
        """The images as they are loaded that way, by default the study's own."""
        return self.decoded() if (loading or self.config.data.loading) == "decode" else self.cached()

    def cache_files(self) -> list[Path]:
        place = cache_path(self.manifest, self.config.data, self.cache_root)
        return [place / "images.npy", place / "masks.npy"]

    def decoded_bytes(self, images: int) -> int:
        """What so many images with their masks take in the cache, and on their way to the device."""
        return images * pair_bytes(self.config.data)


@contextmanager
def open_subject(study: StudyConfig, samples: int) -> Iterator[Subject]:
    """The first point of the study with at least `samples` images, in whole batches.

    Where the data set is not decoded yet, only these images are, into a cache that is removed at the
    end. Raises UserError (65) for a folder that does not match its manifest.
    """
    config = study.configs()[0]
    folder = Path(config.data.folder)
    manifest = read_manifest(config.data.manifest_path)
    manifest.require_unchanged(folder)
    manifest.require_foreground(config.data.foreground)
    chosen = _batches(config, manifest, samples)
    root, notes = default_cache_root(), tuple(_axes(study))
    if cache_path(manifest, config.data, root).is_dir():
        yield Subject(config, folder, manifest, root, chosen, notes)
        return
    used, places = np.unique(chosen, return_inverse=True)
    part = Manifest(foreground=manifest.foreground, pairs=[manifest.pairs[index] for index in used])
    with _temporary_root(root) as own_root:
        build_cache(part, folder, config.data, own_root)
        note = (
            f"the data set is not decoded yet: {len(used)} of its {len(manifest.pairs)} images were decoded"
        )
        note += " into a cache of their own, which is removed again"
        yield Subject(config, folder, part, own_root, places.reshape(chosen.shape), (*notes, note))


def _batches(config: RunConfig, manifest: Manifest, samples: int) -> Batches:
    """Whole batches of training images in the order of the first epoch, over again where they run out."""
    train = batches.split(len(manifest.pairs), config.data.test_share, config.data.split_seed).train
    order = batches.epoch_order(train, 1, config.seed, epoch=0)
    batch = config.training.batch_per_worker
    return np.resize(order[: max(samples, batch)], (-(-samples // batch), batch))


@contextmanager
def _temporary_root(root: Path) -> Iterator[Path]:
    """A folder on the disk of the real cache; one that a killed profile leaves is removed with the builds."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(dir=root, prefix=BUILDING_PREFIX)
    except OSError as error:
        raise UserError(
            f"{root}: the decoded images cannot be kept here ({error.strerror});"
            " set UNET_SCALING_CACHE to a folder on a disk with space"
        ) from None
    with place as name:
        yield Path(name)


def _axes(study: StudyConfig) -> Iterator[str]:
    """What of the study is not profiled, and how to profile it."""
    for table in set(TABLES) & {"data", "model", "training"}:
        for key, values in sorted(getattr(study, table).items()):
            if isinstance(values, list) and len(values) > 1:
                others = ", ".join(map(str, values[1:]))
                yield (
                    f"{table}.{key} is an axis: profiled is {values[0]}, not {others};"
                    f" --set {table}.{key}={values[1]} profiles another"
                )
