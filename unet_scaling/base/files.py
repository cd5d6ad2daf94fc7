"""Write files atomically and verify them by checksum.

A reader finds the old or the new file, whenever a process is killed or a disk is full. Files are private to
their owner unless a mode is given: on a cluster, others can read what umask allows.

Whole files carry a SHA-256: JSON as its last key, binary files in a file beside them. Lines of the record
carry a CRC-32 instead (record.py): it is there against damage, not forgery, and each line of two million has
to be checked as it is read; 8 digits find every damage of up to 32 bits in a row.
"""

import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from unet_scaling.base.texts import retry

CHECKSUM_KEY = "sha256"
# Modes of new files: only the owner reads them, or everybody does; only the owner writes either.
PRIVATE = 0o600
READABLE = 0o644
# Errors of a shared file system that may pass; a full disk may be emptied meanwhile.
TRANSIENT = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT)
PAUSES_SECONDS = (1.0, 3.0, 8.0)
NOT_REGULAR = "neither a regular file nor a link to one"


def write_atomically(path: Path, content: str | bytes, mode: int = PRIVATE, *, durable: bool = True) -> None:
    """Write the file, or leave what was there. Raises OSError (a disk that stays full, no permission).

    One that can be made again need not be `durable`: after a power failure it may be empty.
    """
    data = content.encode() if isinstance(content, str) else content
    retry_transient(lambda: _replace(path, data, mode, durable))


def retry_transient(write: Callable[[], None]) -> None:
    """Call `write` again for a few seconds after an error that may pass; then raise it (OSError)."""
    retry(write, PAUSES_SECONDS, OSError, may_pass=lambda error: error.errno in TRANSIENT)


def _replace(path: Path, data: bytes, mode: int, durable: bool) -> None:
    """Replace the file. Raises OSError that names it, not the temporary file."""
    try:
        _replace_by_temporary(path, data, mode, durable)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace_by_temporary(path: Path, data: bytes, mode: int, durable: bool) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:  # the new name survives a power failure, too, where the file system offers that
        folder = os.open(path.parent, os.O_RDONLY)
        with suppress(OSError):
            os.fsync(folder)
        os.close(folder)


def create_once(path: Path, content: str) -> bool:
    """Write a file that does not exist yet, whole or not at all; False where there is one. Raises OSError.

    Of several processes, on whichever hosts, one creates it: by a link, or by O_EXCL where none can be made.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            # A file server whose answer was lost is asked again, and then finds the link that it made.
            return temporary.stat().st_nlink == 2
        except OSError:
            try:
                with path.open("x") as file:
                    file.write(content)
            except FileExistsError:
                return False
        return True
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path, names: str) -> None:
    """Remove temporary files that killed writers of these names (a glob pattern) left."""
    for path in folder.glob(f".{names}.*"):
        path.unlink(missing_ok=True)


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to add to it, private where it is new. Raises OSError, also for a pipe without reader."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
    return os.fdopen(os.open(path, flags, PRIVATE), "ab")


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError, also for a pipe or device: reading might hang."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    return path.read_bytes()


def read_given(path: Path) -> bytes:
    """Return the content of a file that a user names, or of a pipe as <(COMMAND) of a shell makes it.

    Raises OSError, also for a pipe that nobody writes to: reading would wait for ever.
    """
    if not path.is_fifo():
        return read_regular(path)
    with open(
        path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    ) as pipe:
        first = pipe.read(1)  # None: nothing yet, of somebody who writes
        if first == b"":
            raise OSError(errno.EINVAL, "a pipe that nobody writes to", str(path))
        os.set_blocking(pipe.fileno(), True)
        return (first or b"") + pipe.readall()


def real_path(path: Path) -> Path:
    """Return the path without links; one that ends in a loop of links stays, for who opens it to tell."""
    return Path(os.path.realpath(path))


def write_json_with_checksum(path: Path, content: dict[str, Any]) -> None:
    """Write JSON for programs and people, with a checksum of its values as last key. Raises OSError."""
    write_atomically(path, json_with_checksum(content))


def json_with_checksum(content: dict[str, Any]) -> str:
    """Return the text of a file that `read_json_with_checksum` reads."""
    return json.dumps(content | {CHECKSUM_KEY: _json_checksum(content)}, indent=2) + "\n"


def read_json_with_checksum(path: Path) -> object:
    """Return the JSON of a file, verified where it has a checksum. Raises ValueError and OSError."""
    content = parse_json(read_regular(path))
    checksum = content.pop(CHECKSUM_KEY, None) if isinstance(content, dict) else None
    if checksum not in (None, _json_checksum(content)):
        raise ValueError(
            f"it does not match its {CHECKSUM_KEY}: damaged, or changed by hand (then remove that key)"
        )
    return content


def parse_json(content: bytes | str) -> Any:  # noqa: ANN401
    """Return what JSON holds. Raises ValueError, also where it is nested too deeply to be read."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _json_checksum(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_verified(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Write a file with its SHA-256 beside it; one that holds this already is left alone. Raises OSError.

    The digests are written first, of the new content and of the old one, which holds until it is replaced.
    """
    digests = [hashlib.sha256(content).hexdigest()]
    with suppress(OSError, ValueError):
        before = read_verified(path)
        if before == content:
            return
        digests.append(hashlib.sha256(before).hexdigest())
    write_atomically(checksum_path(path), "\n".join(digests) + "\n", mode)
    try:
        write_atomically(path, content, mode)
    except OSError:
        if not path.exists():
            checksum_path(path).unlink(missing_ok=True)
        raise


def read_verified(path: Path) -> bytes:
    """Return what `write_verified` wrote. Raises ValueError for damage, OSError for an unreadable file."""
    content = read_regular(path)
    if hashlib.sha256(content).hexdigest().encode() not in read_regular(checksum_path(path)).split():
        raise ValueError(f"{path} does not match {checksum_path(path)}: the file is damaged")
    return content


def checksum_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
