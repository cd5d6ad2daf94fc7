"""Submit the runs that a study still needs, each once, even where answers are lost or late."""

import itertools
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from rich.console import Console

from slurm import states
from slurm.after_run import is_to_be_repeated, may_be_tried_again, set_disturbed_aside
from slurm.cluster import Cluster, find_container, find_prologue
from slurm.launch.added_repeats import add_next_repeat, add_repeats, note_changed_request
from slurm.launch.estimate import KnownSeconds, describe_estimate
from slurm.launch.preflight import (
    check_inputs,
    describe_interval,
    describe_limit,
    find_iou_warnings,
    limit_cost,
    require_fit,
)
from slurm.launch.study_folder import (
    Cancellation,
    CancelledError,
    StudyFolder,
    in_launch_order,
    locked,
    open_study_folder,
)
from slurm.render import SCRIPT_NAME, render_allocation_script, render_job_script, write_script
from slurm.scheduler.protocol import (
    ELSEWHERE,
    UNCLEAR,
    JobState,
    LimitError,
    RejectedError,
    UnreachableError,
)
from slurm.submissions import (
    LATEST_JOB_SECONDS,
    Submission,
    SubmissionStatus,
    claim,
    label_run,
    name_this_process,
    new_token,
    read_submission,
    write_submission,
)
from unet_scaling.base.errors import EXIT_RESUME, EXIT_USAGE, UserError, required_module
from unet_scaling.base.texts import clean, count, retry
from unet_scaling.format.record import RECORD_NAME, attempt_records, set_launch_aside, take_launch_back
from unet_scaling.format.run_state import ACTIVE, SUBMITTABLE
from unet_scaling.run.run_claim import machine_id
from unet_scaling.study.config import RunConfig
from unet_scaling.study.study_file import STUDY_NAME

DRY_RUN_TOKEN = "dry-run"  # noqa: S105, the name of a job
# Pauses while the queue takes no more jobs of this user. They double, as jobs end in minutes or hours.
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0


@dataclass(frozen=True)
class BatchJob:
    """A script and the runs that it starts: one, or all those of an allocation (`shared`).

    Runs named in `force` begin anew: what was before does not count among their attempts.
    """

    label: str
    folder: Path
    script: str
    token: str
    runs: Sequence[states.RunStatus]
    cluster: Cluster
    shared: bool = False
    force: Collection[str] = ()

    @property
    def workers(self) -> int:
        """Return the largest number of workers, by which the scheduler accepts or refuses the job."""
        return max(run.run.config.workers for run in self.runs)

    def queue(self, console: Console, limit_wait_seconds: float, cancellation: Cancellation) -> None:
        """Queue the script, and note in the folders of its runs what came of it.

        Complete records, which would keep runs from starting, are set aside as long as there may be a job.
        Where Slurm takes no more jobs, tries again for `limit_wait_seconds`. Raises RejectedError;
        LimitError; UnreachableError where nobody knows whether there is a job; or CancelledError, with
        nothing left in the queue or named if it is, where the study is cancelled before or meanwhile.
        """

        scheduler = self.cluster.get_scheduler()

        def announce(error: LimitError, pause: float) -> None:
            console.print(f"{self.label}: {error}; next try in {pause:.0f} s", soft_wrap=True)

        tries = itertools.count(1)

        def ask() -> str:
            cancellation.require_none()
            number = next(tries)
            self._claim(number)
            path = write_script(self.folder, self.script)
            records = [
                set_launch_aside(run.folder) if run.name in self.force else set_disturbed_aside(run.folder)
                for run in self.runs
                if run.run.state.is_complete
            ]
            self.note("asking", number)
            try:
                return scheduler.submit(path, self.token)
            except (RejectedError, LimitError) as error:
                answer: SubmissionStatus = "rejected" if isinstance(error, RejectedError) else "limited"
                self.note(answer, number, reason=str(error))
                for record in records:
                    take_launch_back(record)
                raise

        job = retry(ask, _pauses(limit_wait_seconds), LimitError, announce=announce)
        self.note("queued", next(tries) - 1, job=job)
        console.print(f"{self.label}: job {job}")
        cancellation.take_back(scheduler, self.token, job)

    def _claim(self, number: int) -> None:
        """Claim the next try of all runs; raises TakenError where another submission made one of these."""
        for position, run in enumerate(self.runs):
            if claim(run.folder, self._submission(run, "asking", number)):
                continue
            for claimed in self.runs[:position]:
                given_up = self._submission(claimed, "limited", number, reason=f"{run.name} was taken")
                write_submission(claimed.folder, given_up)
            other = read_submission(run.folder)
            by = f", {other.asked_by}," if other and other.asked_by else ""
            raise TakenError(f"another submission{by} has just submitted {run.name}; nothing was queued here")

    def note(
        self, answer: SubmissionStatus, number: int = 0, *, job: str | None = None, reason: str = ""
    ) -> None:
        """Write into the folders of the runs what came of this try."""
        for run in self.runs:
            write_submission(run.folder, self._submission(run, answer, number, job=job, reason=reason))

    def _submission(
        self,
        run: states.RunStatus,
        answer: SubmissionStatus,
        number: int,
        *,
        job: str | None = None,
        reason: str = "",
    ) -> Submission:
        attempts = run.attempts
        earlier = run.submission.earlier if run.submission else 0
        if run.name in self.force or run.run.state.is_complete:
            attempts = 0
            # The next attempt sets an incomplete record aside.
            earlier = len(attempt_records(run.folder)) + (run.folder / RECORD_NAME).exists()
        return Submission(
            token=self.token,
            attempts=attempts + (answer in ("asking", "queued")),
            status=answer,
            job=job,
            reason=reason,
            shared=self.shared,
            earlier=earlier,
            asked_at=time.time(),
            scheduler=self.cluster.scheduler,
            cluster_name=self.cluster.cluster_name,
            keep_variables=self.cluster.keep_variables,
            number=number + (run.submission.number if run.submission else 0),
            cluster=self.cluster.get_scheduler().cluster(),
            asked_by=name_this_process(),
            machine=machine_id(),
            uptime_seconds=time.monotonic(),
        )


