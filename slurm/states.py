"""The state of a run, by what Slurm says of its jobs and what its record says.

A job is a run's by its name, whether or not a file in the run folder names it: files may be lost or restored.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm.render import SCRIPT_NAME
from slurm.scheduler import get_scheduler
from slurm.scheduler.protocol import (
    ELSEWHERE,
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
from slurm.submissions import (
    Submission,
    get_run_part,
    label_run,
    name_run_part,
    read_submission,
    seconds_until_known,
)
from unet_scaling.base.errors import UserError
from unet_scaling.base.files import read_regular
from unet_scaling.base.texts import short_digest
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.run_state import RecordedRun, RunState, recorded_run, run_state
from unet_scaling.run.run_claim import work_on_this_machine
from unet_scaling.study.config import RunConfig

# The folder, and the part of a job's name, of all runs that are started in one job.
ALLOCATION = "allocation"
OF_ALLOCATION = re.compile(rf"\.{ALLOCATION}-([0-9]+)\.([0-9a-f]+)\.[0-9a-f]+$")


@dataclass(frozen=True)
class RunStatus:
    """A run, its newest submission, the state of its jobs, and the state of the run that follows from them.

    jobs: all that may live, or the newest, which has ended.
    """

    run: RecordedRun
    submission: Submission | None
    state: RunState
    jobs: Sequence[JobState] = ()

    @property
    def name(self) -> str:
        return self.run.config.run

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def job(self) -> JobState | None:
        return self.jobs[0] if self.jobs else None

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
    """The states of the jobs of runs: asked for all at once, then one by one for those in doubt.

    `asked`: the scheduler to ask for runs of which no submission is known; by default those of the others.
    Where there are none, one is asked only if a run may have a job, or as `is_cancelling`: commands on a
    complete study of this machine would wait for a scheduler that does not answer.
    """

    def __init__(
        self,
        submissions: Mapping[Path, Submission | None],
        asked: Scheduler | None = None,
        *,
        is_cancelling: bool = False,
    ) -> None:
        self._jobs: dict[str, JobState] = {}
        self._silent: dict[Scheduler, str] = {}
        self._clusters: dict[Scheduler, str] = {}
        self._schedulers: dict[str, Scheduler] = {}
        self._scripts: dict[Path, str] = {}
        groups = _by_scheduler(submissions.values())
        self.is_local = not groups and asked is None
        schedulers = dict.fromkeys([*groups, *([asked] if asked else [])])
        if not schedulers and (is_cancelling or _may_have_jobs(submissions)):
            schedulers = {get_scheduler(): None}
        for scheduler in schedulers:
            try:
                if groups:  # to tell whose jobs the submissions are
                    self._clusters[scheduler] = scheduler.cluster()
                queued = scheduler.queue()
            except (UnreachableError, UserError) as error:
                if isinstance(error, UnreachableError) or not self.is_local:
                    self._silent[scheduler] = str(error)
                continue
            self._schedulers |= dict.fromkeys(queued, scheduler)
            self._jobs |= queued
            here = [each for each in groups.get(scheduler, ()) if not self._is_elsewhere(each)]
            absent = {each.token: each.job for each in here if each.job and each.token not in self._jobs}
            ended = scheduler.ended(job for job in absent.values() if job)
            self._jobs |= {token: ended[token] for token in absent if token in ended}
        live = [job for job in self._jobs.values() if not is_over(job.state)]
        self._allocations = [(job, found) for job in live if (found := OF_ALLOCATION.search(job.name))]
        self._by_run_part: dict[str, list[JobState]] = {}
        for job in live:
            self._by_run_part.setdefault(get_run_part(job.name), []).append(job)

    @property
    def silence(self) -> str:
        """Return why a scheduler does not answer; empty where all do."""
        return next(iter(self._silent.values()), "")

    def scheduler_of(self, job: JobState, submission: Submission | None) -> Scheduler:
        """Return the scheduler that knows this job."""
        noted = submission.get_scheduler() if submission else get_scheduler()
        return self._schedulers.get(job.name, noted)

    def find(self, folder: Path, submission: Submission | None) -> list[JobState]:
        """Return all live jobs of the run, that of its submission first, or how that ended.

        Empty where there is none, or where it must be looked up.
        """
        if live := self._live_jobs(folder, submission):
            return live
        if submission is None:
            silence = "" if self.is_local else self.silence
        elif self._is_elsewhere(submission):
            here = self._clusters[submission.get_scheduler()]
            job = f"job {submission.job or submission.token}"
            reason = f"{job} is one of cluster {submission.cluster}, and this is {here}: call this there"
            return [JobState(ELSEWHERE, reason, submission.job, submission.token)]
        elif submission.token in self._jobs:
            return [self._jobs[submission.token]]
        else:
            silence = self._silent.get(submission.get_scheduler(), "")
        return [JobState(UNCLEAR, f"Slurm does not answer: {silence}")] if silence else []

    def _live_jobs(self, folder: Path, submission: Submission | None) -> list[JobState]:
        own = submission.token if submission else ""
        # The last is that of jobs which are named by their run alone.
        labels = (label_run(folder), folder.name)
        parts = dict.fromkeys([get_run_part(own), *(name_run_part(label, folder) for label in labels)])
        found = [job for part in parts for job in self._by_run_part.get(part, ())]
        possible = []
        for job, matched in self._allocations:
            if matched[2] == short_digest(str(folder.parent.resolve())) and job not in found:
                name = f"{ALLOCATION}-{matched[1]}"
                script = self._read_script(folder.parent / name / SCRIPT_NAME)
                if re.search(rf"/{re.escape(folder.name)}'? ", script):
                    found.append(job)
                elif not (script or submission):
                    reason = (
                        f"job {job.job} may hold this run: the script of {name} is lost; known at its end"
                    )
                    possible.append(JobState(UNCLEAR, reason, job.job, job.name))
        # What is only possible makes no second job of a run that has one.
        return sorted(found, key=lambda job: (job.name != own, _age_order(job))) or possible

    def _read_script(self, path: Path) -> str:
        """Return the script of an allocation; empty where it is gone."""
        if path not in self._scripts:
            self._scripts[path] = ""
            with suppress(OSError):
                self._scripts[path] = read_regular(path).decode(errors="replace")
        return self._scripts[path]

    def _is_elsewhere(self, submission: Submission) -> bool:
        here = self._clusters.get(submission.get_scheduler(), "")
        return bool(here and submission.cluster and here != submission.cluster)

    def look_up(self, doubtful: Mapping[Path, Submission]) -> None:
        """Ask for each of these jobs by itself."""
        for scheduler, group in _by_scheduler(doubtful.values()).items():
            self._jobs |= scheduler.look_up({each.token: each.job for each in group})
        for folder, submission in doubtful.items():
            # Several runs may share a job; each has a note of its own of when it was first looked for.
            if submission.job is None and self._jobs[submission.token].state in (GONE, UNCLEAR):
                seconds = seconds_until_known(folder, submission)
                if seconds > 0 and self._jobs[submission.token].state == GONE:
                    by = f" by {submission.asked_by}" if submission.asked_by else ""
                    reason = f"submitted as {submission.token}{by}, and Slurm's answer was lost"
                    reason += f"; known in {seconds:.0f} s"
                    self._jobs[submission.token] = JobState(UNCLEAR, reason)


def _may_have_jobs(folders: Iterable[Path]) -> bool:
    """Return whether a run has no record, or files tell of a submission whose job.json is lost."""
    studies = {folder.parent for folder in folders}
    if any(next(study.glob(f"{ALLOCATION}-*"), None) for study in studies):
        return True
    return any(not (folder / RECORD_NAME).exists() or (folder / SCRIPT_NAME).exists() for folder in folders)


def find_doubles(jobs: Iterable[JobState]) -> list[JobState]:
    """Return the jobs of one run that must go: all but that of the least id, whoever asks."""
    return sorted((job for job in jobs if job.state != UNCLEAR), key=_age_order)[1:]


def _age_order(job: JobState) -> tuple[int, str]:
    return len(job.job or ""), job.job or ""


def _by_scheduler(submissions: Iterable[Submission | None]) -> dict[Scheduler, list[Submission]]:
    groups: dict[Scheduler, list[Submission]] = {}
    for submission in submissions:
        if submission:
            groups.setdefault(submission.get_scheduler(), []).append(submission)
    return groups


def read_statuses(
    configs: Mapping[Path, RunConfig], again: Collection[str] = (), asked: Scheduler | None = None
) -> Iterator[RunStatus]:
    """Yield the status of each run by its folder; those in doubt come last.

    One record at a time is kept, as all records of a large study would fill the memory. The job of a run in
    `again` is looked up even where its record is complete. `asked`: see `KnownJobs`.
    """
    submissions = {folder: read_submission(folder) for folder in configs}
    runs: dict[Path, RecordedRun] = {}

    def read(folder: Path) -> RunState:
        runs[folder] = recorded_run(folder, configs[folder]).require_known_format()
        return runs[folder].state

    certain = {folder for folder, config in configs.items() if config.run in again}
    for folder, state, jobs in find_states(submissions, certain, read, KnownJobs(submissions, asked)):
        yield RunStatus(runs.pop(folder), submissions[folder], state, jobs)
        runs.clear()


def find_states(
    submissions: Mapping[Path, Submission | None],
    certain: Collection[Path] = (),
    read: Callable[[Path], RunState] = run_state,
    known: KnownJobs | None = None,
) -> Iterator[tuple[Path, RunState, list[JobState]]]:
    """Yield the folder of each run, its state, and its jobs; `read` returns the state by the record.

    Slurm is asked before a record is read, or a run that ended in between would have a job and no end.
    """
    known = known or KnownJobs(submissions)
    doubtful: dict[Path, Submission] = {}
    for folder, submission in submissions.items():
        recorded = read(folder)
        jobs = known.find(folder, submission)
        # A job that the queue does not list may have ended, or the answer lacks it: ask for it by itself.
        is_open = folder in certain or recorded.state not in ("complete", "diverged")
        if submission and not jobs and submission.status in ("asking", "queued") and is_open:
            doubtful[folder] = submission
        else:
            yield folder, _state(folder, recorded, submission, jobs), jobs
    known.look_up(doubtful)
    for folder, submission in doubtful.items():
        jobs = known.find(folder, submission)
        yield folder, _state(folder, read(folder), submission, jobs), jobs


def _state(
    folder: Path, recorded: RunState, submission: Submission | None, jobs: Sequence[JobState]
) -> RunState:
    # A run without a job is running where a process of this machine trains it, or starts its workers.
    if not (submission or jobs) and recorded.state in ("waiting", "failed", "resumable"):
        work = work_on_this_machine(folder)
        if work is not None:
            return RunState("running", work)
    state = combine(recorded, submission, jobs[0] if jobs else None)
    if not find_doubles(jobs):
        return state
    ids = ", ".join(job.job or job.name for job in jobs)
    return RunState(state.state, f"{len(jobs)} jobs of it live: {ids}; submit keeps that of the least id")


def combine(recorded: RunState, submission: Submission | None, job: JobState | None) -> RunState:
    """Return the state of a run from that by its record and what Slurm says of its job, if anything."""
    no_job = submission is not None and submission.status in ("rejected", "limited")
    if job is None or (no_job and job.state in (UNCLEAR, ELSEWHERE)):
        if submission and submission.status == "rejected" and not recorded.is_complete:
            return RunState("rejected", submission.reason)
        return recorded
    is_shared = OF_ALLOCATION.search(job.name) is not None or (submission is not None and submission.shared)
    if job.state in WAITING_STATES:
        return RunState("queued", job.reason)
    if job.state in RUNNING_STATES:
        # A run of a shared allocation may be over while the job goes on.
        over = is_shared and recorded.state in ("complete", "diverged")
        return recorded if over else RunState("running")
    if job.state == GONE:  # a job is forgotten minutes after its end; the record remains
        if recorded.state not in ("waiting", "failed") or recorded.reason:
            return recorded
        named = f"a job {submission.token}" if submission else f"job {job.job}"
        if submission and submission.job:
            named = f"job {submission.job}"
        return RunState("lost", f"Slurm does not know {named}, and it left no record")
    if not is_over(job.state):
        is_said = job.state not in (UNCLEAR, ELSEWHERE)
        word = f"Slurm says {job.state} of job {job.job}" if is_said else job.reason
        return recorded if recorded.is_complete else RunState("unknown", word)
    if recorded.is_complete and not is_shared and job.state != "COMPLETED":
        noted = submission.job if submission else job.job
        reason = f"the record is complete, but Slurm says {job.state} of job {noted}"
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
