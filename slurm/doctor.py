"""Launch the doctor's workers, on this machine or by Slurm, and gather what they report."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm.cluster import Cluster
from slurm.local import launch
from slurm.one_job import new_job_folder, run_as_job
from unet_scaling.doctor.findings import Findings, WorkerReport, launch_findings, read_reports, verdict
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import OUTPUT_NAME

# Below logs/, and no name of a study.
DOCTOR_FOLDER = ".doctor"
JOB_LIMIT = "00:05:00"
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
    folder = new_job_folder(logs.resolve() / DOCTOR_FOLDER)
    program = ["-m", "unet_scaling.doctor", str(folder), str(workers)]
    run_as_job(cluster.model_copy(update={"time": JOB_LIMIT}), workers, program, "doctor", folder, console)
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


def _examination(folder: Path, workers: int, cores_wanted: int | None) -> Examination:
    try:
        reports = read_reports(folder)
    except ValueError as error:
        raise UserError(f"a report in {folder} cannot be read: {error}") from None
    output = (folder / OUTPUT_NAME).read_text(errors="replace")
    return Examination(workers, reports, launch_findings(reports, workers, cores_wanted, output), output)
