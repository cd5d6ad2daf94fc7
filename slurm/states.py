"""Judge what has become of a run by what Slurm says and what its record says, taken together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm.scheduler import JobState, UnreachableError, job_states
from slurm.submissions import Submission, job_ids
from unet_scaling.run.run_claim import trains_on_this_machine
from unet_scaling.study.config import RunConfig
from unet_scaling.study.run_state import RecordedRun, RunState, recorded_run

WAITING_STATES = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
RUNNING_STATES = ("RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING")
# Ended from outside: the same run may be submitted again as it is.
INTERRUPTED_STATES = ("TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED")


@dataclass(frozen=True)
class RunStatus:
    """A run with its newest submission, and its state by Slurm and record together."""

    run: RecordedRun
    submission: Submission | None
    state: RunState

    @property
    def name(self) -> str:
        return self.run.config.run

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def attempts(self) -> int:
        """Return how often the run was submitted."""
        return self.submission.attempts if self.submission else 0


def study_statuses(
    configs: Mapping[Path, RunConfig], submissions: Mapping[Path, Submission | None]
) -> Iterator[RunStatus]:
    """Yield the status of each run by its folder; Slurm is asked once, for all of them.

    One by one, as the records of a large study fill the memory.
    """
    jobs = known_jobs(submissions.values())
    for folder, config in configs.items():
        run = recorded_run(folder, config)
        yield RunStatus(run, submissions[folder], _state(run, submissions[folder], jobs))


def _state(run: RecordedRun, submission: Submission | None, jobs: Mapping[str, JobState] | None) -> RunState:
    # A record without an end: without Slurm, the process that writes it tells whether it is still coming.
    if submission is None and run.state.state in ("waiting", "failed") and trains_on_this_machine(run.folder):
        return RunState("running")
    return combine(run.state, submission, jobs)


def known_jobs(submissions: Iterable[Submission | None]) -> dict[str, JobState] | None:
    """Return what Slurm knows of the jobs of these submissions; None where it does not answer."""
    try:
        return job_states(job_ids(submissions))
    except UnreachableError:
        return None


def combine(
    recorded: RunState, submission: Submission | None, jobs: Mapping[str, JobState] | None
) -> RunState:
    """Return the state of a run from that by its record; `jobs` is None where Slurm could not be asked."""
    if submission is None:
        return recorded
    if submission.status == "rejected":
        return RunState("rejected", submission.reason)
    if jobs is None:
        return recorded if recorded.is_complete else RunState("unknown", "Slurm does not answer")
    if submission.job is None:
        return RunState("unknown", f"submitted as {submission.token}, but Slurm's answer was lost")
    if submission.job not in jobs:
        return _forgotten(recorded, submission.job)
    return _with_job(recorded, submission, jobs[submission.job])


def _with_job(recorded: RunState, submission: Submission, job: JobState) -> RunState:
    if job.state in WAITING_STATES:
        return RunState("queued", job.reason)
    if job.state in RUNNING_STATES:
        # A run of a shared allocation may be over while the job goes on.
        over = submission.shared and recorded.state in ("complete", "diverged")
        return recorded if over else RunState("running")
    if recorded.is_complete and not submission.shared and job.state != "COMPLETED":
        reason = f"the record is complete, but Slurm says {job.state} of job {submission.job}"
        return RunState("invalid", reason)
    return _after_job(recorded, job)


def _forgotten(recorded: RunState, job: str) -> RunState:
    """Slurm forgets a job minutes after its end; then the record alone tells, if there is one."""
    if recorded.state in ("waiting", "failed") and not recorded.reason:
        return RunState("lost", f"Slurm does not know job {job}, and it left no record")
    return recorded


def _after_job(recorded: RunState, job: JobState) -> RunState:
    if recorded.state in ("complete", "diverged", "invalid"):
        return recorded
    if recorded.state == "resumable" and job.state != "CANCELLED":
        return recorded
    in_words = f"{job.state} {job.reason}".strip()
    if job.state in INTERRUPTED_STATES:
        return RunState("resumable", in_words)
    if job.state == "OUT_OF_MEMORY":
        return RunState("failed", f"out of memory; {recorded.reason}".rstrip("; "))
    if job.state == "CANCELLED":
        return _cancelled(recorded, job)
    return RunState("failed", recorded.reason or f"{in_words}; see output.log")


def _cancelled(recorded: RunState, job: JobState) -> RunState:
    stopped = recorded.reason if recorded.state == "resumable" else ""
    return RunState("cancelled", "; ".join(filter(None, (job.reason, stopped))))
