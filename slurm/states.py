"""What has become of a run: what Slurm says and what the record says, taken together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from slurm.scheduler import JobState, UnreachableError, job_states
from slurm.study_folder import JOB_NAME, RunState, run_state
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.study.validation import StrictModel, validated

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
# States in which a further submission of the run is what the user wants.
SUBMITTABLE = ("waiting", "rejected", "failed", "resumable", "lost", "invalid")

Status = Literal["asking", "queued", "rejected"]


class Submission(StrictModel):
    """job.json: the newest submission of a run, written before Slurm is asked and again after it answered."""

    token: str
    attempts: int
    status: Status
    job: str | None = None
    reason: str = ""
    shared: bool = False


def read_submission(folder: Path) -> Submission | None:
    """The newest submission of a run; none where it was never submitted."""
    path = folder / JOB_NAME
    try:
        return validated(Submission, read_json_with_checksum(path), str(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}; remove it after checking squeue") from None


def write_submission(folder: Path, submission: Submission) -> None:
    write_json_with_checksum(folder / JOB_NAME, submission.model_dump(mode="json"))


def study_states(folders: Mapping[str, Path]) -> dict[str, RunState]:
    """The state of each run, by its id; asks Slurm once for all runs whose end is not known yet."""
    submissions = {run: read_submission(folder) for run, folder in folders.items()}
    jobs = {submission.job for submission in submissions.values() if submission and submission.job}
    try:
        known: dict[str, JobState] | None = job_states(jobs)
    except UnreachableError:
        known = None
    return {run: combine(folder, submissions[run], known) for run, folder in folders.items()}


def combine(folder: Path, submission: Submission | None, jobs: dict[str, JobState] | None) -> RunState:
    """The state of a run. `jobs` is None where Slurm could not be asked."""
    recorded = run_state(folder)
    if submission is None:
        return RunState("resumable", recorded.reason) if recorded.state == "stopped" else recorded
    if submission.status == "rejected":
        return RunState("rejected", submission.reason)
    if jobs is None:
        return recorded if recorded.state == "complete" else RunState("unknown", "Slurm does not answer")
    if submission.job is None:
        return RunState("unknown", f"submitted as {submission.token}, but Slurm's answer was lost")
    job = jobs.get(submission.job)
    if job is None:
        return _forgotten(recorded, submission)
    if job.state in WAITING_STATES:
        return RunState("queued", job.reason)
    if job.state in RUNNING_STATES:
        return _while_running(recorded, submission)
    return _after_the_job(recorded, submission, job)


def _forgotten(recorded: RunState, submission: Submission) -> RunState:
    """Slurm forgets a job minutes after its end; then the record alone tells, if there is one."""
    if recorded.state in ("waiting", "failed") and not recorded.reason:
        return RunState("lost", f"Slurm does not know job {submission.job}, and it left no record")
    return RunState("resumable", recorded.reason) if recorded.state == "stopped" else recorded


def _while_running(recorded: RunState, submission: Submission) -> RunState:
    """A run of a shared allocation may be over while the job goes on."""
    if submission.shared and recorded.state in ("complete", "diverged"):
        return recorded
    return RunState("running")


def _after_the_job(recorded: RunState, submission: Submission, job: JobState) -> RunState:
    if recorded.state == "complete":
        if submission.shared or job.state == "COMPLETED":
            return recorded
        return RunState(
            "invalid", f"the record is complete, but Slurm says {job.state} of job {submission.job}"
        )
    if recorded.state in ("diverged", "invalid"):
        return recorded
    if recorded.state == "stopped" and job.state != "CANCELLED":
        return RunState("resumable", recorded.reason)
    if job.state in INTERRUPTED_STATES:
        return RunState("resumable", f"{job.state} {job.reason}".strip())
    if job.state == "OUT_OF_MEMORY":
        return RunState("failed", f"out of memory; {recorded.reason}".rstrip("; "))
    if job.state == "CANCELLED":
        return RunState("failed", f"cancelled {job.reason}".strip())
    return RunState("failed", recorded.reason or f"{job.state} {job.reason}".strip() + "; see output.log")
