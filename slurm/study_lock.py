"""Keep a second launcher out of a study while the first one, or workers that it left, are at work on it.

By flock, which workers inherit with the file: where their launcher is killed, they hold it as long as they
live. filelock does not offer that: it unlocks for all holders when it is left, and takes over the claim of a
process that has died.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unet_scaling.study.errors import UserError
from unet_scaling.study.files import open_to_append

LOCK_NAME = ".lock"
CLAIM_NAME = ".claim"


@contextmanager
def locked(study: Path) -> Iterator[None]:
    """Hold the lock of a study folder. Raises UserError where another process holds it."""
    try:
        study.mkdir(parents=True, exist_ok=True)
        lock = open_to_append(study / LOCK_NAME)
    except OSError as error:
        raise UserError(f"the study folder {study} cannot be written: {error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(_who_holds(study)) from None
        except OSError:  # a file system without locks
            with _claimed(study / CLAIM_NAME):
                yield
            return
        os.set_inheritable(lock.fileno(), True)
        yield


@contextmanager
def _claimed(claim: Path) -> Iterator[None]:
    """Hold a file that only one process can create; it outlives a process that is killed."""
    try:
        with claim.open("x") as file:
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
    except FileExistsError:
        raise UserError(
            f"another submission, {claim.read_text()}, is working on {claim.parent}; "
            f"if it has died, remove {claim}"
        ) from None
    try:
        yield
    finally:
        claim.unlink()


def is_at_work(study: Path) -> bool:
    """Return whether a process of this machine holds the lock of this study."""
    return bool(_holders(study / LOCK_NAME))


def _who_holds(study: Path) -> str:
    """Return which processes hold the lock of this study, and what to do."""
    holders = _holders(study / LOCK_NAME)
    if not holders:
        return f"another submission is working on {study}, perhaps on another machine; wait for it to end"
    named = ", ".join(f"{process} ({name})" for process, name in holders.items())
    return (
        f"another submission is working on {study}, or workers of one that was killed: processes {named} "
        f"on {socket.gethostname()}; wait for their end, or: kill {next(iter(holders))}"
    )


def _holders(lock: Path) -> dict[int, str]:
    """Return the processes of this machine that have the file open, the oldest first, with their names."""
    holders = {}
    for process in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        facts = Path("/proc", str(process))
        with suppress(OSError):  # it has ended, or is another user's
            if any(link.samefile(lock) for link in (facts / "fd").iterdir() if link.exists()):
                holders[process] = (facts / "comm").read_text().strip()
    holders.pop(os.getpid(), None)
    return holders
