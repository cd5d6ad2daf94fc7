"""Submit what a study still needs, each run once, whatever happens in between."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm.attempts import may_be_tried_again
from slurm.cluster import Cluster
from slurm.preflight import check_before_submission, estimate, refused_shapes
from slurm.quiet import disturbed_reason, may_be_repeated, set_disturbed_aside
from slurm.render import Places, allocation_script, job_script
from slurm.scheduler import LimitError, RejectedError, UnreachableError, find, inherited_variables
from slurm.scheduler import submit as submit_job
from slurm.states import SUBMITTABLE, Status, Submission, read_submission, study_states, write_submission
from slurm.study_folder import OUTPUT_NAME, RunState, StudyFolder, in_launch_order, run_state
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import open_to_append, write_atomically
from unet_scaling.study.record import set_record_aside

SCRIPT_NAME = "job.sbatch"
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0


@dataclass(frozen=True)
class Submitter:
    """A study and its cluster, with what the user asked for."""

    folder: StudyFolder
    cluster: Cluster
    places: Places
    console: Console
    one_allocation: bool = False
    force: tuple[str, ...] = ()
    repeat_disturbed: bool = False
    patience_seconds: float = 3600.0

    def dry_run(self) -> None:
        """Print every script and the estimate; write nothing, queue nothing."""
        configs = in_launch_order(self.folder.study)
        self.folder.require_same(configs)
        check_before_submission(self.cluster, configs)
        if self.one_allocation:
            place = self.folder.path / "allocation-1"
            self._show(place, self._allocation_script(configs, place, "dry-run"))
        else:
            for config in configs:
                self._show(self.folder.run_folder(config), self._job_script(config, "dry-run"))
        self.console.print(estimate(self.cluster, configs, self.one_allocation))

    def submit(self) -> int:
        """Submit every run that is missing, failed or resumable; return how many jobs were queued.

        The study is locked meanwhile. A run whose fate is not clear is left alone until it is.
        Raises UserError at the end, naming the runs that could not be submitted.
        """
        with self.folder.locked():
            configs = self.folder.prepare()
            self._settle(configs)
            states = study_states({config.run: self.folder.run_folder(config) for config in configs})
            wanted = [config for config in configs if self._is_wanted(config, states[config.run])]
            self.console.print(f"{self.folder.study.name}: {len(configs)} runs, {len(wanted)} to submit")
            if not wanted:
                return 0
            for name in inherited_variables():
                self.console.print(f"not passed to sbatch: {name}", style="dim", markup=False)
            check_before_submission(self.cluster, wanted)
            self._set_records_aside(wanted)
            self.console.print(estimate(self.cluster, wanted, self.one_allocation))
            room = self.cluster.max_queued - sum(
                state.state in ("queued", "running") for state in states.values()
            )
            problems = self._in_one_job(wanted) if self.one_allocation else self._one_by_one(wanted, room)
        if problems:
            raise UserError(f"{len(problems)} not submitted:\n  " + "\n  ".join(problems))
        return len(wanted)

    def _is_wanted(self, config: RunConfig, state: RunState) -> bool:
        if config.run in self.force:
            if state.state in ("queued", "running", "unknown"):
                raise UserError(f"--force {config.run}: it is {state.state}; cancel it, or wait for its end")
            return True
        if state.state == "complete" and self._is_to_be_repeated(config):
            return True
        if state.state not in SUBMITTABLE:
            return False
        if run_state(self.folder.run_folder(config)).state == "complete":
            self.console.print(
                f"{config.run}: {state.reason}; --force {config.run} runs it anew", markup=False
            )
            return False
        submission = read_submission(self.folder.run_folder(config))
        tried = submission.attempts if submission else 0
        if state.state != "rejected" and not may_be_tried_again(self.folder.run_folder(config), tried):
            self.console.print(
                f"{config.run}: {state.state} after {tried} submissions ({state.reason}); "
                f"--force {config.run} tries again",
                markup=False,
            )
            return False
        return True

    def _is_to_be_repeated(self, config: RunConfig) -> bool:
        """Whether --repeat-disturbed asks for this complete run."""
        folder = self.folder.run_folder(config)
        reason = disturbed_reason(folder) if self.repeat_disturbed else ""
        if not reason:
            return False
        repeated = may_be_repeated(folder)
        outcome = "launched again" if repeated else "disturbed again and again, so it stays as it is"
        self.console.print(f"{config.run}: {reason}; {outcome}", markup=False)
        return repeated

    def _set_records_aside(self, configs: Sequence[RunConfig]) -> None:
        """Keep the record of a launch that is repeated; a complete run would not start again."""
        for config in configs:
            folder = self.folder.run_folder(config)
            if run_state(folder).state != "complete":
                continue
            if config.run in self.force:
                set_record_aside(folder)
            elif self.repeat_disturbed:
                set_disturbed_aside(folder)

    def _settle(self, configs: Sequence[RunConfig]) -> None:
        """Find out what became of submissions whose answer was lost; a UserError where Slurm is silent."""
        for config in configs:
            folder = self.folder.run_folder(config)
            submission = read_submission(folder)
            if submission is None or submission.status != "asking":
                continue
            try:
                job = find(submission.token)
            except UnreachableError as error:
                raise UserError(
                    f"{config.run} may be queued already, and Slurm does not answer: {error}"
                ) from None
            if job is None:
                (folder / "job.json").unlink()
            else:
                write_submission(folder, submission.model_copy(update={"status": "queued", "job": job}))

    def _one_by_one(self, configs: Sequence[RunConfig], room: int) -> list[str]:
        scripts: dict[int, Path] = {}
        for config in configs:
            script = self.folder.run_folder(config) / SCRIPT_NAME
            open_to_append(script.parent / OUTPUT_NAME).close()
            write_atomically(script, self._job_script(config, self._token(config.run, script.parent)))
            scripts.setdefault(config.workers, script)
        refused = self._refused(scripts)
        problems = []
        for number, config in enumerate(configs):
            folder = self.folder.run_folder(config)
            if number >= room:
                problems.append(f"{config.run}: waiting, max_queued = {self.cluster.max_queued} is reached")
            elif config.workers in refused:
                self._note(
                    [folder], self._token(config.run, folder), "rejected", reason=refused[config.workers]
                )
                problems.append(f"{config.run}: rejected: {refused[config.workers]}")
            else:
                token = self._token(config.run, folder)
                problem = self._queue([folder], folder / SCRIPT_NAME, token, config.run)
                problems += [f"{config.run}: {problem}"] if problem else []
        return problems

    def _in_one_job(self, configs: Sequence[RunConfig]) -> list[str]:
        number = len(list(self.folder.path.glob("allocation-*"))) + 1
        place = self.folder.path / f"allocation-{number}"
        place.mkdir(mode=0o700)
        open_to_append(place / OUTPUT_NAME).close()
        token = self._token(f"{self.folder.study.name}.allocation", place)
        write_atomically(place / SCRIPT_NAME, self._allocation_script(configs, place, token))
        folders = [self.folder.run_folder(config) for config in configs]
        refused = self._refused({0: place / SCRIPT_NAME})
        if refused:
            self._note(folders, token, "rejected", reason=refused[0], shared=True)
            return [f"allocation-{number}: rejected: {refused[0]}"]
        problem = self._queue(folders, place / SCRIPT_NAME, token, place.name, shared=True)
        return [f"{place.name}: {problem}"] if problem else []

    def _refused(self, scripts: dict[int, Path]) -> dict[int, str]:
        try:
            return refused_shapes(scripts)
        except UnreachableError as error:
            raise UserError(f"nothing was submitted, Slurm does not answer: {error}") from None

    def _queue(
        self, folders: Sequence[Path], script: Path, token: str, label: str, shared: bool = False
    ) -> str | None:
        """Queue one script for these runs; None, or why that did not work."""
        before = [read_submission(folder) for folder in folders]
        self._note(folders, token, "asking", shared=shared)
        try:
            job = self._submit_patiently(script, token, label)
        except UnreachableError as error:
            return f"not known whether it is queued: {error}; the next submission will look for it"
        except RejectedError as error:
            self._note(folders, token, "rejected", reason=str(error), shared=shared)
            return f"rejected: {error}"
        except LimitError as error:
            for folder, submission in zip(folders, before, strict=True):
                if submission is None:
                    (folder / "job.json").unlink()
                else:
                    write_submission(folder, submission)
            return f"waiting: {error}"
        self._note(folders, token, "queued", job=job, shared=shared)
        self.console.print(f"{label}: job {job}", markup=False)
        return None

    def _submit_patiently(self, script: Path, token: str, label: str) -> str:
        """Submit; where Slurm takes no more jobs now, try again after growing pauses."""
        pause, deadline = FIRST_PAUSE_SECONDS, time.monotonic() + self.patience_seconds
        while True:
            try:
                return submit_job(script, token)
            except LimitError as error:
                if time.monotonic() + pause > deadline:
                    raise
                self.console.print(
                    f"{label}: {error}; next try in {pause:.0f} s", markup=False, soft_wrap=True
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _note(
        self,
        folders: Sequence[Path],
        token: str,
        status: Status,
        *,
        job: str | None = None,
        reason: str = "",
        shared: bool = False,
    ) -> None:
        """Write down, for each of these runs, how far its submission has come."""
        for folder in folders:
            before = read_submission(folder)
            attempts = before.attempts if before else 0
            if status == "asking":
                attempts += 1
            write_submission(
                folder,
                Submission(
                    token=token, attempts=attempts, status=status, job=job, reason=reason, shared=shared
                ),
            )

    def _token(self, label: str, folder: Path) -> str:
        """A job name that no other submission has: of this folder and this attempt."""
        submission = read_submission(folder)
        attempt = (submission.attempts if submission else 0) + 1
        place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]
        return f"{label}.{place}.{attempt}"

    def _job_script(self, config: RunConfig, token: str) -> str:
        return job_script(self.cluster, config, self.folder.run_folder(config).resolve(), token, self.places)

    def _allocation_script(self, configs: Sequence[RunConfig], place: Path, token: str) -> str:
        runs = [(config, self.folder.run_folder(config).resolve()) for config in configs]
        return allocation_script(self.cluster, runs, place.resolve(), token, self.places)

    def _show(self, folder: Path, script: str) -> None:
        self.console.print(f"# ---- {folder / SCRIPT_NAME}\n{script}", markup=False)