def _pauses(total_seconds: float) -> Iterator[float]:
    """Yield growing pauses that together last no longer than this."""
    pause = FIRST_PAUSE_SECONDS
    while pause <= total_seconds:
        yield pause
        total_seconds -= pause
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class TakenError(Exception):
    """Another submission of the run, perhaps from another host, was faster."""


class LaterError(UserError):
    """These runs wait: for room in the queue, or for Slurm's answer. A later submission goes on with them.

    is_elsewhere: some of them wait for an answer that only another cluster gives.
    """

    def __init__(self, message: str, runs: Collection[str], refused: bool = False) -> None:
        super().__init__(message, EXIT_USAGE if refused else EXIT_RESUME)
        self.runs = [*runs]
        self.is_elsewhere = False

    def add(self, unknown: Mapping[str, JobState]) -> Self:
        """Name the runs of which it is not known whether they have a job, those of one reason together."""
        if unknown:
            alike: dict[str, list[str]] = {}
            for run, job in unknown.items():
                alike.setdefault(job.reason, []).append(run)
            lines = [
                runs[0] + (f" and {count(len(runs) - 1, 'other')}" if runs[1:] else "") + f": {reason}"
                for reason, runs in alike.items()
            ]
            told = f"{count(len(unknown), 'run')} not known to have a job or none; submit again later:"
            self.args = ("\n".join(filter(None, [str(self), "\n  ".join([told, *lines])])),)
            self.runs += unknown
            self.is_elsewhere = any(job.state == ELSEWHERE for job in unknown.values())
        return self


