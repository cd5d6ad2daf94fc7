"""Files that are either the old or the new one, whenever a process is killed or a disk is full.

All are private to their owner unless said otherwise: on a cluster, others can read what umask allows.
"""

import errno
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

SEAL = "sha256"
PRIVATE = 0o600
READABLE = 0o644
# What a shared file system may answer once and not again; a full disk may be emptied meanwhile.
TRANSIENT = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT)
PAUSES_SECONDS = (1.0, 3.0, 8.0)


def write_atomically(path: Path, content: str | bytes, mode: int = PRIVATE) -> None:
    """Write a whole file, or leave what was there. Raises OSError (a disk that stays full, no permission)."""
    data = content.encode() if isinstance(content, str) else content
    retry_transient(lambda: _replace(path, data, mode))


def retry_transient(write: Callable[[], None]) -> None:
    """Try a write again, some seconds and no more, after an error that may pass; then raise it (OSError)."""
    for pause in PAUSES_SECONDS:
        try:
            return write()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            time.sleep(pause)
    return write()


def _replace(path: Path, data: bytes, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def remove_unfinished(folder: Path, names: str) -> None:
    """Remove what writers of files of these names (a glob pattern) had begun when they were killed."""
    for path in folder.glob(f".{names}.*"):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power failure, where the file system offers that."""
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to add to it, private where it is new. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "ab")


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file; a pipe or device would be waited for, perhaps for ever.

    Raises OSError, also where the path is neither a regular file nor a folder.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "neither a regular file nor a link to one", str(path))
    return path.read_bytes()


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write JSON for programs and people, with a checksum of its values as last key. Raises OSError."""
    write_atomically(path, json.dumps(content | {SEAL: _seal(content)}, indent=2) + "\n")


def read_sealed(path: Path) -> object:
    """The JSON of a file; where it was sealed, as it was then. Raises ValueError and OSError."""
    content = json.loads(read_regular(path))
    seal = content.pop(SEAL, None) if isinstance(content, dict) else None
    if seal not in (None, _seal(content)):
        raise ValueError(f"it does not match its {SEAL}: damaged, or changed by hand (then remove that key)")
    return content


def _seal(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_verified(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Write a file with its SHA-256 beside it, which is written first.

    A kill between the two leaves a pair that does not match, which reading refuses.
    """
    write_atomically(checksum_path(path), hashlib.sha256(content).hexdigest() + "\n", mode)
    write_atomically(path, content, mode)


def read_verified(path: Path) -> bytes:
    """What `write_verified` wrote; ValueError where it is damaged, OSError where it cannot be read."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != checksum_path(path).read_text().strip():
        raise ValueError(f"{path} does not match {checksum_path(path)}: the file is damaged")
    return content


def checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
