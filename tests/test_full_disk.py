"""A disk that is full for a moment, or a file that may not grow: worker 0 writes every file, by one code."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import SECONDS_FULL_VARIABLE, STEPS, Fault, attempt, checkpoints, fault_point, steps_done
from unet_scaling.study.record import RECORD_NAME

pytestmark = pytest.mark.slow
EVERY_STEP = 1e-6  # minutes between checkpoints


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A run folder on a file system of 4 MiB."""
    place = tmp_path / "run"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_full_for_some_seconds_is_waited_for(images: Path, small_disk: Path) -> None:
    point = fault_point(images, "pytorch_native", workers=1, checkpoint_minutes=EVERY_STEP)
    fault = Fault("full disk", STEPS + 3, worker=0, every_step_is_safe=True)
    done = attempt(small_disk, point, fault, variable=(SECONDS_FULL_VARIABLE, "3"))
    assert done.record.complete, done.output
    assert steps_done(done) == 0


def test_a_checkpoint_that_may_not_be_written_ends_the_run_with_the_reason(
    images: Path, tmp_path: Path
) -> None:
    """A limit of the process, which every user can have: the record still fits, checkpoints do not."""
    point = fault_point(images, "pytorch_native", workers=1, checkpoint_minutes=EVERY_STEP)
    run = tmp_path / "run"
    failed = attempt(run, point, Fault("file size", 5, worker=0, every_step_is_safe=True))
    assert failed.state.state == "failed"
    assert "the checkpoint could not be written, the run stops: [Errno 27]" in failed.state.reason
    assert "Traceback" not in failed.output
    assert not failed.record.damaged
    assert checkpoints(run) == [f"checkpoint-00000-000000{step}.pt" for step in (3, 4)]


def test_a_record_that_may_not_be_written_ends_the_run_with_the_reason(images: Path, tmp_path: Path) -> None:
    point = fault_point(images, "pytorch_native", workers=1)
    failed = attempt(tmp_path / "run", point, Fault("record size", 5, worker=0))
    assert failed.state.state == "failed"
    assert f"{RECORD_NAME} cannot be written" in failed.output
    assert "Traceback" not in failed.output
    assert not failed.record.damaged
