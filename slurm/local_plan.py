"""What `--local` would do, and what keeps it from starting: jobs of Slurm, images that are not checked."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

from slurm.preflight import check_inputs
from slurm.quiet import disturbed_reason, may_be_repeated
from slurm.scheduler import UnreachableError, job_states
from slurm.states import combine, read_submission
from slurm.study_folder import JOB_NAME, StudyFolder, cores_per_worker, in_launch_order, run_state
from unet_scaling.data.manifest import read_manifest
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.record import RECORD_NAME, Record, read_record, set_record_aside

FORMER_JOB_NAME = "job.before_local.json"


def show_plan(
    folder: StudyFolder, console: Console, repeat_disturbed: bool = False, force: Collection[str] = ()
) -> None:
    """Print what would run here, on how many cores, and for how long; start and write nothing.

    Raises UserError where the study could not start either.
    """
    configs = in_launch_order(folder.study)
    share = cores_per_worker(folder.study, len(os.sched_getaffinity(0)))
    folder.require_same(configs)
    require_ready(folder, configs)
    forced = set(force) | (
        {config.run for config in to_repeat(folder, configs)} if repeat_disturbed else set()
    )
    wanted = [
        config for config in configs if config.run in forced or folder.state(config).state != "complete"
    ]
    for config in wanted:
        size = f"{_counted(config.workers, 'worker')}, {_counted(share, 'core')} each"
        console.print(f"{config.run}: {size}", markup=False)
    runs = _counted(len(configs), "run")
    console.print(f"{folder.study.name}: {runs}, {len(wanted)} would start, one after the other")
    if wanted:
        console.print(_estimate(folder, configs, wanted))


def require_ready(folder: StudyFolder, configs: Sequence[RunConfig]) -> None:
    """Raise UserError where Slurm may be at work on this study, or where every run would fail."""
    _require_no_jobs(folder.path)
    check_inputs(configs)
    for path, manifest in sorted({(config.data.folder, config.data.manifest_path) for config in configs}):
        read_manifest(manifest).require_unchanged(Path(path))


def to_repeat(folder: StudyFolder, configs: Sequence[RunConfig]) -> list[RunConfig]:
    """Return the complete runs that were disturbed, and were not launched again too often."""
    return [
        config
        for config in configs
        if folder.state(config).state == "complete"
        and disturbed_reason(folder.run_folder(config))
        and may_be_repeated(folder.run_folder(config))
    ]


def take_over(folder: StudyFolder, configs: Sequence[RunConfig], force: Collection[str] = ()) -> None:
    """Make these runs local ones: set the records of `force` aside, and jobs of Slurm that are over.

    A later state would else be that of the former job. Raises UserError where a job may not be over.
    """
    require_ready(folder, configs)
    for config in configs:
        run_folder = folder.run_folder(config)
        complete = run_state(run_folder).state == "complete"
        if complete and config.run in force:
            set_record_aside(run_folder)
        if (run_folder / JOB_NAME).exists() and (not complete or config.run in force):
            (run_folder / JOB_NAME).rename(run_folder / FORMER_JOB_NAME)


def _require_no_jobs(folder: Path) -> None:
    """Raise UserError where a job of this study is queued or running, or where nobody can say."""
    submissions = {path.parent: read_submission(path.parent) for path in sorted(folder.glob(f"*/{JOB_NAME}"))}
    asked = {submission.job for submission in submissions.values() if submission and submission.job}
    doubt = "Slurm does not answer"
    try:
        known = job_states(asked)
    except UnreachableError:
        known = None
    except UserError as error:
        known, doubt = None, str(error)
    states = {run: combine(run, submission, known).state for run, submission in submissions.items()}
    active = [run for run, state in states.items() if state in ("queued", "running", "unknown")]
    if not active:
        return
    jobs = sorted({submission.job or submission.token for run in active if (submission := submissions[run])})
    if known is None:
        raise UserError(
            f"{folder.name}: jobs {', '.join(jobs)} may be queued or running, and cannot be asked for: "
            f"{doubt}. Where they are over, remove {folder}/*/{JOB_NAME}"
        )
    raise UserError(
        f"{folder.name}: jobs {', '.join(jobs)} of this study are queued or running (squeue --me); wait for "
        f"their end, or cancel them: slurm/submission.sh cancel {folder}"
    )


def _estimate(folder: StudyFolder, configs: Sequence[RunConfig], wanted: Sequence[RunConfig]) -> str:
    """Return how long the runs will take by complete ones of the same point, in words."""
    known: dict[str, list[float]] = {}
    for config in configs:
        path = folder.run_folder(config) / RECORD_NAME
        record = read_record(path) if path.exists() else None
        if record and record.complete:
            known.setdefault(_kind(config), []).append(_recorded_seconds(record))
    foreseen = [median(known[_kind(config)]) for config in wanted if _kind(config) in known]
    if not foreseen:
        return "how long that takes is not known: no run of these points is complete"
    text = f"about {_duration(sum(foreseen))} by the complete runs of the same points"
    missing = len(wanted) - len(foreseen)
    return f"{text}; not known for {missing} of them, whose points have none" if missing else text


def _kind(config: RunConfig) -> str:
    """Return what all repeats of a point share: the name of its runs without the repeat."""
    return config.run.removesuffix(f"-r{config.repeat}")


def _recorded_seconds(record: Record) -> float:
    """Return the seconds of a run from the start of its processes, by its record."""
    parts: Mapping[str, Sequence[float]] = (
        record.startup.model_dump(include=set(STARTUP_COLUMNS)) if record.startup else {}
    )
    start = sum(max(seconds) for seconds in parts.values())
    trained = sum(epoch.seconds for epoch in record.epochs)
    return start + trained + sum(result.seconds for result in record.results)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
