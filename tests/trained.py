"""Plain runs that many tests read: each is trained once per session, by whichever test process asks first.

A launch takes longer than a small run. What a test file will ask for it may tell by a function `plain_runs`:
these runs are then trained in the first launch of their kind.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from slurm.launch.processes import launch
from tests.studies import make_images, make_point, make_run
from unet_scaling.format.record import RECORD_NAME, Record, read_record
from unet_scaling.group.rendezvous import is_mpi
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.options import HorovodKnobs

# Steps of 4 images, of 38: 9 to an epoch.
PLAIN_EPOCHS = 3
PLAIN_BATCH = 4


@dataclass(frozen=True)
class TrainedRun:
    """A complete run folder that no test may change."""

    folder: Path
    record: Record

    @property
    def losses(self) -> list[float]:
        return [epoch.loss for epoch in self.record.epochs if epoch.loss is not None]


class TrainedRuns:
    """Runs that are trained once per session, with a core for each worker if there are enough."""

    def __init__(self, folder: Path, expected: Sequence[RunConfig] = ()) -> None:
        self._folder = folder
        self._expected = expected

    def __call__(self, config: RunConfig) -> TrainedRun:
        """Return the run; launch it if nobody has."""
        self.together([config])
        folder = self.folder(config)
        output = (folder / "output.log").read_text()
        assert (folder / RECORD_NAME).exists(), output
        record = read_record(folder / RECORD_NAME)
        assert record.complete, (record.problems, output)
        return TrainedRun(folder, record)

    def folder(self, config: RunConfig) -> Path:
        """Return where the run is, or will be."""
        return self._folder / sha256(config.model_dump_json().encode()).hexdigest()[:16]

    def together(self, configs: Sequence[RunConfig]) -> None:
        """Launch what nobody has: all of one framework and number of workers at once, one after the other."""
        self._folder.mkdir(exist_ok=True)
        for kind in dict.fromkeys(map(_kind, configs)):
            alike = [each for each in (*configs, *self._expected) if _kind(each) == kind]
            runs = {self.folder(each): each for each in alike}
            framework, workers, _ = kind
            with FileLock(self._folder / f"{framework}-{workers}.lock"):
                missing = {folder: each for folder, each in runs.items() if not folder.exists()}
                if missing:
                    _launch(missing, framework, workers)


def _kind(config: RunConfig) -> tuple[str, int, str]:
    """Return what runs of one launch have in common; several workers start MPI once in a launch."""
    alone = config.framework == "horovod" and config.workers > 1 and is_mpi(config)
    return config.framework, config.workers, config.model_dump_json() if alone else ""


def _launch(runs: Mapping[Path, RunConfig], framework: str, workers: int) -> None:
    folders = [str(make_run(folder, config)) for folder, config in runs.items()]
    program = [str(PROJECT / framework / "train.py"), *folders]
    if len(folders) > 1:
        program.insert(0, str(PROJECT / "tests" / "train_several.py"))
    cores = 1 if workers <= len(os.sched_getaffinity(0)) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        launch(program, workers, next(iter(runs)) / "output.log", cores)


def plain_config(
    images: Path, framework: str = "pytorch_native", workers: int = 2, **options: Any
) -> RunConfig:
    """Return a configuration of three epochs whose steps take 4 images, whatever the number of workers."""
    chosen = {"epochs": PLAIN_EPOCHS, "batch_per_worker": PLAIN_BATCH // workers, "rate_scaling": "none"}
    return make_point(images, framework, workers, **(chosen | options))


def over_gloo(config: RunConfig) -> RunConfig:
    """Return a run with Horovod's other controller: runs of one launch may not all connect MPI."""
    return config.model_copy(update={"horovod": HorovodKnobs(controller="gloo")})


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
def trained_run(request: pytest.FixtureRequest, images: Path, session_folder: Path) -> TrainedRuns:
    """Return what trains a configuration, or several, once per session."""
    modules = dict.fromkeys(
        item.module for item in request.session.items if isinstance(item, pytest.Function)
    )
    telling = [module.plain_runs for module in modules if hasattr(module, "plain_runs")]
    expected = [config for plain_runs in telling for config in plain_runs(images, session_folder)]
    return TrainedRuns(session_folder / "trained", expected)
