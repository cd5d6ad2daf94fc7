"""What killed workers left in shared memory is removed, and nothing that is in use."""

import mmap
import os
import time
from pathlib import Path

import pytest

from unet_scaling.group.rendezvous import LEAST_AGE_SECONDS, remove_left_segments

NAME = "mpich_shm_ae82f522_0"


def segment(folder: Path, name: str = NAME, age: float = 2 * LEAST_AGE_SECONDS) -> Path:
    path = folder / name
    path.write_bytes(bytes(mmap.PAGESIZE))
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.mark.parametrize(
    ("name", "age", "owner", "left"),
    [
        (NAME, 2 * LEAST_AGE_SECONDS, 0, False),
        (NAME, 0.0, 0, True),  # another worker may be making it
        ("another_0", 2 * LEAST_AGE_SECONDS, 0, True),
        (NAME, 2 * LEAST_AGE_SECONDS, 1, True),
    ],
)
def test_old_segments_of_mpi_that_nobody_has_mapped_are_removed_and_no_others(
    name: str, age: float, owner: int, left: bool, tmp_path: Path
) -> None:
    path = segment(tmp_path, name, age)
    if owner:
        if os.getuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, os.getuid() + owner, -1)
    remove_left_segments(tmp_path)
    assert path.exists() == left


def test_a_segment_in_use_stays(tmp_path: Path) -> None:
    path = segment(tmp_path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_left_segments(tmp_path)
    assert path.exists()
