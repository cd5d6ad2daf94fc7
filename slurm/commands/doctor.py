"""Launch workers as a study would, for half a minute, and say what would keep them from training together.

Who belongs to whom by the launcher, by torch and by MPI; each worker's host, address, cores, device, clock
and versions; latency and bandwidth between hosts; the slowest node. Ends with 1 where it finds a fault.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm.cluster import Cluster, read_cluster
from slurm.commands.options import add_logs, new_console
from slurm.launch.processes import launch
from slurm.one_job import new_job_folder, run_as_job
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import EXIT_BUG, EXIT_OK, UserError
from unet_scaling.base.validation import positive
from unet_scaling.doctor.findings import (
    Findings,
    WorkerReport,
    launch_findings,
    node_speeds,
    read_reports,
    show,
    verdict,
)
from unet_scaling.group.gpus import visible_gpus
from unet_scaling.study.study_file import OUTPUT_NAME

# Two workers show whether workers find each other, two nodes whether they do over a network.
DEFAULT_WORKERS = 2
DEFAULT_NODES = 2
# A folder below logs/; no study can have this name.
DOCTOR_FOLDER = ".doctor"
JOB_LIMIT = "00:05:00"
# The last lines of an output are shown where the reports do not tell what went wrong.
SHOWN_OUTPUT_LINES = 5
_EPILOG = """\
examples
  unet-scaling doctor --local
  unet-scaling doctor --cluster slurm/clusters/MINE.toml
  unet-scaling doctor --cluster slurm/clusters/MINE.toml --nodes 7 --json
"""


@dataclass(frozen=True)
class Examination:
    """What the workers of one launch report, what follows, and the end of what a faulty launch printed."""

    reports: list[WorkerReport]
    findings: Findings
    verdict: str
    shown_output: list[str]


def main() -> int:
    arguments = command_line().parse_args()
    console = new_console()
    if arguments.local:
        if arguments.nodes:
            raise UserError(f"--nodes {arguments.nodes}: this machine is one node; say --workers instead")
        gpus = visible_gpus(arguments.workers or DEFAULT_WORKERS)
        workers = arguments.workers or gpus.most(DEFAULT_WORKERS)
        gpus.require_one_each("doctor --local", workers)
        found = examine_here(workers)
    else:
        cluster = read_cluster(arguments.cluster)
        nodes = arguments.nodes or cluster.max_nodes or DEFAULT_NODES
        console.stderr = arguments.json
        workers = arguments.workers or nodes * cluster.gpus_per_node
        found = examine_cluster(cluster, workers, arguments.logs, console)
    if arguments.json:
        content = {
            "verdict": found.verdict,
            "faults": list(found.findings.faults),
            "warnings": list(found.findings.warnings),
            "workers": workers,
            "slowest_node": next(iter(node_speeds(found.reports)), None),
            "output": found.shown_output,
            "reports": [report.model_dump(mode="json") for report in found.reports],
        }
        print(json.dumps(content, indent=2))
    else:
        show(console, found.reports, workers, found.findings)
        for line in found.shown_output:
            console.print(f"output: {line}", style="dim")
    return EXIT_BUG if found.findings.faults else EXIT_OK


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling doctor", __doc__, _EPILOG)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--cluster", type=Path, metavar="CLUSTER.toml", help="as a job of Slurm")
    where.add_argument("--local", action="store_true", help="on this machine with mpiexec, without Slurm")
    size = parser.add_mutually_exclusive_group()
    nodes = f"full nodes of the cluster (default: its max_nodes, or {DEFAULT_NODES})"
    size.add_argument("--nodes", type=positive, metavar="N", help=nodes)
    workers = f"instead of nodes (--local: {DEFAULT_WORKERS}, or as many as GPUs)"
    size.add_argument("--workers", type=positive, metavar="N", help=workers)
    parser.add_argument("--json", action="store_true", help="print verdict, findings and all reports as JSON")
    add_logs(parser)
    return parser


def examine_here(workers: int) -> Examination:
    """Launch so many workers on this machine, each on its share of the cores. Raises UserError."""
    share = len(os.sched_getaffinity(0)) // workers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launch(_program(folder, workers), workers, folder / OUTPUT_NAME, share or None)
        return _examination(folder, workers, None)


def examine_cluster(cluster: Cluster, workers: int, logs: Path, console: Console) -> Examination:
    """Launch the doctor in a job of its own, and wait for its end.

    Raises UserError where Slurm does not take the job, or does not answer. An interrupt cancels the job.
    """
    folder = new_job_folder(logs.resolve() / DOCTOR_FOLDER)
    limited = cluster.model_copy(update={"time": JOB_LIMIT})
    run_as_job(limited, workers, _program(folder, workers), "doctor", folder, console)
    return _examination(folder, workers, cluster.cores_per_worker)


def require_sound_launch(cluster: Cluster, workers: int, logs: Path, console: Console) -> None:
    """Launch the doctor by Slurm; print its verdict and warnings. Raises UserError with all faults."""
    found = examine_cluster(cluster, workers, logs, console)
    if found.findings.faults:
        faults = "\n  ".join([*found.findings.faults, *found.shown_output])
        raise UserError(f"nothing was submitted, since the doctor (doctor = true) finds:\n  {faults}")
    for warning in found.findings.warnings:
        console.print(f"doctor: warning: {warning}")
    console.print(f"doctor: {found.verdict}")


def _program(folder: Path, workers: int) -> list[str]:
    return ["-m", "unet_scaling.doctor", str(folder), str(workers)]


def _examination(folder: Path, workers: int, cores_wanted: int | None) -> Examination:
    try:
        reports = read_reports(folder)
    except ValueError as error:
        raise UserError(f"a report in {folder} cannot be read: {error}") from None
    output = (folder / OUTPUT_NAME).read_text(errors="replace")
    findings = launch_findings(reports, workers, cores_wanted, output)
    shown = output.strip().splitlines()[-SHOWN_OUTPUT_LINES:] if findings.faults else []
    return Examination(reports, findings, verdict(reports, workers, findings), shown)
