"""A study on this machine through the real command: launched, resumed, refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm.local import launch
from slurm.study_folder import in_launch_order, run_state
from tests.studies import TINY_STUDY, make_images, make_point, make_run, train
from unet_scaling.config import PROJECT, Study
from unet_scaling.record import read_record
from unet_scaling.study_file import read_study

pytestmark = pytest.mark.slow


def submit(study: Path, logs: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROJECT / "slurm" / "submission.sh"), str(study), "--local", "--logs", str(logs), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def write_study(folder: Path, data: Path, text: str = TINY_STUDY) -> Path:
    path = folder / "tiny.toml"
    path.write_text(text.format(data=data, workers=[1, 2], epochs=2))
    return path


def run_program(folder: Path, framework: str = "pytorch_native") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROJECT / framework / "train.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def done(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A finished study of both frameworks at 1 and 2 workers: study file, logs folder, what it printed."""
    folder = tmp_path_factory.mktemp("local")
    study = write_study(folder, images)
    outcome = submit(study, folder / "logs")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return study, folder / "logs", outcome.stdout


def test_every_run_is_complete_and_said_so(done: tuple[Path, Path, str]) -> None:
    _, logs, printed = done
    folders = sorted(path.parent for path in logs.glob("tiny/*/point.json"))
    assert len(folders) == 4
    assert all(read_record(folder / "run.jsonl").complete for folder in folders)
    assert printed.count("complete in") == 4


def test_each_worker_owns_one_core_under_both_frameworks(done: tuple[Path, Path, str]) -> None:
    _, logs, _ = done
    for path in logs.glob("tiny/*/run.jsonl"):
        header = read_record(path).header
        assert header is not None
        cores = [core for worker in header.workers for core in worker.cores]
        assert len(cores) == len(set(cores)) == header.point.workers


def test_pairs_start_from_the_same_weights_and_data(done: tuple[Path, Path, str]) -> None:
    _, logs, _ = done
    headers = [read_record(path).header for path in logs.glob("tiny/*/run.jsonl")]
    assert len({header.initial_weights_sha256 for header in headers if header}) == 1
    assert len({header.manifest_sha256 for header in headers if header}) == 1


def test_the_older_log_has_one_row_per_epoch(done: tuple[Path, Path, str]) -> None:
    _, logs, _ = done
    rows = next(logs.glob("tiny/horovod-w02*/log.csv")).read_text().splitlines()
    assert rows[0] == ",time_per_epoch,loss,lr,training_time,test_time,iou"
    assert [row.split(",")[0] for row in rows[1:]] == ["0", "1"]
    assert {len(row.split(",")) for row in rows} == {7}


def test_a_second_submission_runs_nothing_and_touches_nothing(done: tuple[Path, Path, str]) -> None:
    study, logs, _ = done
    before = {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()}
    outcome = submit(study, logs)
    assert outcome.returncode == 0
    assert "4 complete already" in outcome.stdout
    assert {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()} == before


def test_an_unfinished_run_is_run_again_and_its_record_kept(
    done: tuple[Path, Path, str], tmp_path: Path
) -> None:
    study, logs, _ = done
    copy = tmp_path / "logs"
    shutil.copytree(logs, copy)
    run = copy / "tiny" / "horovod-w01-r1"
    lines = (run / "run.jsonl").read_text().splitlines(keepends=True)
    (run / "run.jsonl").write_text("".join(lines[:2]))
    outcome = submit(study, copy)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "3 complete already" in outcome.stdout
    record = read_record(run / "run.jsonl")
    assert record.complete
    assert record.header is not None
    assert record.header.attempt == 2
    assert (run / "run.attempt1.jsonl").read_text() == "".join(lines[:2])


def test_another_configuration_under_the_same_name_is_refused(done: tuple[Path, Path, str]) -> None:
    study, logs, _ = done
    outcome = submit(study, logs, "--set", "training.epochs=3")
    assert outcome.returncode == 2
    assert "training.epochs is 2 there, 3 in the study" in outcome.stderr


def test_a_complete_run_folder_is_refused_and_left_as_it_was(done: tuple[Path, Path, str]) -> None:
    _, logs, _ = done
    run = logs / "tiny" / "pytorch_native-w01-r1"
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    outcome = run_program(run)
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: ")
    assert "never touched" in outcome.stderr
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_more_workers_than_cores_is_refused_with_the_largest_count(images: Path, tmp_path: Path) -> None:
    outcome = submit(write_study(tmp_path, images), tmp_path / "logs", "--set", "workers=[1,4096]")
    assert outcome.returncode == 2
    assert "the largest worker count here is" in outcome.stderr
    assert not list(tmp_path.glob("logs/tiny/*/point.json"))


