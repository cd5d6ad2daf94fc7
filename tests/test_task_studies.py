"""Whole studies of tasks in files, from a folder outside the project: by command, killed, and under Slurm."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slurm.preflight import is_installed
from tests.cluster import bring_up
from tests.faults import Fault, attempt, trained
from tests.sweeps import Sweep
from tests.tasks import EXAMPLES, SOMETIMES_UNUSED, example, points_config
from tests.test_task_runs import IOU
from unet_scaling.study.config import FRAMEWORKS, PROJECT, WRAPPERS
from unet_scaling.study.record import RECORD_NAME, Record, read_record
from unet_scaling.study.record_lines import Scores

pytestmark = pytest.mark.slow

INSTALLED = [*FRAMEWORKS, *filter(is_installed, WRAPPERS)]
# One example with all frameworks tells what the wrappers add.
WITH_WRAPPERS = "residual_classifier"
WORKERS = (1, 2)
EVERY_STEP = 1e-6  # minutes between checkpoints
LEAST_STEPS = 20
TASK = """
workers = {workers}
repeats = 1
[task]
file = "my_task.py"
options = {{ width = 4 }}
find_unused_parameters = true
[training]
epochs = 2
batch_per_worker = 2
"""


def command(folder: Path, *words: str) -> str:
    """Run `unet-scaling` in this folder, which is all that it knows of; return what it printed."""
    program = [sys.executable, "-c", "from unet_scaling.__main__ import run_command; run_command()"]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [*program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def records(logs: Path) -> dict[str, Record]:
    return {path.parent.name: read_record(path) for path in logs.glob(f"*/{RECORD_NAME}")}


def weights(run: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run / "weights.pt", weights_only=True)
    return state


@pytest.mark.verify
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_whole_study_outside_the_project(name: str, tmp_path: Path) -> None:
    """From the file alone to the report, on 1 and 2 workers."""
    frameworks = INSTALLED if name == WITH_WRAPPERS else FRAMEWORKS
    shutil.copy(example(name), tmp_path / "my_task.py")
    options = [word for key, value in EXAMPLES[name].items() for word in ("--option", f"{key}={value}")]
    asked = ["--workers", "1,2", "--epochs", "4", "--repeats", "1", "--batch", "2", "--yes"]
    command(tmp_path, "new", "mine", "--task", "my_task.py", *options, *asked)
    assert "1 set of options verified" in command(tmp_path, "check", "mine.toml", "--only-files")
    command(tmp_path, "run", "mine.toml", "--logs", "logs", "--set", f"frameworks={list(frameworks)}")
    found = records(tmp_path / "logs" / "mine")
    assert set(found) == {f"{each}-w0{workers}-r1" for each in frameworks for workers in WORKERS}
    assert all(record.complete for record in found.values())
    assert sum(epoch.steps for epoch in found["horovod-w02-r1"].epochs) >= LEAST_STEPS
    for workers in WORKERS:
        native, *others = (f"{each}-w0{workers}-r1" for each in frameworks)
        for other in others:
            require_same_weights(*(tmp_path / "logs" / "mine" / run for run in (native, other)))
            assert scores_of(found[native]) == scores_of(found[other])
    command(tmp_path, "report", "logs/mine")
    _require_words_of_the_task(tmp_path / "logs" / "mine" / "report", len(found))


def require_same_weights(one: Path, other: Path) -> None:
    found = weights(other)
    assert all(torch.equal(tensor, found[key]) for key, tensor in weights(one).items()), other


def scores_of(record: Record) -> list[dict[str, float | None]]:
    return [result.scores for result in record.results if isinstance(result, Scores)]


def _require_words_of_the_task(folder: Path, runs: int) -> None:
    texts = {path.name: path.read_text() for path in folder.glob("*.[hcmjst]*")}
    assert not [name for name, text in texts.items() if IOU.search(name) or IOU.search(text)]
    assert len((folder / "runs.csv").read_text().splitlines()) == 1 + runs


@pytest.mark.parametrize("fault", ["kill", pytest.param("SIGUSR2", marks=pytest.mark.verify)])
def test_a_run_goes_on_to_the_same_bits(fault: str, tmp_path: Path) -> None:
    """Killed with a checkpoint at every step, or asked to stop: in the middle of an epoch.

    What the task counts in a buffer decides which layers a pass uses.
    """
    config = points_config(
        tmp_path / "task", SOMETIMES_UNUSED, framework="horovod", workers=2,
        find_unused_parameters=True, evaluate_every=1, checkpoint_minutes=EVERY_STEP,
    )  # fmt: skip
    undisturbed = attempt(tmp_path / "undisturbed", config).record
    assert undisturbed.complete
    ended = attempt(tmp_path / "run", config, Fault(fault, 6, every_step_is_safe=True))
    assert not ended.record.complete
    resumed = attempt(tmp_path / "run", config).record
    assert resumed.header is not None
    assert resumed.header.resumed is not None
    assert resumed.header.resumed.epoch == 0
    assert trained(resumed) == trained(undisturbed)
    require_same_weights(tmp_path / "run", tmp_path / "undisturbed")


@pytest.mark.verify
def test_slurm_runs_a_task_beside_its_study(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(SOMETIMES_UNUSED)
    (tmp_path / "mine.toml").write_text(TASK.format(workers=[1, 2]))
    with bring_up("task", "--hosts", "1", "--gpus-per-host", "2", "--cores-per-host", "2") as cluster:
        sweep = Sweep(cluster, tmp_path, tmp_path, "mine")
        done = sweep.submit("--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        assert sweep.states() == {"complete"}
        found = records(tmp_path / "logs" / "mine")
        assert len(found) == len(FRAMEWORKS) * len(WORKERS)
        assert scores_of(found["horovod-w02-r1"]) == scores_of(found["pytorch_native-w02-r1"])
        (tmp_path / "my_task.py").write_text(SOMETIMES_UNUSED + "\n")
        refused = sweep.submit("--set", "repeats=2")
    assert refused.returncode == 2
    assert "holds another configuration: task.sha256 is" in refused.stderr
