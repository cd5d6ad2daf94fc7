"""Plain runs that many tests read: each is trained once per session, by whichever test process asks first."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.studies import make_images, make_point, train
from unet_scaling.study.config import RunConfig
from unet_scaling.study.record import RECORD_NAME, Record, read_record

# Steps of 4 images, of 38: 9 to an epoch.
PLAIN_EPOCHS = 3
PLAIN_BATCH = 4


@dataclass(frozen=True)
class TrainedRun:
    """A complete run folder that no test may change, and how long its launch lasted."""

    folder: Path
    record: Record
    launch_seconds: float

    @property
    def losses(self) -> list[float]:
        return [epoch.loss for epoch in self.record.epochs if epoch.loss is not None]


TrainedRuns = Callable[[RunConfig], TrainedRun]


def plain_config(
    images: Path, framework: str = "pytorch_native", workers: int = 2, **options: Any
) -> RunConfig:
    """Return a configuration of three epochs whose steps take 4 images, whatever the number of workers."""
    chosen = {"epochs": PLAIN_EPOCHS, "batch_per_worker": PLAIN_BATCH // workers, "rate_scaling": "none"}
    return make_point(images, framework, workers, **(chosen | options))


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of one test session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def images(session_folder: Path) -> Path:
    """A data folder of 47 small images: 38 for training, 9 for evaluation at the default share."""
    folder = session_folder / "squares"
    with FileLock(session_folder / "squares.lock"):
        return folder if folder.exists() else make_images(folder, count=47)


@pytest.fixture(scope="session")
def trained_run(session_folder: Path) -> TrainedRuns:
    """Train a configuration, with a core for each worker if there are enough, once per session."""

    def trained(config: RunConfig) -> TrainedRun:
        name = sha256(config.model_dump_json().encode()).hexdigest()[:16]
        folder = session_folder / "trained" / name
        folder.parent.mkdir(exist_ok=True)
        cores = len(os.sched_getaffinity(0))
        seconds = folder.with_suffix(".seconds")
        with FileLock(folder.with_suffix(".lock")):
            if not seconds.exists():
                began = time.perf_counter()
                train(folder, config, cores_each=1 if config.workers <= cores else None)
                seconds.write_text(str(time.perf_counter() - began))
        return TrainedRun(folder, read_record(folder / RECORD_NAME), float(seconds.read_text()))

    return trained
