"""What the benchmarks train on: folders of synthetic indents, points on them, and a group of one worker."""

from pathlib import Path
from typing import Any

import torch

from tests.studies import make_point
from unet_scaling.data.checking import check_folder
from unet_scaling.data.manifest import write_manifest
from unet_scaling.data.synthetic import make
from unet_scaling.group.group import Group
from unet_scaling.group.identity import Identity
from unet_scaling.study.config import RunConfig

SIZES = {"64x48": (48, 64), "128x96": (96, 128), "256x192": (192, 256), "1024x768": (768, 1024)}
SEED = 11


def indents(root: Path, count: int, height: int, width: int) -> Path:
    """A folder of synthetic indents that has been checked; made once in `root`."""
    folder = root / f"indents-{count}-{width}x{height}"
    if make(folder, count, height, width, SEED):
        write_manifest(check_folder(folder, "nonzero"), folder / "manifest.json")
    return folder


def reference_point(folder: Path, height: int, width: int, batch: int, **options: Any) -> RunConfig:  # noqa: ANN401
    """A point of the reference network on one worker."""
    shape: dict[str, Any] = {"image_height": height, "image_width": width, "width": 8, "depth": 5}
    return make_point(folder, batch_per_worker=batch, foreground="nonzero", **shape, **options)


def alone() -> Group:
    """A group of one worker on the CPU: a sum over it is what it has."""
    return Group(Identity(0, 1, 0, "none"), torch.device("cpu"), lambda tensor: tensor, {})
