"""One run folder, launched without a submission: what it refuses, and that its options train."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm.local import launch
from tests.studies import make_images, make_point, make_run, train
from tests.trained import TrainedRuns, plain_config
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import read_record
from unet_scaling.study.run_state import run_state

pytestmark = pytest.mark.slow


def run_twin(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROJECT / "pytorch_native" / "train.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_complete_run_folder_is_refused_and_left_as_it_was(images: Path, trained_run: TrainedRuns) -> None:
    run = trained_run(plain_config(images, workers=1)).folder
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    outcome = run_twin(run)
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: ")
    assert "never touched" in outcome.stderr
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_folder_in_place_of_the_record_is_an_error_that_names_it(images: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_point(images))
    (run / "run.jsonl").mkdir()
    outcome = run_twin(run)
    assert outcome.returncode == 65
    assert outcome.stderr == (
        f"error: {run}/run.jsonl cannot be read: Is a directory; move it away, or use another run folder\n"
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core of two is used")
def test_a_worker_uses_as_many_of_its_cores_as_its_point_wants(images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_point(images, "horovod", cores_per_worker=1))
    program = [str(PROJECT / "horovod" / "train.py"), str(folder)]
    assert launch(program, 1, folder / "output.log", cores_each=2) == 0, (folder / "output.log").read_text()
    header = read_record(folder / "run.jsonl").header
    assert header is not None
    (worker,) = header.workers
    assert (len(worker.cores), worker.threads) == (1, 1)


def test_more_cores_than_a_worker_has_are_refused(images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_point(images, cores_per_worker=4096))
    program = [str(PROJECT / "pytorch_native" / "train.py"), str(folder)]
    assert launch(program, 1, folder / "output.log", cores_each=1) == 2
    told = (folder / "output.log").read_text()
    assert "training.cores_per_worker = 4096: worker 0 has only 1 on" in told


def test_a_batch_beyond_the_data_names_the_largest(images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_point(images, batch_per_worker=64))
    outcome = run_twin(folder)
    assert outcome.returncode == 65, outcome.stderr
    assert "at most 38" in outcome.stderr
    assert not (folder / "log.csv").exists()
    state = run_state(folder)
    assert state.state == "failed"
    assert "64" in state.reason
    report = json.loads((folder / "error.attempt1.worker0.json").read_text())
    assert (report["worker"], report["attempt"]) == (0, 1)
    assert "batch" in report["message"]


def test_a_group_of_another_size_is_refused(images: Path, tmp_path: Path) -> None:
    """Four workers asked for, one started: the case of an mpiexec that does not belong to the MPI."""
    outcome = run_twin(make_run(tmp_path / "run", make_point(images, workers=4)))
    assert outcome.returncode == 2
    assert "asks for 4 workers, but this process is one of 1" in outcome.stderr


def test_changed_images_are_refused(tmp_path: Path) -> None:
    data = make_images(tmp_path / "data", count=10)
    next((data / "images").iterdir()).unlink()
    outcome = run_twin(make_run(tmp_path / "run", make_point(data)))
    assert outcome.returncode == 65
    assert "unet-scaling data check" in outcome.stderr


def test_a_loss_that_is_not_finite_ends_as_diverged(images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_point(images, learning_rate=1e20, batch_norm="off", epochs=3))
    outcome = run_twin(folder)
    assert outcome.returncode == 70, outcome.stdout + outcome.stderr
    record = read_record(folder / "run.jsonl")
    assert record.end is not None
    assert record.end.status == "diverged"
    assert record.results == ()
    assert not record.complete


def test_decoding_at_every_step_trains_the_same(images: Path, trained_run: TrainedRuns) -> None:
    cached, decoded = (
        trained_run(plain_config(images, workers=1, loading=loading)) for loading in ("cache", "decode")
    )
    assert cached.losses == decoded.losses
    assert cached.record.results[-1].weights_sha256 == decoded.record.results[-1].weights_sha256


@pytest.mark.parametrize(
    "option", [{"precision": "bf16"}, {"precision": "tf32"}, {"compile": True, "depth": 1}]
)
def test_other_precisions_and_compilation_train(option: dict[str, Any], images: Path, tmp_path: Path) -> None:
    record = train(tmp_path / "run", make_point(images, epochs=3, **option))
    losses = [epoch.loss for epoch in record.epochs if epoch.loss is not None]
    assert losses[-1] < losses[0]
    assert all(epoch.budget is not None for epoch in record.epochs)


def test_a_run_folder_that_anyone_may_write_into_is_refused(images: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_point(images))
    run.chmod(0o777)
    refused = run_twin(run)
    assert refused.returncode == 2
    assert f"{run} may be written by anyone: chmod o-w {run}" in refused.stderr
    assert [path.name for path in run.iterdir()] == ["config.json"]


def test_workers_that_die_before_they_can_say_why_have_failed(images: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_point(images, workers=2))
    assert run_state(run).state == "waiting"
    assert launch(["-c", "import os; os.abort()"], 2, run / "output.log", cores_each=None) != 0
    assert run_state(run).state == "failed"
    assert "ended by a signal (" in run_state(run).reason
