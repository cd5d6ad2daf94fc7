"""Keep a second launcher out of a study while one, or workers that it left, are at work; let them stop.

By flock, which workers inherit with the file: where their launcher is killed, they hold it as long as they
live. filelock does not offer that: it unlocks for all holders when it is left, and takes over the claim of a
process that has died.

Submissions that are at work, perhaps for hours, are told that their study is cancelled: `cancel` leaves a new
mark in the study folder before it ends any job. A submission knows the mark that it found when it began, and
looks for another one before and after each job that it queues: whenever the two meet, either the submission
sees the mark, or `cancel` sees the job.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from slurm.scheduler import Slurm, UnreachableError
from unet_scaling.study.command_line import CALLED
from unet_scaling.study.errors import EXIT_RESUME, UserError
from unet_scaling.study.files import open_to_append, write_atomically

LOCK_NAME = ".lock"
CLAIM_NAME = ".claim"
MARK_NAME = ".cancelled"


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
            holders = _holders(study / LOCK_NAME)
            found = f"another submission is working on {study}"
            if not holders:
                raise UserError(f"{found}, perhaps on another machine; wait for it to end") from None
            named = ", ".join(f"{process} ({name})" for process, name in holders.items())
            raise UserError(
                f"{found}, or workers of one that was killed: processes {named} on {socket.gethostname()}; "
                f"wait for their end, or: kill {next(iter(holders))}"
            ) from None
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


class CancelledError(UserError):
    """The study was cancelled while a submission was at work on it. `left`: what that leaves to do, first."""

    def __init__(self, study: Path, left: str = "") -> None:
        super().__init__(
            f"{left}{study.name} was cancelled meanwhile ({CALLED} cancel {study.name}): nothing more is "
            "submitted; the same command goes on",
            EXIT_RESUME,
        )


@dataclass(frozen=True)
class Cancellation:
    """Whether a study is cancelled after a submission of it began, which found this mark."""

    study: Path
    found: bytes

    def require_none(self) -> None:
        """Raise CancelledError where the study was cancelled since."""
        if _mark(self.study) != self.found:
            raise CancelledError(self.study)

    def take_back(self, slurm: Slurm, token: str, job: str) -> None:
        """Cancel a job just queued, and raise CancelledError, where the study was cancelled meanwhile.

        Where Slurm does not answer, the error names the job, which is still there.
        """
        try:
            self.require_none()
        except CancelledError:
            try:
                slurm.cancel(token)
            except UnreachableError as error:
                raise CancelledError(
                    self.study,
                    f"job {job} was queued meanwhile and is still there, since Slurm does not answer now: "
                    f"{error}; cancel it again: {CALLED} cancel {self.study.name}\n",
                ) from None
            raise


def next_cancellation(study: Path) -> Cancellation:
    """Return what tells of a cancellation of this study from now on."""
    return Cancellation(study, _mark(study))


def mark_cancelled(study: Path) -> None:
    """Let all submissions of this study that are at work stop. Raises OSError."""
    write_atomically(study / MARK_NAME, f"{uuid4().hex}\n")


def _mark(study: Path) -> bytes:
    try:
        return (study / MARK_NAME).read_bytes()
    except FileNotFoundError:
        return b""
