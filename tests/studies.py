"""Small real studies for tests: a data folder, points on it, and launches with real workers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slurm.launch.processes import launch, launch_environment
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import write_manifest
from unet_scaling.format.record import Record, read_record
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.frameworks import OPTION_TABLES

# A cluster without GPUs, and a study of a task of one's own.
CPU_SITE = 'launcher = "srun"\ngpus_per_node = 4\ncores_per_worker = 1\ntime = "01:00:00"\ngres = ""\n'
OWN_STUDY = """
frameworks = ["pytorch_native"]
workers = [1]
repeats = 1
[training]
epochs = 3
batch_per_worker = 2
[task]
file = "{task}"
"""
TINY_STUDY = """
workers = {workers}
repeats = 1
[data]
folder = "{data}"
image_height = 32
image_width = 32
foreground = "255"
[model]
width = 4
depth = 3
[training]
epochs = {epochs}
batch_per_worker = 2
rate_scaling = "none"
"""
# Added to it: no launch is judged as disturbed, which is then made again, by the tests that run beside it.
UNJUDGED = 'budget = "off"\n'


def tiny_study(
    folder: Path, data: Path, workers: Sequence[int] = (1, 2), epochs: int = 2, more: str = ""
) -> Path:
    """Write a study on these images; `more` are further keys of its [training] table."""
    path = folder / "tiny.toml"
    path.write_text(TINY_STUDY.format(data=data, workers=[*workers], epochs=epochs) + more)
    return path


def make_images(folder: Path, count: int, height: int = 32, width: int = 32) -> Path:
    """Noisy images of bright squares, with masks; checked, so that a run can start on them."""
    random = np.random.default_rng(7)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for index in range(count):
        mask = np.zeros((height, width), dtype=np.uint8)
        top, left = random.integers(2, height // 2, size=2)
        mask[top : top + height // 3, left : left + width // 3] = 255
        image = random.normal(90, 30, (height, width)) + mask * 0.4
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"{index:03d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{index:03d}.png")
    write_manifest(check_folder(folder, "255"), folder / "manifest.json")
    return folder


def make_point(data: Path, framework: str = "pytorch_native", workers: int = 1, **options: Any) -> RunConfig:
    """A point on small images. Options are those of its tables, by their own names."""
    tables: dict[str, dict[str, object]] = {
        "data": {"folder": str(data), "image_height": 32, "image_width": 32, "foreground": "255"},
        "model": {"width": 4, "depth": 3},
        "training": {"epochs": 1, "batch_per_worker": 2, "shared_devices": True},
        "strategy": {},
        "emulation": {},
        "saliency": {},
    }
    for key, value in options.items():
        table = next(name for name in tables if key in OPTION_TABLES[name].model_fields)
        tables[table][key] = value
    return single_config(framework, workers, **tables)


def single_config(framework: str, workers: int, **tables: object) -> RunConfig:
    """The first repeat of a point with these tables of options."""
    return RunConfig.model_validate(
        {
            "study": "test",
            "run": f"{framework}-w{workers}",
            "framework": framework,
            "workers": workers,
            "repeat": 1,
            "seed": 3,
            **tables,
        }
    )


def make_run(folder: Path, point: RunConfig) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(point.model_dump_json())
    return folder


def launched(point: RunConfig, folder: Path, cores_each: int | None = None) -> tuple[int, str]:
    """Launch a run and return its exit code and output."""
    make_run(folder, point)
    program = [str(PROJECT / point.framework / "train.py"), str(folder)]
    code = launch(program, point.workers, folder / "output.log", cores_each)
    return code, (folder / "output.log").read_text()


def train(folder: Path, point: RunConfig, cores_each: int | None = None) -> Record:
    """Train a point with real workers, which share all cores unless each has some; its record."""
    code, output = launched(point, folder, cores_each)
    assert code == 0, output
    record = read_record(folder / "run.jsonl")
    assert record.complete, record.problems
    return record


def give_workers(patch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Give workers a variable that a job script sets, and that a launch on this host else drops."""
    patch.setattr("slurm.launch.processes.launch_environment", lambda: launch_environment() | {name: value})
