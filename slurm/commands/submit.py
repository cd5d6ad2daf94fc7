"""Submit a study to Slurm: every run that is missing, failed or interrupted."""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from slurm.cancellation import Cancellation, CancelledError, next_cancellation
from slurm.cluster import read_cluster
from slurm.commands.options import (
    add_launch,
    add_queue,
    add_study,
    estimate_basis,
    new_console,
    study_folder,
)
from slurm.render import Places
from slurm.status import REFRESH_SECONDS, show_status, study_rows
from slurm.submit import Submitter
from unet_scaling.study.command_line import PASTED, CommandLine
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.study.run_state import ACTIVE

_EPILOG = """\
examples
  unet-scaling submit MY_STUDY.toml --cluster slurm/clusters/MINE.toml --dry-run
  unet-scaling submit MY_STUDY.toml --cluster slurm/clusters/MINE.toml --wait

Submitting again is always safe: only what is missing, failed or interrupted is submitted.
"""


def main() -> None:
    submit_to_slurm(command_line().parse_args())


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling submit", __doc__, _EPILOG)
    add_study(parser)
    parser.add_argument(
        "--cluster", type=Path, metavar="CLUSTER.toml", required=True, help="where; see slurm/clusters/"
    )
    add_launch(parser)
    add_queue(parser)
    return parser


def submit_to_slurm(arguments: argparse.Namespace) -> None:
    """Submit the study of the command line, or show every script."""
    submitter = _submitter(arguments)
    if arguments.dry_run:
        submitter.dry_run()
    elif arguments.wait:
        submit_and_wait(submitter)
    else:
        submitter.submit()
        name = submitter.folder.path.name
        submitter.console.print(f"watch it with: {PASTED} status {name} --watch")


def _submitter(arguments: argparse.Namespace) -> Submitter:
    console = new_console()
    folder = study_folder(arguments, console)
    cluster = read_cluster(arguments.cluster)
    return Submitter(
        folder=folder,
        cluster=cluster,
        places=Places(PROJECT, Path(sys.executable)),
        console=console,
        cancellation=next_cancellation(folder.path),
        one_allocation=arguments.one_allocation,
        force=tuple(arguments.force),
        repeat_disturbed=arguments.repeat_disturbed,
        more_repeats=arguments.more_repeats,
        basis=estimate_basis(arguments, folder, cluster.cores_per_worker, on_gpus=bool(cluster.gres)),
        budget_node_hours=arguments.budget,
    )


def submit_and_wait(submitter: Submitter) -> None:
    """Submit, wait, and submit again what was interrupted, until nothing is left to do.

    Raises CancelledError, after the table of all runs, once the study is cancelled.
    """
    try:
        _submit_until_done(submitter)
    except CancelledError:
        show_status(submitter.folder.path, submitter.console, as_json=False, watch=False)
        raise
    _require_complete(submitter)


def _submit_until_done(submitter: Submitter) -> None:
    """Submit and wait; runs that Slurm refuses do not keep the others from being waited for."""
    while True:
        try:
            queued = submitter.submit()
            # Once: a forced run would start anew, and repeats would be added, each time.
            submitter = replace(submitter, force=(), more_repeats=0)
        except CancelledError:
            raise
        except UserError:
            wait_for_active(submitter.folder.path, submitter.cancellation)
            raise
        if not wait_for_active(submitter.folder.path, submitter.cancellation) and not queued:
            break


def _require_complete(submitter: Submitter) -> None:
    rows = study_rows(submitter.folder.path)
    show_status(submitter.folder.path, submitter.console, as_json=False, watch=False)
    states = [row.state for row in rows if not row.surplus]
    incomplete = len(states) - states.count("complete")
    if incomplete:
        raise UserError(f"{incomplete} of {len(states)} runs are not complete")


def wait_for_active(folder: Path, cancellation: Cancellation) -> bool:
    """Wait until no run is queued or running; return whether any was. Raises CancelledError."""
    waited = False
    while any(row.state in ACTIVE for row in study_rows(folder)):
        cancellation.require_none()
        waited = True
        time.sleep(REFRESH_SECONDS)
    cancellation.require_none()
    return waited
