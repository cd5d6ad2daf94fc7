"""Inputs of the benchmarks: folders of synthetic indents, and runs of the reference network on them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import write_manifest
from unet_scaling.data.synthetic import make
from unet_scaling.study.config import RunConfig
from unet_scaling.study.study_file import config_path

SIZES = {"64x48": (48, 64), "128x96": (96, 128), "256x192": (192, 256), "1024x768": (768, 1024)}
SEED = 11


def indents(root: Path, count: int, height: int, width: int) -> Path:
    """Return a folder of synthetic indents that has been checked; made once in `root`."""
    folder = root / f"indents-{count}-{width}x{height}"
    if make(folder, count, height, width, SEED):
        write_manifest(check_folder(folder, "nonzero"), folder / "manifest.json")
    return folder


def reference_config(
    folder: Path,
    height: int,
    width: int,
    batch: int,
    training: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return a run of the reference network, with further options of training."""
    shape = {"image_height": height, "image_width": width, "foreground": "nonzero"}
    return RunConfig.model_validate(
        {
            "study": "benchmark",
            "run": "pytorch_native-w1",
            "framework": "pytorch_native",
            "workers": 1,
            "repeat": 1,
            "seed": 3,
            "data": {"folder": str(folder), **shape},
            "model": {"width": 8, "depth": 5},
            "training": {"epochs": 1, "batch_per_worker": batch, "shared_devices": True, **(training or {})},
        }
    )


def make_run_folder(folder: Path, config: RunConfig) -> Path:
    """Make a folder that a training program can be started on."""
    folder.mkdir(parents=True, exist_ok=True)
    config_path(folder).write_text(config.model_dump_json())
    return folder
