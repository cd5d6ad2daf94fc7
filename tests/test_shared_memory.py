"""What killed workers left in shared memory is removed, and nothing that is in use."""

import mmap
import os
import time
from pathlib import Path

import pytest

from unet_scaling.group.shared_memory import LEAST_AGE_SECONDS, remove_left_segments

NAME = "mpich_shm_ae82f522_0"


def segment(folder: Path, name: str = NAME, age: float = 2 * LEAST_AGE_SECONDS) -> Path:
    path = folder / name
    path.write_bytes(bytes(mmap.PAGESIZE))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_a_segment_that_nobody_has_mapped_is_removed(tmp_path: Path) -> None:
    path = segment(tmp_path)
    remove_left_segments(tmp_path)
    assert not path.exists()


def test_a_segment_in_use_stays(tmp_path: Path) -> None:
    path = segment(tmp_path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_left_segments(tmp_path)
    assert path.exists()


@pytest.mark.parametrize(("name", "age"), [(NAME, 0.0), ("another_0", 2 * LEAST_AGE_SECONDS)])
def test_what_is_being_made_and_what_is_not_of_mpi_stays(name: str, age: float, tmp_path: Path) -> None:
    path = segment(tmp_path, name, age)
    remove_left_segments(tmp_path)
    assert path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_segment_of_another_user_stays(tmp_path: Path) -> None:
    path = segment(tmp_path)
    os.chown(path, os.getuid() + 1, -1)
    remove_left_segments(tmp_path)
    assert path.exists()
