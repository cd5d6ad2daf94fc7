"""One run folder, launched without a submission: what it refuses, how it fails, and options that train."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from slurm.launch.preflight import check_inputs
from slurm.launch.processes import launch
from tests.records import write_run
from tests.studies import make_point, make_run, train
from unet_scaling.base.errors import UserError
from unet_scaling.format.record import read_record
from unet_scaling.format.run_state import run_state
from unet_scaling.group.rendezvous import require_all_workers
from unet_scaling.run.run_folder import open_run
from unet_scaling.study.config import PROJECT
from unet_scaling.study.frameworks import FRAMEWORK_ROWS

SMALL_SHARED_MEMORY = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
may_mount = os.geteuid() == 0 and shutil.which("unshare")


def folder_in_place_of(name: str) -> Callable[[Path], object]:
    """Put a folder where the run writes a file: what every user can do, and the worker sees an OSError."""

    def change(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        (run / name / "inside").mkdir(parents=True)

    return change


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (bool, 2, "never touched"),
        (lambda run: run.chmod(0o777), 2, "may be written by anyone: chmod o-w"),
        (folder_in_place_of("run.jsonl"), 65, "run.jsonl cannot be read: Is a directory; move it away"),
    ],
)
def test_a_folder_that_is_complete_open_or_unreadable_is_refused_and_left_as_it_was(
    change: Callable[[Path], object], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path)
    change(run)
    before = {path: path.is_file() and path.read_bytes() for path in run.rglob("*")}
    monkeypatch.setattr(sys, "argv", ["train.py", str(run)])
    with pytest.raises(UserError, match=said) as refused, open_run("Train."):
        pass
    assert refused.value.exit_code == code
    assert {path: path.is_file() and path.read_bytes() for path in run.rglob("*")} == before


class Failing(NamedTuple):
    """How a run ends that fails, and with which options or in which folder."""

    code: int
    said: str
    options: Mapping[str, Any] = MappingProxyType({})
    change: Callable[[Path], object] = bool


FAILING = {
    "cores": Failing(2, "cores_per_worker = 4096: worker 0 has only ", {"cores_per_worker": 4096}),
    "batch": Failing(65, "at most 38", {"batch_per_worker": 64}),
    "group": Failing(2, "asks for 4 workers, but this process is one of 1", {"workers": 4}),
    "loss": Failing(70, "diverged", {"learning_rate": 1e20, "batch_norm": "off", "epochs": 3}),
    "log": Failing(1, "log.csv cannot be written, the run stops", change=folder_in_place_of("log.csv")),
    "weights": Failing(1, "weights.pt cannot be written, the", change=folder_in_place_of("weights.pt")),
}


def python(*words: object, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def ended(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """Return the folder of runs of one worker that fail, and of one in half precision, and their codes.

    An mpiexec of another MPI starts each worker as a group of its own, for instance.
    """
    folder = tmp_path_factory.mktemp("ended")
    one: dict[str, Any] = {"cores_per_worker": 1}
    half = one | {"precision": "bf16", "channels_last": True, "epochs": 3}
    make_run(folder / "half", make_point(images, **half))
    for name, case in FAILING.items():
        case.change(make_run(folder / name, make_point(images, **(one | dict(case.options)))))
    train = PROJECT / "pytorch_native" / "train.py"
    runs = [folder / name for name in ("half", *FAILING)]
    done = python(PROJECT / "tests" / "train_several.py", train, *runs)
    return folder, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILING)
def test_a_run_that_fails_ends_with_its_code_and_one_line(
    name: str, ended: tuple[Path, dict[str, int]]
) -> None:
    folder, codes = ended
    case = FAILING[name]
    output = (folder / name / "output.log").read_text()
    assert (codes[name], case.said in output, "Traceback" in output) == (case.code, True, False), output
    assert run_state(folder / name).state == ("diverged" if case.code == 70 else "failed")
    assert (folder / name / "error.attempt1.worker0.json").exists() or name != "batch"


@pytest.mark.slow
@pytest.mark.skipif(not may_mount, reason="needs root and unshare (util-linux)")
def test_horovod_does_not_start_where_mpi_would_die_for_lack_of_shared_memory(
    images: Path, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", make_point(images, "horovod"))
    before = ("unshare", "--mount", "sh", "-c", SMALL_SHARED_MEMORY, "sh")
    done = python(PROJECT / "horovod" / "train.py", run, before=before)
    assert (done.returncode, "MPI needs more" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    assert run_state(run).state == "failed"


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core of two is used")
def test_half_precision_on_some_of_its_cores_trains(ended: tuple[Path, dict[str, int]]) -> None:
    record = read_record(ended[0] / "half" / "run.jsonl")
    assert record.complete, record.problems
    losses = [epoch.loss for epoch in record.epochs if epoch.loss is not None]
    assert losses[-1] < losses[0]
    assert all(epoch.budget is not None for epoch in record.epochs)
    assert record.header is not None
    assert [(len(worker.cores), worker.threads) for worker in record.header.workers] == [(1, 1)]


@pytest.mark.verify
def test_a_compiled_network_trains(images: Path, tmp_path: Path) -> None:
    record = train(tmp_path / "run", make_point(images, epochs=3, compile=True, depth=1))
    losses = [epoch.loss for epoch in record.epochs if epoch.loss is not None]
    assert losses[-1] < losses[0]


def test_workers_that_die_before_they_can_say_why_have_failed(images: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_point(images, workers=2))
    assert run_state(run).state == "waiting"
    assert launch(["-c", "import os; os.abort()"], 2, run / "output.log", cores_each=None) != 0
    assert run_state(run).state == "failed"
    assert "ended by a signal (" in run_state(run).reason


def test_a_wrapper_that_counts_other_workers_or_is_not_installed_is_refused(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = make_point(images, "accelerate", 2)
    require_all_workers("Accelerate", 2, point)
    with pytest.raises(UserError, match="asks for 2 workers, but Accelerate counts 1") as refused:
        require_all_workers("Accelerate", 1, point)
    assert refused.value.exit_code == 2
    row = replace(FRAMEWORK_ROWS["lightning"], package="a-package-that-nobody-has")
    monkeypatch.setitem(FRAMEWORK_ROWS, "lightning", row)
    with pytest.raises(UserError, match=r"a-package-that-nobody-has, .* --with lightning"):
        check_inputs([make_point(images, "lightning")])
