"""Put files out of the page cache, without root, and tell whether that worked."""

import os
import resource
from collections.abc import Sequence
from pathlib import Path

BLOCK_BYTES = 512  # of ru_inblock on Linux


def put_out(paths: Sequence[Path]) -> int:
    """Ask the kernel to forget the pages of these files; returns how many bytes they have.

    It keeps pages that another process has mapped, and all of a file system in memory. What was not
    written yet is written first, for such pages would be kept too.
    """
    size = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return size


def put_in(paths: Sequence[Path]) -> None:
    """Read files once, so that the next to read them finds them in memory."""
    for path in paths:
        path.read_bytes()


def storage_bytes() -> int:
    """Bytes that this process has read from storage so far, not from the page cache."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * BLOCK_BYTES
