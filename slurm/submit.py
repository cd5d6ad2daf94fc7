"""Submit what a study still needs, each run once, whatever happens in between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from slurm.attempts import may_be_tried_again
from slurm.batch import SCRIPT_NAME, BatchJob, write_script
from slurm.cancellation import Cancellation
from slurm.cluster import Cluster, geometry
from slurm.cost import cluster_cost, require_within
from slurm.disturbed import is_to_be_repeated, set_disturbed_aside
from slurm.doctor import require_sound_launch
from slurm.estimate import Basis
from slurm.more_repeats import add_repeats, next_block, note_changed_request
from slurm.preflight import check_before_submission, refused_shapes, unverified_inputs
from slurm.render import Places, allocation_script, job_script
from slurm.scheduler import UnreachableError, find, inherited_variables
from slurm.states import RunStatus, study_statuses
from slurm.study_folder import StudyFolder, in_launch_order, open_study_folder
from slurm.submissions import Submission, read_submission, read_submissions, write_submission
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.record import set_launch_aside
from unet_scaling.study.run_state import ACTIVE, IN_QUEUE, SUBMITTABLE
from unet_scaling.study.texts import short_digest

DRY_RUN_TOKEN = "dry-run"  # noqa: S105, the name of a job


@dataclass(frozen=True)
class Submitter:
    """A study and its cluster, with what the user asked for.

    Once the study is cancelled, nothing more is submitted.
    """

    folder: StudyFolder
    cluster: Cluster
    places: Places
    console: Console
    cancellation: Cancellation
    one_allocation: bool = False
    force: tuple[str, ...] = ()
    repeat_disturbed: bool = False
    more_repeats: int = 0
    limit_wait_seconds: float = 3600.0
    basis: Basis | None = None
    budget_node_hours: float | None = None

    def dry_run(self) -> None:
        """Print every script, what could not be verified, and the estimate; write nothing, queue nothing."""
        configs = in_launch_order(self.folder.study)
        self.folder.require_same(configs)
        for config in configs:
            geometry(self.cluster, config.workers)
        if self.one_allocation:
            job_folder = self.folder.path / "allocation-1"
            self._show(job_folder, self._allocation_script(configs, job_folder, DRY_RUN_TOKEN))
        else:
            for config in configs:
                self._show(self.folder.run_folder(config), self._job_script(config, DRY_RUN_TOKEN))
        for sentence in unverified_inputs(configs):
            self._print(f"not verified: {sentence}")
        self._require_affordable(configs)

    def submit(self) -> int:
        """Submit every run that is missing, failed or resumable; return how many runs were submitted.

        The study is locked meanwhile. Where it is complete and asks for more repeats, its next one is
        submitted. A run whose job may or may not exist is left alone until that is known.
        Raises UserError at the end, naming the runs that could not be submitted, and CancelledError at once
        where the study is cancelled meanwhile.
        """
        with self.folder.locked():
            return replace(self, folder=self._with_more_repeats(), more_repeats=0)._submit_missing()

    def _with_more_repeats(self) -> StudyFolder:
        """Return the study with all repeats that it has by now, and those that it or the user asks for."""
        folder = open_study_folder(self.folder.path, self.folder.study)
        folder = note_changed_request(folder, self.console)
        if self.more_repeats:
            return add_repeats(folder, self.more_repeats, self.console)
        return next_block(folder, self.console) or folder

    def _submit_missing(self) -> int:
        configs = self.folder.prepare(self.console)
        wanted, in_queue = self._wanted(configs)
        self.console.print(f"{self.folder.study.name}: {len(configs)} runs, {len(wanted)} to submit")
        if not wanted:
            return 0
        for name in inherited_variables():
            self.console.print(f"not passed to sbatch: {name}", style="dim", markup=False)
        self._prepare_launch(wanted)
        room = max(0, self.cluster.max_queued - in_queue)
        problems = self._in_one_job(wanted) if self.one_allocation else self._one_by_one(wanted, room)
        if problems:
            raise UserError(f"{len(problems)} not submitted:\n  " + "\n  ".join(problems))
        return len(wanted)

    def _wanted(self, configs: Sequence[RunConfig]) -> tuple[list[RunStatus], int]:
        """Return the runs to submit, and how many others are in the queue."""
        by_folder = {self.folder.run_folder(config): config for config in configs}
        submissions = {folder: self._settled(folder) for folder in by_folder}
        wanted = []
        in_queue = 0
        for run in study_statuses(by_folder, submissions):
            in_queue += run.state.state in IN_QUEUE
            if self._is_wanted(run):
                wanted.append(run)
        return wanted, in_queue

    def _settled(self, folder: Path) -> Submission | None:
        """Return the newest submission; one whose answer was lost is looked up. Raises UserError."""
        submission = read_submission(folder)
        if submission is None or submission.status != "asking":
            return submission
        try:
            job = find(submission.token)
        except UnreachableError as error:
            raise UserError(
                f"{folder.name} may be queued already, and Slurm does not answer: {error}"
            ) from None
        settled = submission.model_copy(update={"status": "queued", "job": job}) if job else None
        write_submission(folder, settled)
        return settled

    def _is_wanted(self, run: RunStatus) -> bool:
        if run.name in self.force:
            if run.state.state in ACTIVE:
                raise UserError(
                    f"--force {run.name}: it is {run.state.state}; cancel it, or wait for its end"
                )
            return True
        if run.state.is_complete:
            return self.repeat_disturbed and is_to_be_repeated(run.run, self.console)
        return run.state.state in SUBMITTABLE and self._may_be_submitted(run)

    def _may_be_submitted(self, run: RunStatus) -> bool:
        """Return False, and print why, where only --force starts the run again."""
        if run.run.state.is_complete:
            self._print(f"{run.name}: {run.state.reason}; --force {run.name} runs it anew")
            return False
        if run.state.state == "rejected" or may_be_tried_again(run.folder, run.attempts):
            return True
        outcome = f"{run.state.state} after {run.attempts} submissions ({run.state.reason})"
        self._print(f"{run.name}: {outcome}; --force {run.name} tries again")
        return False

    def _prepare_launch(self, wanted: Sequence[RunStatus]) -> None:
        """Verify what runs need, and keep the records of complete ones, which would else not start again."""
        configs = [run.run.config for run in wanted]
        check_before_submission(self.cluster, configs)
        self._require_affordable(configs)
        if self.cluster.doctor and not self._has_had_jobs():
            workers = max(config.workers for config in configs)
            require_sound_launch(self.cluster, workers, self.folder.path.parent, self.console)
        for run in wanted:
            if run.run.state.is_complete and run.name in self.force:
                set_launch_aside(run.folder)
            elif run.run.state.is_complete:
                set_disturbed_aside(run.folder)

    def _has_had_jobs(self) -> bool:
        """Tell whether any run of the study was queued before."""
        folders = [self.folder.run_folder(config) for config in self.folder.study.configs()]
        return any(found and found.attempts for found in read_submissions(folders).values())

    def _require_affordable(self, configs: Sequence[RunConfig]) -> None:
        """Print what these runs cost; raise UserError where that may be more than the budget."""
        cost = cluster_cost(self.cluster, configs, self.one_allocation, self.basis)
        self._print(cost.text)
        require_within(self.budget_node_hours, cost)

    def _one_by_one(self, wanted: Sequence[RunStatus], room: int) -> list[str]:
        """Submit each run as a job of its own, as many as there is room for; return the problems."""
        jobs = [self._job(run) for run in wanted]
        workers = [run.run.config.workers for run in wanted]
        refused = self._refused({count: job.script for count, job in zip(workers, jobs, strict=True)})
        problems = [
            self._send(job, refused.get(count))
            for count, job in zip(workers[:room], jobs[:room], strict=True)
        ]
        for job in jobs[room:]:
            problems.append(f"{job.label}: waiting, max_queued = {self.cluster.max_queued} is reached")
        return [problem for problem in problems if problem]

    def _in_one_job(self, wanted: Sequence[RunStatus]) -> list[str]:
        """Submit all runs as one job; return its problem, if any."""
        number = len(list(self.folder.path.glob("allocation-*"))) + 1
        folder = self.folder.path / f"allocation-{number}"
        folder.mkdir(mode=0o700)
        token = _token(f"{self.folder.study.name}.allocation", folder, 1)
        script = self._allocation_script([run.run.config for run in wanted], folder, token)
        job = BatchJob(folder.name, write_script(folder, script), token, wanted, shared=True)
        problem = self._send(job, self._refused({0: job.script}).get(0))
        return [problem] if problem else []

    def _job(self, run: RunStatus) -> BatchJob:
        token = _token(run.name, run.folder, run.attempts + 1)
        script = self._job_script(run.run.config, token)
        return BatchJob(run.name, write_script(run.folder, script), token, [run])

    def _send(self, job: BatchJob, refusal: str | None) -> str:
        """Submit a job that Slurm does not refuse; return the problem, if any."""
        if refusal:
            problem = job.reject(refusal)
        else:
            problem = job.queue(self.console, self.limit_wait_seconds, self.cancellation)
        return f"{job.label}: {problem}" if problem else ""

    def _refused(self, scripts: dict[int, Path]) -> dict[int, str]:
        try:
            return refused_shapes(scripts)
        except UnreachableError as error:
            raise UserError(f"nothing was submitted, Slurm does not answer: {error}") from None

    def _job_script(self, config: RunConfig, token: str) -> str:
        return job_script(self.cluster, config, self.folder.run_folder(config).resolve(), token, self.places)

    def _allocation_script(self, configs: Sequence[RunConfig], folder: Path, token: str) -> str:
        runs = [(config, self.folder.run_folder(config).resolve()) for config in configs]
        return allocation_script(self.cluster, runs, folder.resolve(), token, self.places)

    def _show(self, folder: Path, script: str) -> None:
        self._print(f"# ---- {folder / SCRIPT_NAME}\n{script}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False)


def _token(label: str, folder: Path, attempt: int) -> str:
    """Return a job name that no other submission has: of this folder and this attempt."""
    return f"{label}.{short_digest(str(folder.resolve()))}.{attempt}"
