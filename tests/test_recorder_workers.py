"""Scripts on real workers record themselves, with DDP, Horovod and a Lightning Trainer."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.load import load_study
from slurm.local import launch
from slurm.preflight import is_installed
from tests.cluster import free_port, wait_until
from tests.machine import needs_a_core_each, quiet_machine
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import RECORD_NAME, Record, read_record

pytestmark = pytest.mark.slow
SCRIPTS = PROJECT / "tests" / "scripts"
STUDY = "scripts"


def start_torchrun_workers(
    script: str, workers: int, logs: Path, *options: str
) -> list[subprocess.Popen[str]]:
    """Start the workers of a script with the variables by which torchrun tells them their rank."""
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(workers)}
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), STUDY, str(logs), *options],
            cwd=PROJECT,
            env=os.environ | variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(workers)
    ]


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Return what workers printed, once all have ended well."""
    texts = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)
    return texts


def records(logs: Path, pattern: str = "*") -> list[Record]:
    """Return the records of the study, by the names of their folders."""
    return [read_record(folder / RECORD_NAME) for folder in sorted((logs / STUDY).glob(f"script-{pattern}"))]


def epochs_in(logs: Path) -> list[int]:
    return [len(read_record(path).epochs) for path in logs.glob(f"*/*/{RECORD_NAME}")]


def test_two_workers_of_ddp_record_one_run_that_can_be_read_when_they_are_killed(tmp_path: Path) -> None:
    workers = start_torchrun_workers("ddp.py", 2, tmp_path, "--epochs", "2", "--wait", "600")
    try:
        wait_until(lambda: epochs_in(tmp_path) == [2], "two epochs", seconds=300)
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
    (found,) = records(tmp_path)
    assert (found.problems, found.end) == ((), None)
    script = found.script
    assert script is not None
    assert (script.framework, script.script, script.repeat) == ("pytorch_native", "ddp.py", 1)
    assert script.transport == {"backend": "gloo"}
    assert [worker.worker for worker in script.workers] == [0, 1]
    assert len({worker.process for worker in script.workers}) == 2
    assert len(found.epochs) == 2
    for epoch in found.epochs:
        assert (epoch.images, epoch.steps, len(epoch.worker_seconds)) == (64, 2, 2)
        assert epoch.budget is not None
        assert 0 < epoch.budget.wire_seconds <= min(epoch.budget.sync_seconds) * (1 + 1e-3)
        assert epoch.cpu is not None
        first, second = epoch.cpu
        assert first.process_seconds > 0
        assert first.other_workers_seconds == pytest.approx(second.process_seconds, abs=1e-5)
        assert second.other_workers_seconds == pytest.approx(first.process_seconds, abs=1e-5)
    study = load_study(tmp_path / STUDY)
    assert study.runs.empty
    assert study.left_out["state"].tolist() == ["failed"]
    assert "no end line after 2 epochs" in study.left_out["reason"].iloc[0]


def test_horovods_wait_for_averages_is_sync_and_a_step_counts_once(tmp_path: Path) -> None:
    output = tmp_path / "output.log"
    assert launch([str(SCRIPTS / "horovod_script.py"), STUDY, str(tmp_path)], 2, output, None) == 0, output
    (found,) = records(tmp_path)
    assert found.complete
    assert found.script is not None
    assert found.script.transport["controller"] == "MPI"
    for epoch in found.epochs:
        assert (epoch.images, epoch.steps) == (64, 2)
        assert epoch.budget is not None
        assert min(epoch.budget.sync_seconds) > 0


@pytest.mark.skipif(not is_installed("lightning"), reason="Lightning is not installed")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.verify)])
def test_a_callback_records_the_training_of_a_lightning_trainer(workers: int, tmp_path: Path) -> None:
    outputs(start_torchrun_workers("lightning_script.py", workers, tmp_path))
    (found,) = records(tmp_path)
    assert found.complete
    assert found.script is not None
    assert "lightning" in found.script.versions
    assert [(epoch.images, epoch.steps) for epoch in found.epochs] == [(64, 4 // workers)] * 3
    assert all(epoch.budget for epoch in found.epochs)
    assert found.end is not None
    assert found.end.scores is not None
    assert list(found.end.scores) == ["error"]


@pytest.mark.timing
@needs_a_core_each
def test_images_per_second_are_those_of_the_scripts_own_clock(tmp_path: Path) -> None:
    options = ("--epochs", "4", "--images", "8192", "--width", "16")
    # Its workers may run on each other's cores: to the record of each, the other is another program.
    with quiet_machine():
        texts = outputs(start_torchrun_workers("ddp.py", 2, tmp_path, *options))
    (found,) = records(tmp_path)
    for epoch, speeds in zip(found.epochs, zip(*map(_speeds, texts), strict=True), strict=True):
        if not epoch.warmup:
            # The clock of a script that is first to begin also counts how long it waits for the others.
            assert 0.99 * min(speeds) <= epoch.images / epoch.seconds <= 1.01 * max(speeds)


def _speeds(text: str) -> list[float]:
    return [float(line.split()[0]) for line in text.splitlines() if line.endswith("images/s")]
