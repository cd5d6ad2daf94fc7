"""The subject of a profile: the first configuration of a study and a sample of its images."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unet_scaling.data import batches
from unet_scaling.data.cache import (
    BUILDING_PREFIX,
    CachedImages,
    build_cache,
    default_cache_root,
    open_cache,
)
from unet_scaling.data.decoding import DecodedImages
from unet_scaling.data.image_data import ImageData
from unet_scaling.data.image_source import ImageSource, Indices
from unet_scaling.data.manifest import Manifest, read_manifest
from unet_scaling.data.verification import Verification
from unet_scaling.group.group import Group
from unet_scaling.group.identity import identify
from unet_scaling.profile.results import loading_of
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.errors import UserError

PROFILED_TABLES = ("data", "model", "training")


@dataclass(frozen=True)
class Subject:
    """A sample of the training images, with their cache, and how the study trains on them."""

    config: RunConfig
    manifest: Manifest
    cache_root: Path
    batches: Indices
    """Row numbers in the manifest, [n, batch], in random order."""
    notes: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return Path(self.config.data.folder)

    @cached_property
    def decoded(self) -> DecodedImages:
        return DecodedImages(self.manifest, self.folder, self.config.data)

    @cached_property
    def cached(self) -> CachedImages:
        return open_cache(self.manifest, self.folder, self.config.data, self.cache_root)

    @property
    def source(self) -> ImageSource:
        """Return the images as the study loads them; those that it keeps on a device come from the cache."""
        return self.decoded if loading_of(self.config) == "decode" else self.cached

    def run_data(self, device: torch.device, loader_processes: int, steps: int) -> ImageData:
        """Return the data of a run of one worker, with at least so many steps in its epoch."""
        images = len(self.manifest.pairs)
        passes = -(-steps * self.batches.shape[1] // images)
        options = {"loader_workers": loader_processes, "passes_per_epoch": passes}
        everything = batches.Split(train=np.arange(images), test=np.arange(0))
        group = Group(identify({}), device, lambda tensor: tensor, {})
        config = _changed(self.config, "data", **options)
        return ImageData(self.source, Verification({}, ""), everything, config, group, self.manifest.sha256)


@contextmanager
def open_subject(study: StudyConfig, samples: int) -> Iterator[Subject]:
    """Sample at least `samples` images of the study's first configuration, in whole batches.

    They are decoded into a cache of their own, which is removed at the end. Raises UserError (65) for a
    folder that does not match its manifest.
    """
    config = _for_one_worker(study.configs()[0])
    if config.has_own_task:
        raise UserError(
            f"task.file: found {config.task.file}; only the images of the built-in task are profiled"
        )
    folder = Path(config.data.folder)
    manifest = read_manifest(config.data.manifest_path)
    manifest.require_unchanged(folder)
    manifest.require_options(config.data)
    sample = _sample(config, manifest, max(samples, config.training.batch_per_worker))
    with _temporary_cache_root(default_cache_root()) as root:
        build_cache(sample, folder, config.data, root)
        yield Subject(config, sample, root, _batches(config, sample, samples), tuple(_axes(study)))


def _for_one_worker(config: RunConfig) -> RunConfig:
    """Return the configuration of one plain process: nothing is accumulated, shared or read from a file."""
    alone = config.model_copy(update={"workers": 1})
    if config.model.batch_norm == "sync":
        alone = _changed(alone, "model", batch_norm="local")
    return _changed(alone, "training", initial_weights=None, accumulate=1, plays=None)


def _changed(config: RunConfig, table: str, **options: Any) -> RunConfig:  # noqa: ANN401
    changed = getattr(config, table).model_copy(update=options)
    return config.model_copy(update={table: changed})


def _sample(config: RunConfig, manifest: Manifest, count: int) -> Manifest:
    """Return the training images that come first in the first epoch."""
    train = batches.split(len(manifest.pairs), config.data.test_share, config.data.split_seed).train
    first = batches.epoch_order(train, 1, config.seed, epoch=0)[:count]
    pairs = [manifest.pairs[index] for index in sorted(first)]
    return Manifest(foreground=manifest.foreground, pairs=pairs)


def _batches(config: RunConfig, sample: Manifest, samples: int) -> Indices:
    """Return whole batches of the sample; images are repeated where they do not fill the last."""
    batch = config.training.batch_per_worker
    order = batches.epoch_order(np.arange(len(sample.pairs)), 1, config.seed, epoch=0)
    return np.resize(order, (-(-samples // batch), batch))


@contextmanager
def _temporary_cache_root(root: Path) -> Iterator[Path]:
    """Make a folder on the disk of the real cache; what a killed profile leaves is removed with builds."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=root, prefix=BUILDING_PREFIX)
    except OSError as error:
        raise UserError(
            f"{root}: the decoded images cannot be kept here ({error.strerror});"
            " set UNET_SCALING_CACHE to a folder on a disk with space"
        ) from None
    with folder as name:
        yield Path(name)


def _axes(study: StudyConfig) -> Iterator[str]:
    """Yield a note for each option of which only the first value is profiled."""
    for table in PROFILED_TABLES:
        for key, values in sorted(getattr(study, table).items()):
            if isinstance(values, list) and len(values) > 1:
                others = ", ".join(map(str, values[1:]))
                yield (
                    f"{table}.{key} is an axis: profiled is {values[0]}, not {others};"
                    f" --set {table}.{key}={values[1]} profiles another"
                )
