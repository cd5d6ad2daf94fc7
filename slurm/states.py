"""The newest submission of a run (job.json), and its state by what Slurm and its record say together."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

from pydantic import Field

from slurm.scheduler import DEFAULT_SCHEDULER, get_scheduler
from slurm.scheduler.protocol import (
    GONE,
    INTERRUPTED_STATES,
    RUNNING_STATES,
    UNCLEAR,
    WAITING_STATES,
    JobState,
    Scheduler,
    UnreachableError,
    is_over,
)
from unet_scaling.base.errors import UserError
from unet_scaling.base.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.base.texts import short_digest
from unet_scaling.base.validation import StrictModel, validated
from unet_scaling.format.run_state import RecordedRun, RunState, recorded_run, run_state
from unet_scaling.run.run_claim import trains_on_this_machine
from unet_scaling.study.config import RunConfig
from unet_scaling.study.study_file import JOB_NAME

# "asking": the answer is not known, so that the job may exist. "limited": the queue had no room for it.
SubmissionStatus = Literal["asking", "queued", "rejected", "limited"]
# A request of sbatch reaches the queue earlier or never: MessageTimeout is 10 s, at large sites up to 100 s.
LATEST_JOB_SECONDS = 180.0


class Submission(StrictModel):
    """The content of job.json.

    token: the name of the job.
    attempts: how many jobs of the run may have started.
    earlier: how many attempts in the folder belong to launches before the last forced start.
    shared: whether the job runs several runs, one after the other.
    """

    token: str
    attempts: int
    status: SubmissionStatus
    job: str | None = None
    reason: str = ""
    shared: bool = False
    earlier: int = 0
    asked_at: float = 0.0
    scheduler: str = DEFAULT_SCHEDULER
    cluster_name: str | None = None
    keep_variables: list[str] = Field([])

    def get_scheduler(self) -> Scheduler:
        """Return the scheduler that was asked."""
        return get_scheduler(self.scheduler, self.cluster_name, self.keep_variables)


def new_token(label: str, folder: Path) -> str:
    """Return a job name that no other job ever has; those of a run differ in the last part."""
    return f"{label}.{short_digest(str(folder.resolve()))}.{uuid4().hex[:12]}"


def get_run_part(token: str) -> str:
    """Return what the names of all jobs of one run have in common."""
    return token.rpartition(".")[0]


def read_submission(folder: Path) -> Submission | None:
    """Return the newest submission of a run; None where it was never submitted. Raises UserError."""
    path = folder / JOB_NAME
    try:
        return validated(Submission, read_json_with_checksum(path), str(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}; rename it after checking squeue") from None


def write_submission(folder: Path, submission: Submission) -> None:
    """Write the newest submission of a run."""
    write_json_with_checksum(folder / JOB_NAME, submission.model_dump(mode="json"))


def read_submissions(study: Path) -> dict[Path, Submission | None]:
    """Return the newest submission of each run folder that has one, by name."""
    return {path.parent: read_submission(path.parent) for path in sorted(study.glob(f"*/{JOB_NAME}"))}


@dataclass(frozen=True)
class RunStatus:
    """A run, its newest submission, the state of its job, and the state of the run that follows from them."""

    run: RecordedRun
    submission: Submission | None
    state: RunState
    job: JobState | None = None

    @property
    def name(self) -> str:
        return self.run.config.run

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def job_id(self) -> str | None:
        """Return the id of the job, also where the answer to its submission was lost."""
        by_slurm = self.job.job if self.job else None
        return by_slurm or (self.submission.job if self.submission else None)

    @property
    def attempts(self) -> int:
        """Return how many jobs of the run may have started, without one that is still in doubt."""
        if self.submission is None:
            return 0
        return self.submission.attempts - (self.submission.status == "asking")


class KnownJobs:
    """The states of the jobs of submissions: asked for all at once, then one by one for those in doubt."""

    def __init__(self, submissions: Iterable[Submission | None]) -> None:
        self._jobs: dict[str, JobState] = {}
        self._silent: dict[Scheduler, str] = {}
        for scheduler, group in _by_scheduler(submissions).items():
            try:
                self._jobs |= scheduler.queue()
            except (UnreachableError, UserError) as error:
                self._silent[scheduler] = str(error)
                continue
            absent = {each.token: each.job for each in group if each.job and each.token not in self._jobs}
            ended = scheduler.ended(job for job in absent.values() if job)
            self._jobs |= {token: ended[token] for token in absent if token in ended}
        self._live = {get_run_part(name): job for name, job in self._jobs.items() if not is_over(job.state)}

    def find(self, submission: Submission) -> JobState | None:
        """Return the state of the job, or of a live one of the same run; None where it must be looked up."""
        job = self._jobs.get(submission.token)
        if job is None or is_over(job.state) or job.state == GONE:
            job = self._live.get(get_run_part(submission.token), job)
        silence = self._silent.get(submission.get_scheduler())
        return JobState(UNCLEAR, f"Slurm does not answer: {silence}") if job is None and silence else job

    def look_up(self, doubtful: Iterable[Submission]) -> None:
        """Ask for each of these jobs by itself."""
        for scheduler, group in _by_scheduler(doubtful).items():
            found = scheduler.look_up({each.token: each.job for each in group})
            for each in group:
                may_come = abs(time.time() - each.asked_at) <= LATEST_JOB_SECONDS
                if found[each.token].state == GONE and each.job is None and may_come:
                    reason = f"submitted as {each.token}, but Slurm's answer was lost; it is looked for"
                    found[each.token] = JobState(UNCLEAR, reason)
            self._jobs |= found


def _by_scheduler(submissions: Iterable[Submission | None]) -> dict[Scheduler, list[Submission]]:
    groups: dict[Scheduler, list[Submission]] = {}
    for submission in submissions:
        if submission:
            groups.setdefault(submission.get_scheduler(), []).append(submission)
    return groups


def read_statuses(configs: Mapping[Path, RunConfig], again: Collection[str] = ()) -> Iterator[RunStatus]:
    """Yield the status of each run by its folder; those in doubt come last.

    One record at a time is kept, as all records of a large study would fill the memory. The job of a run in
    `again` is looked up even where its record is complete.
    """
    submissions = {folder: read_submission(folder) for folder in configs}
    runs: dict[Path, RecordedRun] = {}

    def read(folder: Path) -> RunState:
        runs[folder] = recorded_run(folder, configs[folder]).require_known_format()
        return runs[folder].state

    certain = {folder for folder, config in configs.items() if config.run in again}
    for folder, state, job in find_states(submissions, certain, read):
        yield RunStatus(runs.pop(folder), submissions[folder], state, job)
        runs.clear()


def find_states(
    submissions: Mapping[Path, Submission | None],
    certain: Collection[Path] = (),
    read: Callable[[Path], RunState] = run_state,
) -> Iterator[tuple[Path, RunState, JobState | None]]:
    """Yield the folder of each run, its state, and its job; `read` returns the state by the record.

    Slurm is asked before a record is read, or a run that ended in between would have a job and no end.
    """
    jobs = KnownJobs(submissions.values())
    doubtful: dict[Path, Submission] = {}
    for folder, submission in submissions.items():
        recorded = read(folder)
        job = jobs.find(submission) if submission else None
        # A job that the queue does not list may have ended, or the answer lacks it: ask for it by itself.
        is_open = folder in certain or recorded.state not in ("complete", "diverged")
        if submission and job is None and submission.status in ("asking", "queued") and is_open:
            doubtful[folder] = submission
        else:
            yield folder, _state(folder, recorded, submission, job), job
    jobs.look_up(doubtful.values())
    for folder, submission in doubtful.items():
        job = jobs.find(submission)
        yield folder, _state(folder, read(folder), submission, job), job


def _state(folder: Path, recorded: RunState, submission: Submission | None, job: JobState | None) -> RunState:
    # A run without a job is running where a process of this machine writes its record.
    if submission is None and recorded.state in ("waiting", "failed") and trains_on_this_machine(folder):
        return RunState("running")
    return combine(recorded, submission, job)


def combine(recorded: RunState, submission: Submission | None, job: JobState | None) -> RunState:
    """Return the state of a run from that by its record and what Slurm says of its job, if anything."""
    if submission is None:
        return recorded
    if job is None or (submission.status in ("rejected", "limited") and job.state == UNCLEAR):
        if submission.status == "rejected" and not recorded.is_complete:
            return RunState("rejected", submission.reason)
        return recorded
    if job.state in WAITING_STATES:
        return RunState("queued", job.reason)
    if job.state in RUNNING_STATES:
        # A run of a shared allocation may be over while the job goes on.
        over = submission.shared and recorded.state in ("complete", "diverged")
        return recorded if over else RunState("running")
    if job.state == GONE:  # a job is forgotten minutes after its end; the record remains
        if recorded.state not in ("waiting", "failed") or recorded.reason:
            return recorded
        named = f"job {submission.job}" if submission.job else f"a job {submission.token}"
        return RunState("lost", f"Slurm does not know {named}, and it left no record")
    if not is_over(job.state):
        word = job.reason if job.state == UNCLEAR else f"Slurm says {job.state} of job {job.job}"
        return recorded if recorded.is_complete else RunState("unknown", word)
    if recorded.is_complete and not submission.shared and job.state != "COMPLETED":
        reason = f"the record is complete, but Slurm says {job.state} of job {submission.job}"
        return RunState("invalid", reason)
    if recorded.state in ("complete", "diverged", "invalid"):
        return recorded
    if job.state == "CANCELLED":
        stopped = recorded.reason if recorded.state == "resumable" else ""
        return RunState("cancelled", "; ".join(filter(None, (job.reason, stopped))))
    if recorded.state == "resumable":
        return recorded
    in_words = f"{job.state} {job.reason}".strip()
    if job.state in INTERRUPTED_STATES:
        return RunState("resumable", in_words)
    if job.state == "OUT_OF_MEMORY":
        return RunState("failed", f"out of memory; {recorded.reason}".rstrip("; "))
    return RunState("failed", recorded.reason or f"{in_words}; see output.log")
