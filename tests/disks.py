"""Disks and files without room: a small file system, which needs root, and a limit on the size of files."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BLOCK = bytes(1 << 16)


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount it on `folder`; its files are gone afterwards."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "tmpfs", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Inside, no file of this process grows beyond so many bytes; pytest's own output may be one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Inside, not a byte more goes onto the disk."""
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(BLOCK)
    try:
        yield
    finally:
        filling.unlink()
