"""Submit a study to Slurm: every run that is missing, failed or interrupted."""

import argparse
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from slurm.cluster import read_cluster
from slurm.commands.options import add_launch, add_study, find_study_folder, new_console
from slurm.commands.status import REFRESH_SECONDS, StatusRow, show_status, study_rows
from slurm.launch.study_folder import Cancellation, CancelledError, logs_folder
from slurm.submit import LaterError, Submitter
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import UserError
from unet_scaling.base.texts import called
from unet_scaling.format.run_state import ACTIVE
from unet_scaling.study.study_file import list_run_folders

# How long to wait for room in the queue, which jobs of other studies may make.
ROOM_LOOK_SECONDS = 300.0
_EPILOG = """\
examples
  unet-scaling submit MY_STUDY.toml --cluster slurm/clusters/MINE.toml --dry-run
  unet-scaling submit MY_STUDY.toml --cluster slurm/clusters/MINE.toml --wait

Submitting again is always safe: only what is missing, failed or interrupted is submitted.
"""


def main() -> None:
    arguments = command_line().parse_args()
    console = new_console()
    folder = find_study_folder(arguments, console)
    cluster = read_cluster(arguments.cluster)
    submitter = Submitter(
        folder=folder,
        cluster=cluster,
        console=console,
        cancellation=Cancellation(folder.path),
        one_allocation=arguments.one_allocation,
        force=tuple(arguments.force),
        repeat_disturbed=arguments.repeat_disturbed,
        repeats_to_add=arguments.more_repeats,
        budget_node_hours=arguments.budget,
    )
    if arguments.dry_run:
        submitter.dry_run(verbose=arguments.verbose)
    elif arguments.wait:
        submit_and_wait(submitter)
    else:
        submitter.submit()
        logs = () if arguments.logs == logs_folder() else ("--logs", arguments.logs)
        console.print(f"watch it with: {called('status', folder.path.name, *logs, '--watch')}")


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling submit", __doc__, _EPILOG)
    add_study(parser)
    where = "where; see slurm/clusters/"
    parser.add_argument("--cluster", type=Path, metavar="CLUSTER.toml", required=True, help=where)
    add_launch(parser)
    wait = "stay until all is done, and report each run as it ends; resubmit what was interrupted"
    parser.add_argument("--wait", action="store_true", help=wait)
    parser.add_argument(
        "--one-allocation", action="store_true", help="all runs in one job, one after the other"
    )
    budget = "refuse to submit runs that may take more node-hours; each submission counts anew"
    parser.add_argument("--budget", type=_node_hours, metavar="HOURS", help=budget)
    parser.add_argument("--verbose", action="store_true", help="with --dry-run: print every script")
    return parser


def _node_hours(text: str) -> float:
    """Return a budget; NaN, with which everything would be within it, is no number of hours."""
    try:
        hours = float(text)
    except ValueError:
        hours = float("nan")
    if not hours > 0:
        raise argparse.ArgumentTypeError(
            f"found {text!r}; allowed: a number of node-hours above 0, such as 40"
        )
    return hours


def submit_and_wait(submitter: Submitter) -> None:
    """Submit, wait, and submit again what was interrupted, until nothing is left to do.

    Raises CancelledError, after the table of all runs, once the study is cancelled.
    """
    try:
        _submit_until_done(submitter)
    except CancelledError:
        show_status(submitter.folder.path, submitter.console, as_json=False, watch=False)
        raise
    rows = show_status(submitter.folder.path, submitter.console, as_json=False, watch=False)
    states = [row.state for row in rows if not row.surplus]
    incomplete = len(states) - states.count("complete")
    if incomplete:
        raise UserError(f"{incomplete} of {len(states)} runs are not complete")


def _submit_until_done(submitter: Submitter) -> None:
    """Submit and wait; runs that Slurm refuses do not keep the others from being waited for.

    Runs that wait for room in the queue follow as others end.
    """
    submitter = replace(submitter, limit_wait_seconds=0)
    while True:
        later: Sequence[str] = ()
        queued = 0
        try:
            queued = submitter.submit()
        except LaterError as error:
            if error.is_elsewhere:
                raise
            submitter.console.print(f"{error}")
            later = error.runs
        except CancelledError:
            raise
        except UserError:
            if list_run_folders(submitter.folder.path):  # a study refused at once has no runs
                wait_for_active(submitter)
            raise
        # Force runs and add repeats only once, not in each round.
        forced = tuple(run for run in submitter.force if run in later)
        submitter = replace(submitter, force=forced, repeats_to_add=0)
        if later:
            wait_for_active(submitter, ROOM_LOOK_SECONDS)
        elif not wait_for_active(submitter) and not queued:
            break


def wait_for_active(submitter: Submitter, seconds: float | None = None) -> bool:
    """Wait until no run is queued or running, and print each as it ends; return whether any was active.

    Runs whose jobs are of another cluster are not waited for: what they wait for may not be seen here.
    With `seconds` only until one has ended, and no longer than that. Raises CancelledError.
    """
    active = _active_here(study_rows(submitter.folder.path))
    waited = 0.0
    was_active = bool(active)
    while active or (seconds is not None and waited == 0):
        submitter.cancellation.require_none()
        time.sleep(REFRESH_SECONDS)
        waited += REFRESH_SECONDS
        rows = study_rows(submitter.folder.path)
        still_active = _active_here(rows)
        _print_ended(submitter.console, rows, active - still_active)
        if seconds is not None and (active - still_active or waited >= seconds):
            break
        active = still_active
    submitter.cancellation.require_none()
    return was_active


def _active_here(rows: Iterable[StatusRow]) -> set[str]:
    return {row.run for row in rows if row.state in ACTIVE and not row.elsewhere}


def _print_ended(console: Console, rows: Sequence[StatusRow], ended: Container[str]) -> None:
    """Print how these runs ended, and how many of the study are complete."""
    wanted = [row for row in rows if not row.surplus]
    complete = sum(row.state == "complete" for row in wanted)
    for row in rows:
        if row.run in ended:
            speed = "" if row.images_per_second is None else f"{row.images_per_second:.1f} images/s"
            facts = speed if row.state == "complete" else row.reason
            told = "; ".join(filter(None, (row.state, facts)))
            console.print(f"[{complete}/{len(wanted)}] {row.run} ... {told}")
