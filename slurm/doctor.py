"""Launch the doctor's workers, on this machine or by Slurm, and gather what they report."""

import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm.cluster import Cluster, geometry
from slurm.local import launch
from slurm.render import SCRIPT_NAME, Places, doctor_script, write_script
from slurm.scheduler import GONE, LimitError, RejectedError, Slurm, UnreachableError, is_over
from unet_scaling.doctor.findings import Findings, WorkerReport, launch_findings, read_reports, verdict
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import OUTPUT_NAME

# Below logs/, and no name of a study.
DOCTOR_FOLDER = ".doctor"
JOB_LIMIT = "00:05:00"
JOB_LOOK_SECONDS = 2.0
# Of an output, where workers did not say themselves what went wrong.
SHOWN_OUTPUT_LINES = 5


@dataclass(frozen=True)
class Examination:
    """One launch of the doctor: who was to take part, what they report, and what follows from it."""

    workers: int
    reports: list[WorkerReport]
    findings: Findings
    output: str

    @property
    def shown_output(self) -> list[str]:
        """The last lines of what the launch printed, where it has a fault."""
        return self.output.strip().splitlines()[-SHOWN_OUTPUT_LINES:] if self.findings.faults else []


def examine_here(workers: int) -> Examination:
    """Launch so many workers on this machine, each on its share of the cores. Raises UserError."""
    share = len(os.sched_getaffinity(0)) // workers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = ["-m", "unet_scaling.doctor", str(folder), str(workers)]
        launch(program, workers, folder / OUTPUT_NAME, share or None)
        return _examination(folder, workers, None)


def examine_cluster(cluster: Cluster, workers: int, logs: Path, console: Console) -> Examination:
    """Launch the doctor in a job of its own, and wait for its end.

    Raises UserError where Slurm does not take the job, or does not answer. An interrupt cancels the job.
    """
    shape = geometry(cluster, workers)
    base = logs.resolve() / DOCTOR_FOLDER
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=base))
    token = f"doctor.{folder.name}"
    places = Places(PROJECT, Path(sys.executable))
    short = {"time": JOB_LIMIT, "stop_seconds": 1, "requeue": False}
    script = doctor_script(cluster.model_copy(update=short), shape, folder, token, places)
    try:
        job = cluster.slurm.submit(write_script(folder, script), token)
    except (RejectedError, LimitError, UnreachableError) as error:
        raise UserError(f"the doctor's job, {folder / SCRIPT_NAME}: {error}") from None
    console.print(f"doctor: job {job}, {workers} workers; output in {folder}/{OUTPUT_NAME}", markup=False)
    _wait(cluster.slurm, token, job)
    return _examination(folder, workers, cluster.cores_per_worker)


def require_sound_launch(cluster: Cluster, workers: int, logs: Path, console: Console) -> None:
    """Launch the doctor by Slurm; print its verdict and warnings. Raises UserError with all faults."""
    found = examine_cluster(cluster, workers, logs, console)
    if found.findings.faults:
        faults = "\n  ".join([*found.findings.faults, *found.shown_output])
        raise UserError(f"nothing was submitted, since the doctor (doctor = true) finds:\n  {faults}")
    for warning in found.findings.warnings:
        console.print(f"doctor: warning: {warning}", markup=False)
    console.print(f"doctor: {verdict(found.reports, workers, found.findings)}", markup=False)


def _wait(slurm: Slurm, token: str, job: str) -> None:
    """Wait until the job has ended or is forgotten; cancel it where the wait is interrupted."""
    try:
        while not (is_over(state := slurm.look_up({token: job})[token].state) or state == GONE):
            time.sleep(JOB_LOOK_SECONDS)
    except BaseException:
        with suppress(UnreachableError, UserError):
            slurm.cancel(token)
        raise


def _examination(folder: Path, workers: int, cores_wanted: int | None) -> Examination:
    try:
        reports = read_reports(folder)
    except ValueError as error:
        raise UserError(f"a report in {folder} cannot be read: {error}") from None
    output = (folder / OUTPUT_NAME).read_text(errors="replace")
    return Examination(workers, reports, launch_findings(reports, workers, cores_wanted, output), output)
