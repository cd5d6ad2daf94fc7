"""One script given to Slurm: queued once, whatever Slurm answers, and noted in the folders of its runs."""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm.after_run import set_disturbed_aside
from slurm.cancellation import Cancellation
from slurm.scheduler import LimitError, RejectedError, Slurm
from slurm.states import RunStatus, Submission, SubmissionStatus, write_submission
from unet_scaling.study.files import open_to_append, write_atomically
from unet_scaling.study.record import RECORD_NAME, attempt_records, set_launch_aside, take_launch_back
from unet_scaling.study.study_file import OUTPUT_NAME
from unet_scaling.study.texts import retry

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
    """A script and the runs that it starts: one, or all those of an allocation (`shared`).

    Runs named in `force` begin anew: what was before does not count among their attempts.
    """

    label: str
    script: Path
    token: str
    runs: Sequence[RunStatus]
    slurm: Slurm
    shared: bool = False
    force: Collection[str] = ()

    def queue(self, console: Console, limit_wait_seconds: float, cancellation: Cancellation) -> None:
        """Queue the script, and note in the folders of its runs what came of it.

        Complete records, which would keep runs from starting, are set aside as long as there may be a job.
        Where Slurm takes no more jobs, tries again for `limit_wait_seconds`. Raises RejectedError;
        LimitError; UnreachableError where nobody knows whether there is a job; or CancelledError, with
        nothing left in the queue or named if it is, where the study is cancelled before or meanwhile.
        """

        def announce(error: LimitError, pause: float) -> None:
            console.print(f"{self.label}: {error}; next try in {pause:.0f} s", markup=False, soft_wrap=True)

        def ask() -> str:
            cancellation.require_none()
            records = [self._set_aside(run) for run in self.runs if run.run.state.is_complete]
            self._note("asking")
            try:
                return self.slurm.submit(self.script, self.token)
            except (RejectedError, LimitError) as error:
                self._note("rejected" if isinstance(error, RejectedError) else "limited", reason=str(error))
                for record in records:
                    take_launch_back(record)
                raise

        job = retry(ask, _pauses(limit_wait_seconds), LimitError, announce=announce)
        self._note("queued", job=job)
        console.print(f"{self.label}: job {job}", markup=False)
        cancellation.take_back(self.slurm, self.token, job)

    def reject(self, reason: str) -> None:
        """Note that Slurm would refuse the script, which is not submitted. Raises RejectedError."""
        self._note("rejected", reason=reason)
        raise RejectedError(reason)

    def _set_aside(self, run: RunStatus) -> Path:
        is_forced = run.name in self.force
        return set_launch_aside(run.folder) if is_forced else set_disturbed_aside(run.folder)

    def _note(self, answer: SubmissionStatus, *, job: str | None = None, reason: str = "") -> None:
        for run in self.runs:
            attempts = run.attempts
            earlier = run.submission.earlier if run.submission else 0
            if run.name in self.force or run.run.state.is_complete:
                attempts = 0
                # The next attempt sets an incomplete record aside.
                earlier = len(attempt_records(run.folder)) + (run.folder / RECORD_NAME).exists()
            submission = Submission(
                token=self.token,
                attempts=attempts + (answer in ("asking", "queued")),
                status=answer,
                job=job,
                reason=reason,
                shared=self.shared,
                earlier=earlier,
                asked_at=time.time(),
                cluster_name=self.slurm.cluster,
                keep_variables=list(self.slurm.keep),
            )
            write_submission(run.folder, submission)


def _pauses(total_seconds: float) -> Iterator[float]:
    """Yield growing pauses that together last no longer than this."""
    pause = FIRST_PAUSE_SECONDS
    while pause <= total_seconds:
        yield pause
        total_seconds -= pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
