"""Attempts of a run with a fault in them, and what must hold after every one of them."""

import json
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from slurm.launch.preflight import is_installed
from slurm.launch.processes import launch
from tests.cluster import wait_until
from tests.studies import give_workers, make_point, make_run
from tests.trained import TrainedRuns
from unet_scaling.format.record import RECORD_NAME, Record, read_record
from unet_scaling.format.run_state import RunState, run_state
from unet_scaling.study.config import PROJECT, Framework, RunConfig

# 38 training images give 9 steps to an epoch; evaluations in between, two passes to a step.
OPTIONS: dict[str, Any] = {
    "workers": 2,
    "epochs": 3,
    "batch_per_worker": 1,
    "accumulate": 2,
    "evaluate_every": 1,
}
STEPS = 9
FILLER_NAME = "filler"
SECONDS_FULL_VARIABLE = "SECONDS_FULL"
FLIPPED_VARIABLE = "FILE_TO_FLIP"
FILE_BYTES = 40_000
SECRET = "a-token-that-nobody-may-read"
TIMINGS: Any = {"seconds": True, "training_seconds": True, "statistics": {"seconds"}}

# What a run may leave: what is read back, and damaged in tests/test_damaged_files.py, and the rest.
READ_BACK = (
    "config.json", "run*.jsonl", "error.attempt*.worker*.json", "owner.json",
    "checkpoint-*.pt*", "weights.pt*", "steps.parquet*",
)  # fmt: skip
READ_BY_OTHERS = ("log.csv", "output.log", FILLER_NAME, "saliency*", "compute.json*", "pictures.json")


@dataclass(frozen=True)
class Fault:
    """An event on `worker`, and on the others, before their `step`-th step of the attempt.

    Counted from 1; 0 is before they have joined.
    """

    what: str = "nothing"
    step: int = 0
    worker: int = 1
    every_step_is_safe: bool = False
    others: str = "nothing"

    @classmethod
    def from_json(cls, text: str) -> "Fault":
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt: exit codes of the workers that left by themselves, by rank.

    mpiexec may end the others as soon as one has left with a code that is not 0.
    """

    codes: dict[int, int]
    seconds: float
    state: RunState
    record: Record
    output: str
    errors: list[dict[str, Any]]

    @property
    def position(self) -> tuple[int, int] | None:
        return self.record.end.position if self.record.end else None


def fault_point(images: Path, framework: str, **options: Any) -> RunConfig:
    return make_point(images, framework, **(OPTIONS | options))


def attempt(
    folder: Path,
    point: RunConfig,
    fault: Fault | None = None,
    cores_each: int = 1,
    variable: tuple[str, str] = ("PRIVATE_TOKEN", SECRET),
) -> Outcome:
    """Launch the run once more with real workers; checks what must hold after every attempt."""
    if not (folder / "config.json").exists():
        make_run(folder, point)
    for old in folder.parent.glob(f"{folder.name}.exit*"):
        old.unlink()
    unfinished = set(folder.glob(".*"))
    program = [str(PROJECT / "tests" / "faulty.py"), str(PROJECT / point.framework / "train.py"), str(folder)]
    output = folder.with_name(f"{folder.name}.output")
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        patch.setenv("PRIVATE_TOKEN", SECRET)
        patch.setenv(*variable)
        give_workers(patch, *variable)
        launch([*program, json.dumps(asdict(fault or Fault()))], point.workers, output, cores_each)
    seconds = time.monotonic() - began
    # Hydra does not wait for those whom it ends; one of them may be writing why.
    wait_until(lambda: not at_work_on(folder), f"the workers of {folder} to end", seconds=30, pause=0.05)
    require_private(folder)
    require_known(folder)
    # A worker that was killed while it noted its code has left none.
    codes = {
        int(path.name.rpartition("exit")[2]): int(code)
        for path in folder.parent.glob(f"{folder.name}.exit*")
        if (code := path.read_text())
    }
    if len(codes) == point.workers:
        # Whoever is killed may leave the temporary file that it was writing, and nothing else.
        assert set(folder.glob(".*")) <= unfinished, "a temporary file was left"
    errors = [json.loads(path.read_text()) for path in sorted(folder.glob("error.*"))]
    path = folder / RECORD_NAME
    record = read_record(path) if path.exists() else Record(path, None, (), (), None, ("there is none",))
    return Outcome(codes, seconds, run_state(folder), record, output.read_text(), errors)


def at_work_on(folder: Path) -> list[Path]:
    """The processes, by their folders below /proc, that were started for a run folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder).encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(process)
    return found


def require_private(folder: Path) -> None:
    """Nobody else may read what an attempt wrote, and no value of the environment is in it."""
    for path in folder.iterdir():
        assert path.name in ("config.json", FILLER_NAME) or stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert SECRET.encode() not in path.read_bytes(), path


def require_known(folder: Path) -> None:
    """An attempt leaves no file that is not listed here; a killed writer may leave its temporary one."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    patterns = (*READ_BACK, *READ_BY_OTHERS)
    assert not [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]


def trained(record: Record) -> list[object]:
    """All that a fault must not change: losses, steps, counts and weights, but not times."""
    assert record.complete, record.problems
    epochs = [
        (epoch.epoch, epoch.loss, epoch.steps, epoch.images, epoch.learning_rate) for epoch in record.epochs
    ]
    results = [result.model_dump(exclude=TIMINGS) for result in record.results]
    return [*epochs, *results]


def plain_runs(images: Path, session_folder: Path) -> list[RunConfig]:
    """Return the run to which nothing happens."""
    return [fault_point(images, "pytorch_native")]


@pytest.fixture(scope="session")
def undisturbed(images: Path, trained_run: TrainedRuns) -> list[object]:
    """Return what all frameworks train where nothing happens."""
    return trained(trained_run(fault_point(images, "pytorch_native")).record)


def steps_done(outcome: Outcome) -> int:
    """Steps that the attempt found done by those before it."""
    resumed = outcome.record.header.resumed if outcome.record.header else None
    return resumed.epoch * STEPS + resumed.step if resumed else 0


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*.pt"))


def framework_parameter(
    framework: Framework, *others: object, marks: Sequence[pytest.MarkDecorator] = ()
) -> Any:
    """Return a case of a parametrised test: a framework, which may not be installed, then other values."""
    reason = f"{framework} is not installed: environment/install.sh --with {framework}"
    missing = pytest.mark.skipif(not is_installed(framework), reason=reason)
    return pytest.param(framework, *others, marks=[missing, *marks])
