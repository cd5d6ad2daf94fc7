"""One script given to Slurm: queued once, whatever Slurm answers, and noted in the folders of its runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm.cancellation import Cancellation, CancelledError
from slurm.scheduler import LimitError, RejectedError, UnreachableError, submit
from slurm.states import RunStatus
from slurm.submissions import Submission, SubmissionStatus, write_submission
from unet_scaling.study.files import open_to_append, write_atomically
from unet_scaling.study.retry import retry
from unet_scaling.study.study_file import OUTPUT_NAME

SCRIPT_NAME = "job.sbatch"

# Where Slurm takes no more jobs of this user now: twice as long each time, as jobs end in minutes or hours.
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0


def write_script(folder: Path, script: str) -> Path:
    """Write the script of a job, and its empty output, which Slurm would make readable for others."""
    path = folder / SCRIPT_NAME
    open_to_append(folder / OUTPUT_NAME).close()
    write_atomically(path, script)
    return path


@dataclass(frozen=True)
class BatchJob:
    """A script and the runs that it starts: one, or all those of an allocation (`shared`)."""

    label: str
    script: Path
    token: str
    runs: Sequence[RunStatus]
    shared: bool = False

    def queue(self, console: Console, limit_wait_seconds: float, cancellation: Cancellation) -> str:
        """Queue the script; return why it is not in the queue, or nothing.

        Where Slurm takes no more jobs, tries again for `limit_wait_seconds`. Raises CancelledError, with
        nothing left in the queue or named if it is, where the study is cancelled before or meanwhile.
        """

        def announce(error: LimitError, pause: float) -> None:
            console.print(f"{self.label}: {error}; next try in {pause:.0f} s", markup=False, soft_wrap=True)

        def ask() -> str:
            cancellation.require_none()
            return submit(self.script, self.token)

        self._note("asking")
        try:
            job = retry(ask, _pauses(limit_wait_seconds), LimitError, announce=announce)
        except UnreachableError as error:
            return f"not known whether it is queued: {error}; the next submission will look for it"
        except RejectedError as error:
            self._note("rejected", reason=str(error))
            return f"rejected: {error}"
        except LimitError as error:
            self._restore()
            return f"waiting: {error}"
        except CancelledError:
            self._restore()
            raise
        self._note("queued", job=job)
        console.print(f"{self.label}: job {job}", markup=False)
        cancellation.take_back(job)
        return ""

    def reject(self, reason: str) -> str:
        """Note that Slurm would refuse the script, which is not submitted; return that in words."""
        self._note("rejected", reason=reason, asked=0)
        return f"rejected: {reason}"

    def _restore(self) -> None:
        """Note for the runs what was noted before Slurm was asked."""
        for run in self.runs:
            write_submission(run.folder, run.submission)

    def _note(
        self, answer: SubmissionStatus, *, job: str | None = None, reason: str = "", asked: int = 1
    ) -> None:
        for run in self.runs:
            submission = Submission(
                token=self.token,
                attempts=run.attempts + asked,
                status=answer,
                job=job,
                reason=reason,
                shared=self.shared,
            )
            write_submission(run.folder, submission)


def _pauses(total_seconds: float) -> Iterator[float]:
    """Yield growing pauses that together last no longer than this."""
    pause = FIRST_PAUSE_SECONDS
    while pause <= total_seconds:
        yield pause
        total_seconds -= pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
