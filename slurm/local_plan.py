"""Plan a launch on this machine, and refuse it where jobs of Slurm run or images are not checked."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm.after_run import is_to_be_repeated
from slurm.estimate import KnownSeconds
from slurm.preflight import check_inputs, require_images
from slurm.states import judged, study_submissions
from slurm.study_folder import StudyFolder, in_launch_order
from unet_scaling.study.command_line import CALLED
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.run_state import ACTIVE, RecordedRun, run_state
from unet_scaling.study.study_file import JOB_NAME
from unet_scaling.study.texts import count

FORMER_JOB_NAME = "job.before_local.json"


@dataclass(frozen=True)
class LocalPlan:
    """What would run here, on how many cores, and what the study's complete runs tell of its time."""

    folder: StudyFolder
    runs: int
    wanted: list[RunConfig]
    known: KnownSeconds

    def show(self, console: Console) -> None:
        cores = cores_per_worker(self.folder.study, len(os.sched_getaffinity(0)))
        lines = [
            f"{config.run}: {count(config.workers, 'worker')}, {count(cores, 'core')} each"
            for config in self.wanted
        ]
        total = f"{self.folder.study.name}: {count(self.runs, 'run')}"
        lines.append(f"{total}, {len(self.wanted)} would start, one after the other")
        console.print("\n".join(lines), markup=False)


def local_plan(
    folder: StudyFolder, console: Console, repeat_disturbed: bool = False, force: Collection[str] = ()
) -> LocalPlan:
    """Return what would run here; start and write nothing. Each record is read once, and none is kept.

    Raises UserError where the study could not start either.
    """
    configs = in_launch_order(folder.study)
    folder.require_same(configs)
    require_ready(folder, configs)
    wanted = {config.run: config for config in configs}
    known = KnownSeconds()
    for run in folder.all_recorded(configs):
        known.learn(run)
        if not _is_wanted(run, console, repeat_disturbed, force):
            wanted.pop(run.config.run, None)
    return LocalPlan(folder, len(configs), list(wanted.values()), known)


def cores_per_worker(study: StudyConfig, cores: int) -> int:
    """Return what the largest worker count leaves to each worker: equal at every count. Raises UserError.

    Played runs have what so many real workers would, on whose threads sums are added in the same order, but
    where the study sets training.cores_per_worker.
    """
    largest = max(study.workers)
    if largest > cores:
        raise UserError(
            f"study {study.name}: workers = {largest} need {largest} cores, this machine gives {cores}; "
            f"the largest worker count here is {cores}"
        )
    plays = study.training.get("plays")
    if plays is None or study.training.get("cores_per_worker") is not None:
        return cores // largest
    played: list[int] = plays if isinstance(plays, list) else [plays]
    return max(1, cores // max(largest, *played))


def require_ready(folder: StudyFolder, configs: Sequence[RunConfig]) -> None:
    """Raise UserError where Slurm may be at work on this study, or where every run would fail."""
    _require_no_jobs(folder.path)
    check_inputs(configs)
    require_images(configs)


def prepare_ready(folder: StudyFolder, console: Console) -> list[RunConfig]:
    """Write the run folders of a study that can start, and return its runs; raise UserError for another.

    Nothing is written for a study that cannot start: its runs would stand in every later report as waiting.
    """
    require_ready(folder, in_launch_order(folder.study))
    return folder.prepare(console)


def take_over(
    folder: StudyFolder, configs: Sequence[RunConfig], force: Collection[str] = ()
) -> list[RunConfig]:
    """Make these runs local ones and return those to launch: all that are incomplete or in `force`.

    Sets jobs of Slurm aside that are over: a later state would else be that of the former job.
    """
    missing = []
    for config in configs:
        if config.run not in force and folder.recorded(config).state.is_complete:
            continue
        missing.append(config)
        run_folder = folder.run_folder(config)
        if (run_folder / JOB_NAME).exists():
            (run_folder / JOB_NAME).rename(run_folder / FORMER_JOB_NAME)
    return missing


def _is_wanted(run: RecordedRun, console: Console, repeat_disturbed: bool, force: Collection[str]) -> bool:
    if run.config.run in force or not run.state.is_complete:
        return True
    return repeat_disturbed and is_to_be_repeated(run, console)


def _require_no_jobs(study: Path) -> None:
    """Raise UserError where a job of this study is queued or running, or where nobody can say."""
    submissions = study_submissions(study)
    jobs = set()
    doubt = ""
    for folder, state, _ in judged(submissions, run_state):
        submission = submissions[folder]
        if submission and state.state in ACTIVE:
            jobs.add(submission.job or submission.token)
            doubt = state.reason if state.state == "unknown" else doubt
    named = ", ".join(sorted(jobs))
    if doubt:
        raise UserError(
            f"{study.name}: jobs {named} may be queued or running, and cannot be asked for: "
            f"{doubt}. Where they are over, rename {study}/*/{JOB_NAME}"
        )
    if jobs:
        raise UserError(
            f"{study.name}: jobs {named} of this study are queued or running (squeue --me); wait for "
            f"their end, or cancel them: {CALLED} cancel {study}"
        )