@dataclass(frozen=True)
class Submitter:
    """A study and its cluster, with what the user asked for.

    Once the study is cancelled, nothing more is submitted.
    """

    folder: StudyFolder
    cluster: Cluster
    console: Console
    cancellation: Cancellation
    one_allocation: bool = False
    force: tuple[str, ...] = ()
    repeat_disturbed: bool = False
    repeats_to_add: int = 0
    limit_wait_seconds: float = 3600.0
    budget_node_hours: float | None = None

    def dry_run(self, *, verbose: bool = False) -> None:
        """Print what is missing: a script of the most workers, or all, and the cost; write nothing."""
        known = KnownSeconds(self.cluster.gres)
        configs = self._missing(known)
        name, all_runs = self.folder.study.name, count(len(self.folder.study.run_names()), "run")
        way = "one after the other in one job" if self.one_allocation else "each as a job"
        total = f"{name}: {all_runs}, {len(configs)} would start, {way}"
        if not configs:
            self.console.print(total)
            return
        if self.one_allocation:
            job_folder = self.folder.path / "allocation-1"
            self._show(job_folder, self._render_allocation_script(configs, job_folder, DRY_RUN_TOKEN))
        else:
            shown = configs if verbose else [max(configs, key=lambda config: config.workers)]
            for config in shown:
                self._show(self.folder.run_folder(config), self._render_job_script(config, DRY_RUN_TOKEN))
            if shown != configs:
                self.console.print(f"and {len(configs) - len(shown)} more scripts: --verbose prints all")
        self.console.print(total)
        if self.cluster.doctor:
            self.console.print("before the first job, one of half a minute tries the launch (doctor = true)")
        try:
            find_container(self.cluster)
            check_inputs(configs, in_container=self.cluster.container is not None)
            for line in find_iou_warnings(configs):
                self.console.print(line)
        except UserError as error:  # the submission would be refused
            self.console.print(f"not verified: {error}")
        self._require_affordable(configs, known)
        if not self.one_allocation and (text := describe_interval(self.folder.study)):
            self.console.print(text)

    def _missing(self, known: KnownSeconds) -> list[RunConfig]:
        """Return the runs that a submission would start, in their order, and learn of complete ones."""
        configs = self.folder.require_same()
        require_fit(self.cluster, configs)
        wanted = set()
        by_folder = {self.folder.run_folder(config): config for config in configs}
        for run in states.read_statuses(by_folder, self._again(configs)):
            known.learn(run.run)
            if self._is_wanted(run):
                wanted.add(run.name)
        for other in self.folder.read_others(configs):
            known.learn(other)
        return [config for config in configs if config.run in wanted]

    def _again(self, configs: Sequence[RunConfig]) -> Collection[str]:
        """Return the runs to look up even where their records are complete."""
        return [config.run for config in configs] if self.repeat_disturbed else self.force

    def submit(self) -> int:
        """Submit every run that is missing, failed or resumable; return how many runs were submitted.

        The study is locked meanwhile. Where it is complete and asks for more repeats, its next one is
        submitted. A run whose job may or may not exist is left alone until that is known.
        Raises at the end LaterError where runs wait, or UserError where all others were refused, naming them;
        CancelledError at once where the study is cancelled meanwhile.
        """
        with locked(self.folder.path):
            # Another submission may have added repeats since this one read the study.
            folder = open_study_folder(self.folder.path, self.folder.study)
            folder = note_changed_request(folder, self.console)
            if self.repeats_to_add:
                folder = add_repeats(folder, self.repeats_to_add, self.console)
            else:
                folder = add_next_repeat(folder, self.console) or folder
            return replace(self, folder=folder, repeats_to_add=0)._submit_missing()

    def _submit_missing(self) -> int:
        if not (self.folder.path / STUDY_NAME).exists():
            # A study that cannot start writes nothing: every later report would show its runs as waiting.
            self._require_startable(in_launch_order(self.folder.study))
        configs = self.folder.prepare(self.console)
        wanted, in_queue, unknown = self._wanted(configs)
        self.console.print(f"{self.folder.study.name}: {count(len(configs), 'run')}, {len(wanted)} to submit")
        try:
            if wanted:
                self._submit(wanted, in_queue)
        except LaterError as error:
            error.add(unknown)
            raise
        except CancelledError:
            raise
        except UserError as error:
            if not unknown:
                raise
            raise LaterError(f"{error}", (), refused=True).add(unknown) from None
        if unknown:
            raise LaterError("", ()).add(unknown)
        return len(wanted)

    def _submit(self, wanted: Sequence[states.RunStatus], in_queue: int) -> None:
        scheduler = self.cluster.get_scheduler()
        for name in scheduler.dropped_variables():
            self.console.print(f"not passed to the job: {name} (keep_variables)", style="dim")
        self._prepare_launch(wanted)
        room = max(0, self.cluster.max_queued - in_queue)
        try:
            jobs = [self._in_one_job(wanted)] if self.one_allocation else [self._job(run) for run in wanted]
            refused = {}
            for job in {job.workers: job for job in jobs}.values():
                try:
                    self._try_out(job)
                except RejectedError as error:
                    refused[job.workers] = str(error)
        except UnreachableError as error:
            text = f"nothing was submitted, Slurm does not answer: {error}"
            raise LaterError(text, [run.name for run in wanted]) from None
        self._queue(jobs, refused, room)

    def _try_out(self, job: BatchJob) -> None:
        """Let the scheduler check a script, in a file of its own: job.sbatch may be another submission's."""
        with tempfile.NamedTemporaryFile(
            "w", dir=job.folder, prefix=".test-only.", suffix=f".{SCRIPT_NAME}"
        ) as file:
            file.write(job.script)
            file.flush()
            self.cluster.get_scheduler().try_out(Path(file.name))

    def _wanted(
        self, configs: Sequence[RunConfig]
    ) -> tuple[list[states.RunStatus], int, dict[str, JobState]]:
        """Return the runs to submit, how many others are queued, and why some may have a job or none."""
        by_folder = {self.folder.run_folder(config): config for config in configs}
        wanted = []
        unknown: dict[str, JobState] = {}
        in_queue = 0
        for run in states.read_statuses(by_folder, self._again(configs), self.cluster.get_scheduler()):
            in_queue += run.state.state in ACTIVE
            if run.state.state == "unknown":
                unknown[run.name] = JobState(run.job.state if run.job else UNCLEAR, run.state.reason)
            noted = run.submission
            if noted and noted.status != "queued" and run.job and run.job.job and run.job.name == noted.token:
                found = {"status": "queued", "job": run.job.job}
                write_submission(run.folder, noted.model_copy(update=found))
            for job in states.find_doubles(run.jobs):
                self._end_double(run.name, job, unknown)
            if not self._is_wanted(run):
                continue
            # A complete run that is to be launched again may have a job whose submission nobody noted.
            if run.state.is_complete and run.job and run.job.state in (UNCLEAR, ELSEWHERE):
                unknown[run.name] = run.job
            else:
                wanted.append(run)
        order = {folder: number for number, folder in enumerate(by_folder)}
        return sorted(wanted, key=lambda run: order[run.folder]), in_queue, unknown

    def _end_double(self, run: str, job: JobState, unknown: dict[str, JobState]) -> None:
        """Cancel a job of which the run has another one with a smaller id."""
        double = f"job {job.job} was a second one of this run"
        try:
            self.cluster.get_scheduler().cancel(job.name)
        except UnreachableError as error:
            unknown[run] = JobState(UNCLEAR, f"{double}, and Slurm does not answer: {error}")
        else:
            self.console.print(f"{run}: {double}, and is cancelled")

    def _is_wanted(self, run: states.RunStatus) -> bool:
        if run.name in self.force:
            if run.state.state in ACTIVE:
                raise UserError(
                    f"--force {run.name}: it is {run.state.state}; cancel it, or wait for its end"
                )
            return True
        if run.state.is_complete:
            return self.repeat_disturbed and is_to_be_repeated(run.run, self.console)
        return run.state.state in SUBMITTABLE and self._may_be_submitted(run)

    def _may_be_submitted(self, run: states.RunStatus) -> bool:
        """Return False, and print why, where only --force starts the run again."""
        if run.run.state.is_complete:
            self.console.print(f"{run.name}: {run.state.reason}; --force {run.name} runs it anew")
            return False
        earlier = run.submission.earlier if run.submission else 0
        if run.state.state == "rejected" or may_be_tried_again(run.folder, run.attempts, earlier):
            return True
        outcome = f"{run.state.state} after {run.attempts} submissions ({run.state.reason})"
        self.console.print(f"{run.name}: {outcome}; --force {run.name} tries again")
        return False

    def _prepare_launch(self, wanted: Sequence[states.RunStatus]) -> None:
        """Verify what the runs need, and cancel jobs of theirs that a lost answer may have left."""
        configs = [run.run.config for run in wanted]
        self._require_startable(configs)
        known = KnownSeconds(self.cluster.gres)
        for recorded in self.folder.read_runs(self.folder.study.configs()):
            known.learn(recorded)
        self._require_affordable(configs, known)
        earlier = (read_submission(self.folder.path / run) for run in self.folder.study.run_names())
        if self.cluster.doctor and not any(found and found.attempts for found in earlier):
            doctor = required_module("slurm.commands.doctor", "doctor = true")
            workers = max(config.workers for config in configs)
            doctor.require_sound_launch(self.cluster, workers, self.folder.path.parent, self.console)
        for run in wanted:
            if run.submission and run.submission.status == "asking":
                try:
                    run.submission.get_scheduler().cancel(run.submission.token)
                except UnreachableError as error:
                    text = f"{run.name} may be queued already, and Slurm does not answer: {error}"
                    raise LaterError(text, [each.name for each in wanted]) from None

    def _require_startable(self, configs: Sequence[RunConfig]) -> None:
        """Raise UserError where a job does not fit the cluster, or a file that every run needs is missing."""
        require_fit(self.cluster, configs)
        find_prologue(self.cluster)
        find_container(self.cluster)
        check_inputs(configs, in_container=self.cluster.container is not None)

    def _require_affordable(self, configs: Sequence[RunConfig], known: KnownSeconds) -> None:
        """Print what these runs may cost; raise UserError where that is more than the budget."""
        self.console.print(describe_limit(self.cluster, configs, self.one_allocation))
        estimate = describe_estimate(configs, known, cluster=self.cluster, one_allocation=self.one_allocation)
        self.console.print(estimate)
        cost = limit_cost(self.cluster, configs, self.one_allocation)
        if self.budget_node_hours is not None and cost.node_hours > self.budget_node_hours:
            raise UserError(
                f"--budget {self.budget_node_hours:g} node-hours: these runs may take {cost}; nothing "
                "was submitted. Use fewer repeats or worker counts, or a shorter limit (time)"
            )

    def _queue(self, jobs: Sequence[BatchJob], refused: Mapping[int, str], room: int) -> None:
        """Queue as many jobs as there is room for. Raises LaterError or UserError, naming all others."""
        waiting: dict[str, str] = {}
        rejected: dict[str, str] = {}
        queued = []
        is_full = ""
        for number, job in enumerate(jobs):
            if number >= room:
                is_full = f"max_queued = {self.cluster.max_queued} is reached"
            try:
                if job.workers in refused:
                    job.note("rejected", reason=refused[job.workers])
                    raise RejectedError(refused[job.workers])
                if is_full:
                    raise LimitError(is_full)
                job.queue(self.console, self.limit_wait_seconds, self.cancellation)
            except RejectedError as error:
                rejected[job.label] = f"rejected: {error}"
            except LimitError as error:
                is_full = str(error)
                waiting[job.label] = f"waiting: {error}"
            except TakenError as error:
                waiting[job.label] = str(error)
            except UnreachableError as error:
                waiting[job.label] = (
                    f"not known whether it is queued: {error}; known in {LATEST_JOB_SECONDS:.0f} s"
                )
            else:
                queued.append(job)
        unknown = self._end_own_doubles(queued) if queued else {}
        problems = [f"{label}: {problem}" for label, problem in (rejected | waiting).items()]
        text = "\n  ".join([f"{len(problems)} not submitted:", *problems])
        if waiting:
            runs = [run.name for job in jobs if job.label in waiting for run in job.runs]
            raise LaterError(text, runs, refused=bool(rejected)).add(unknown)
        if unknown:
            raise LaterError(text if rejected else "", (), refused=bool(rejected)).add(unknown)
        if rejected:
            raise UserError(text)

    def _end_own_doubles(self, queued: Sequence[BatchJob]) -> dict[str, JobState]:
        """Cancel those of these jobs whose runs have another one of a smaller id; return what is not known.

        No claim keeps another submission away where a file server has lost it.
        """
        runs = {run.folder: job for job in queued for run in job.runs}
        submissions = {folder: read_submission(folder) for folder in runs}
        known = states.KnownJobs(submissions)
        unknown: dict[str, JobState] = {}
        for folder, job in runs.items():
            if known.silence:
                text = (
                    f"queued, and not known whether a second one is; Slurm does not answer: {known.silence}"
                )
                unknown[folder.name] = JobState(UNCLEAR, text)
            for double in states.find_doubles(known.find(folder, submissions[folder])):
                if double.name == job.token:
                    self._end_double(folder.name, double, unknown)
        return unknown

    def _in_one_job(self, wanted: Sequence[states.RunStatus]) -> BatchJob:
        """Return one job for all runs."""
        for number in itertools.count(1):
            folder = self.folder.path / f"{states.ALLOCATION}-{number}"
            with suppress(FileExistsError):  # of an earlier submission, or one at the same time
                folder.mkdir(mode=0o700)
                break
        token = new_token(f"{self.folder.study.name}.{folder.name}", self.folder.path)
        script = self._render_allocation_script([run.run.config for run in wanted], folder, token)
        return BatchJob(
            folder.name, folder, script, token, wanted, self.cluster, shared=True, force=self.force
        )

    def _job(self, run: states.RunStatus) -> BatchJob:
        token = new_token(label_run(run.folder), run.folder)
        script = self._render_job_script(run.run.config, token)
        return BatchJob(run.name, run.folder, script, token, [run], self.cluster, force=self.force)

    def _render_job_script(self, config: RunConfig, token: str) -> str:
        return render_job_script(self.cluster, config, self.folder.resolved / config.run, token)

    def _render_allocation_script(self, configs: Sequence[RunConfig], folder: Path, token: str) -> str:
        runs = [(config, self.folder.resolved / config.run) for config in configs]
        return render_allocation_script(self.cluster, runs, folder.resolve(), token)

    def _show(self, folder: Path, script: str) -> None:
        # print, as a console that wraps and colours would take most of the time of 10,000 scripts.
        print("\n".join(map(clean, f"# ---- {folder / SCRIPT_NAME}\n{script}".split("\n"))))
