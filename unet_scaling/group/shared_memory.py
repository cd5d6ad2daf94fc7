"""Shared memory of a host, through which MPI connects workers: it must have room, and nothing stale in it."""

import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from unet_scaling.study.errors import UserError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
# Measured: MPICH with two workers crashes with 1 MiB, and runs with 4.
LEAST_BYTES = 2 * 2**20
# MPICH names its segment after job and step. A job that is requeued has the same ones: MPI would read what
# the attempt before left, and fail ("Message truncated").
LEFT_BY_MPI = "mpich_shm_*"
# Younger ones another worker of this host may be making at this moment.
LEAST_AGE_SECONDS = 5.0


def prepare_shared_memory_for_mpi() -> None:
    """Remove what MPI must not find, before it starts; UserError where there is no room for it."""
    if not SHARED_MEMORY.is_dir():
        return
    remove_left_segments(SHARED_MEMORY)
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < LEAST_BYTES:
        raise UserError(
            f"{SHARED_MEMORY} of {socket.gethostname()} has {free / 2**20:.1f} MiB free, MPI needs more: "
            f"remove what fills it; in a container, bind the host's or ask for more (--shm-size)"
        )


def remove_left_segments(folder: Path) -> None:
    """Remove this user's segments of MPI that no process has mapped any more: their workers were killed."""
    mapped = _mapped_files()
    for path in folder.glob(LEFT_BY_MPI):
        # Another worker of this host may remove it first.
        with suppress(OSError):
            facts = path.stat()
            young = time.time() - facts.st_mtime < LEAST_AGE_SECONDS
            if facts.st_uid == os.getuid() and not young and str(path) not in mapped:
                path.unlink()


def _mapped_files() -> set[str]:
    """Return what the processes of this user have mapped; those of others cannot be read."""
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped |= {line.split(maxsplit=5)[-1] for line in maps.read_text(errors="replace").splitlines()}
    return mapped
