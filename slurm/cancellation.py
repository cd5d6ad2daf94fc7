"""Tell submissions that are at work on a study, perhaps for hours, that it is cancelled.

`cancel` leaves a new mark in the study folder before it ends any job. A submission knows the mark that it
found when it began, and looks for another one before and after each job that it queues: whenever the two
meet, either the submission sees the mark, or `cancel` sees the job.
"""

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from slurm.scheduler import Slurm, UnreachableError
from unet_scaling.study.command_line import CALLED
from unet_scaling.study.errors import EXIT_RESUME, UserError
from unet_scaling.study.files import write_atomically

MARK_NAME = ".cancelled"


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
