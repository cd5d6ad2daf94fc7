"""Ctrl-C in a study on this machine: workers save, the command to go on is named; a second one ends all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from slurm.processes import SAME_REQUEST_SECONDS, descendants, worker_processes
from slurm.status import study_rows
from tests.cluster import wait_until
from tests.studies import TINY_STUDY
from unet_scaling.study.command_line import PASTED
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import read_record

pytestmark = pytest.mark.slow
# Far more than a test waits for.
MANY_EPOCHS = 1_000_000


@contextmanager
def training(folder: Path, data: Path, workers: int) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A study of one run that trains, in a session of its own, and its run folder."""
    study = folder / "tiny.toml"
    study.write_text(TINY_STUDY.format(data=data, workers=[workers], epochs=MANY_EPOCHS))
    command = [sys.executable, "-m", "unet_scaling", "run", str(study), "--logs", str(folder / "logs")]
    process = subprocess.Popen(
        [*command, "--set", "frameworks=['pytorch_native']"], cwd=PROJECT, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # A shell lets what it starts in the background ignore Ctrl-C, and all below that would inherit it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    run = folder / "logs" / "tiny" / f"pytorch_native-w{workers:02}-r1"
    try:
        wait_until(lambda: epochs_in(run) > 1, "two epochs", 180)
        yield process, run
    finally:
        process.kill()
        process.wait()


def epochs_in(run: Path) -> int:
    record = run / "run.jsonl"
    return record.read_text().count('"kind":"epoch"') if record.exists() else 0


def test_ctrl_c_saves_and_names_the_command_to_go_on(tmp_path: Path, images: Path) -> None:
    with training(tmp_path, images, 1) as (process, run):
        (row,) = study_rows(run.parent)
        assert row.state == "running"
        assert row.images_per_second
        assert row.expected_end
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        os.killpg(process.pid, signal.SIGINT)  # at once: the same request
        printed, _ = process.communicate(timeout=120)
    assert process.returncode == 75, printed
    assert "stopping: the workers save their state" in printed
    study = tmp_path / "tiny.toml"
    assert f"run the same command to go on: {PASTED} run {study} --logs" in printed
    end = read_record(run / "run.jsonl").end
    assert end is not None
    assert end.status == "stopped"
    assert list(run.glob("checkpoint-*.pt"))
    assert not list(run.glob("error.*"))
    (row,) = study_rows(run.parent)
    assert row.state == "resumable"


def test_a_second_ctrl_c_ends_all_workers_at_once(tmp_path: Path, images: Path) -> None:
    with training(tmp_path, images, 2) as (process, _):
        below = descendants(process.pid)
        command = [sys.executable, str(PROJECT / "pytorch_native/train.py"), str(_)]
        workers = worker_processes(process.pid, command)
        assert len(workers) == 2
        for worker in workers:
            worker.suspend()  # they will never reach a safe point
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        while "stopping" not in (line := process.stdout.readline()):
            assert line
        time.sleep(2 * SAME_REQUEST_SECONDS)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    wait_until(lambda: not any(each.is_running() for each in below), "their end", 30)
