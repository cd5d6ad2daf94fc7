"""A disk that is full for a moment, or for good, and no room in /dev/shm: real workers.

Worker 0 writes every file, by the same code under every framework: each test takes one of them.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import (
    FILLER_NAME,
    SECONDS_FULL_VARIABLE,
    STEPS,
    Fault,
    attempt,
    checkpoints,
    fault_point,
    steps_done,
    trained,
)
from tests.studies import TINY_STUDY, launched, make_point
from unet_scaling.study.config import FRAMEWORKS, PROJECT
from unet_scaling.study.run_state import run_state

pytestmark = pytest.mark.slow
needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
EVERY_STEP = 1e-6  # minutes between checkpoints


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A run folder on a file system of 4 MiB."""
    place = tmp_path / "run"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@needs_mounts
def test_a_disk_that_is_full_for_some_seconds_is_waited_for(
    images: Path, small_disk: Path, undisturbed: dict[str, list[object]]
) -> None:
    point = fault_point(images, "pytorch_native", checkpoint_minutes=EVERY_STEP)
    fault = Fault("full disk", STEPS + 3, worker=0, every_step_is_safe=True)
    done = attempt(small_disk, point, fault, variable=(SECONDS_FULL_VARIABLE, "3"))
    assert steps_done(done) == 0
    assert trained(done.record) == undisturbed["pytorch_native"]


@needs_mounts
def test_a_disk_that_stays_full_ends_the_run_loudly_and_leaves_what_was_there(
    images: Path, small_disk: Path, undisturbed: dict[str, list[object]]
) -> None:
    point = fault_point(images, "horovod", checkpoint_minutes=EVERY_STEP)
    run = small_disk
    failed = attempt(run, point, Fault("full disk", STEPS + 3, worker=0, every_step_is_safe=True))
    assert failed.state.state == "failed"
    assert "the checkpoint could not be written, the run stops" in failed.output
    assert not failed.record.damaged
    assert checkpoints(run) == [f"checkpoint-00001-000000{step}.pt" for step in (1, 2)]
    (run / FILLER_NAME).unlink()
    resumed = attempt(run, point)
    assert steps_done(resumed) == STEPS + 2
    assert trained(resumed.record) == undisturbed["horovod"]


@needs_mounts
def test_a_record_that_cannot_be_written_ends_the_run_in_one_sentence(images: Path, small_disk: Path) -> None:
    point = fault_point(images, "pytorch_native", checkpoint_minutes=0)
    failed = attempt(small_disk, point, Fault("full disk", 2 * STEPS, worker=0))
    assert failed.state.state == "failed"
    assert "run.jsonl cannot be written, the run stops: No space left on device" in failed.output
    assert "Traceback" not in failed.output
    assert not failed.record.damaged


@pytest.mark.parametrize("name", ["weights.pt", "log.csv", "compute.json"])
def test_a_file_that_a_run_must_leave_and_cannot_write_ends_it_in_one_sentence(
    name: str, images: Path, tmp_path: Path
) -> None:
    """A folder has its name: what every user can make, and the worker sees an OSError."""
    point = make_point(images, "pytorch_native", workers=1, epochs=3, compute_profile="on")
    run = tmp_path / "run"
    (run / name / "inside").mkdir(parents=True)
    code, output = launched(point, run)
    assert (code, run_state(run).state) == (1, "failed")
    assert f"{name} cannot be written, the run stops: Is a directory; launch it again" in output
    assert "Traceback" not in output


def test_a_checkpoint_that_may_not_be_written_ends_the_run_with_the_reason(
    images: Path, tmp_path: Path
) -> None:
    """A limit of the process, which every user can have: the record still fits, checkpoints do not."""
    point = fault_point(images, "pytorch_native", workers=1, checkpoint_minutes=EVERY_STEP)
    run = tmp_path / "run"
    failed = attempt(run, point, Fault("file size", 5, worker=0, every_step_is_safe=True))
    assert "the checkpoint could not be written, the run stops: [Errno 27]" in failed.state.reason
    assert checkpoints(run) == [f"checkpoint-00000-000000{step}.pt" for step in (3, 4)]


@needs_mounts
@pytest.mark.skipif(shutil.which("unshare") is None, reason="a /dev/shm of its own needs unshare")
def test_without_room_in_shared_memory_horovod_says_so_and_native_ddp_needs_none(
    images: Path, tmp_path: Path
) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(TINY_STUDY.format(data=images, workers=[2], epochs=2))
    mounted = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    submission = [PROJECT / "slurm" / "submission.sh", study, "--local", "--logs", tmp_path / "logs"]
    command = ["unshare", "--mount", "sh", "-c", mounted, "sh", *map(str, submission)]
    subprocess.run(command, check=False, timeout=300)
    native, horovod = (run_state(tmp_path / "logs" / "tiny" / f"{name}-w02-r1") for name in FRAMEWORKS)
    assert native.state == "complete"
    assert horovod.state == "failed"
    assert "/dev/shm of " in horovod.reason
    assert "has 0.1 MiB free, MPI needs more" in horovod.reason