@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core of two is used")
def test_a_worker_uses_as_many_of_its_cores_as_its_point_wants(
    framework: str, images: Path, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", make_point(images, framework, cores_per_worker=1))
    program = [str(PROJECT / framework / "train.py"), str(folder)]
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


def test_an_unknown_key_is_named_with_the_known_ones(images: Path, tmp_path: Path) -> None:
    study = write_study(tmp_path, images, TINY_STUDY.replace("epochs =", "epoch ="))
    outcome = submit(study, tmp_path / "logs")
    assert outcome.returncode == 2
    assert "training.epoch: unknown key; known here: accumulate, batch_per_worker" in outcome.stderr
    assert "training.epochs: missing" in outcome.stderr
    assert str(study) in outcome.stderr


def test_an_unwritable_output_is_one_clear_line(images: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file, not a folder")
    outcome = submit(write_study(tmp_path, images), tmp_path / "logs")
    assert outcome.returncode == 2
    assert outcome.stderr.count("\n") == 1
    assert "cannot be written" in outcome.stderr


@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_a_batch_beyond_the_data_names_the_largest(framework: str, images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_point(images, framework, batch_per_worker=64))
    outcome = run_program(folder, framework)
    assert outcome.returncode == 65, outcome.stderr
    assert "at most 38" in outcome.stderr
    assert not (folder / "log.csv").exists()
    state = run_state(folder)
    assert state.state == "failed"
    assert "64" in state.reason


def test_a_group_of_another_size_is_refused(images: Path, tmp_path: Path) -> None:
    """Four workers asked for, one started: the case of an mpiexec that does not belong to the MPI."""
    outcome = run_program(make_run(tmp_path / "run", make_point(images, workers=4)))
    assert outcome.returncode == 2
    assert "asks for 4 workers, but this process is one of 1" in outcome.stderr


def test_changed_images_are_refused(tmp_path: Path) -> None:
    data = make_images(tmp_path / "data", count=10)
    next((data / "images").iterdir()).unlink()
    outcome = run_program(make_run(tmp_path / "run", make_point(data)))
    assert outcome.returncode == 65
    assert "unet_scaling.data check" in outcome.stderr


def test_a_loss_that_is_not_finite_ends_as_diverged(images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_point(images, learning_rate=1e20, batch_norm="off", epochs=3))
    outcome = run_program(folder)
    assert outcome.returncode == 70, outcome.stdout + outcome.stderr
    record = read_record(folder / "run.jsonl")
    assert record.end is not None
    assert record.end.status == "diverged"
    assert record.results == ()
    assert not record.complete


def test_decoding_at_every_step_trains_the_same(images: Path, tmp_path: Path) -> None:
    cached = train(tmp_path / "cache", make_point(images, loading="cache"))
    decoded = train(tmp_path / "decode", make_point(images, loading="decode"))
    assert cached.epochs[0].loss == decoded.epochs[0].loss
    assert cached.results[-1].weights_sha256 == decoded.results[-1].weights_sha256


@pytest.mark.parametrize(
    "option", [{"precision": "bf16"}, {"precision": "tf32"}, {"compile": True, "depth": 1}]
)
def test_other_precisions_and_compilation_train(option: dict[str, Any], images: Path, tmp_path: Path) -> None:
    record = train(tmp_path / "run", make_point(images, epochs=3, **option))
    assert record.epochs[-1].loss < record.epochs[0].loss
    assert all(epoch.budget is not None for epoch in record.epochs)


def test_a_failed_worker_leaves_its_reason(images: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", make_point(images, batch_per_worker=64))
    run_program(folder)
    report = json.loads((folder / "error.attempt1.worker0.json").read_text())
    assert report["worker"] == 0
    assert report["attempt"] == 1
    assert "batch" in report["message"]


def test_repeats_are_blocks_in_shuffled_order(images: Path, tmp_path: Path) -> None:
    study: Study = read_study(write_study(tmp_path, images), {"repeats": 6})
    order = in_launch_order(study)
    assert [point.repeat for point in order] == sorted(point.repeat for point in order)
    blocks = [tuple((p.framework, p.workers) for p in order[4 * i : 4 * i + 4]) for i in range(6)]
    assert len(set(blocks)) > 1
    assert all(len(set(block)) == 4 for block in blocks)
    assert order == in_launch_order(study)


def test_a_run_folder_that_anyone_may_write_into_is_refused(images: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_point(images))
    run.chmod(0o777)
    refused = run_program(run)
    assert refused.returncode == 2
    assert f"{run} may be written by anyone: chmod o-w {run}" in refused.stderr
    assert [path.name for path in run.iterdir()] == ["point.json"]


def test_workers_that_die_before_they_can_say_why_have_failed(images: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_point(images, workers=2))
    assert run_state(run).state == "waiting"
    assert launch(["-c", "import os; os.abort()"], 2, run / "output.log", cores_each=None) != 0
    assert run_state(run).state == "failed"
    assert run_state(run).reason == "the workers left neither a record nor a reason; see output.log"
