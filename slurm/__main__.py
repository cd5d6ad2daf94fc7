"""Submit, watch and cancel studies: what slurm/submission.sh runs."""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from slurm.cluster import read_cluster
from slurm.local import run_study
from slurm.local_plan import show_plan
from slurm.preflight import require_known, require_throughput
from slurm.render import Places
from slurm.status import REFRESH_SECONDS, cancel_study, show_status, study_rows
from slurm.study_folder import StudyFolder, logs_folder, open_study_folder
from slurm.submit import Submitter
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError, run_program
from unet_scaling.study.run_state import ACTIVE
from unet_scaling.study.study_file import read_study
from unet_scaling.study.validation import positive, setting

# Of lines that go into a file or pipe.
PIPE_WIDTH_CHARACTERS = 160
# Options that exclude each other, and why.
CONFLICTS = (
    ("local", "wait", "--local always stays until all runs are over; leave --wait out"),
    ("local", "one_allocation", "an allocation is a job of Slurm; leave one of them out"),
    ("dry_run", "more_repeats", "a dry run adds nothing; leave one of them out"),
    ("dry_run", "wait", "a dry run starts nothing to wait for; leave one of them out"),
)
PROGRAM = "slurm/submission.sh"
_EPILOG = f"""\
examples
  {PROGRAM} slurm/studies/demo.toml --local
  {PROGRAM} MY_STUDY.toml --cluster slurm/clusters/MINE.toml --dry-run
  {PROGRAM} MY_STUDY.toml --cluster slurm/clusters/MINE.toml --wait
  {PROGRAM} status MY_STUDY        one table of all runs; --json, --watch
  {PROGRAM} cancel MY_STUDY        end this study's jobs, and no others

Submitting again is always safe: only what is missing, failed or interrupted is submitted.
"""


def main() -> None:
    console = Console(
        highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH_CHARACTERS
    )
    if sys.argv[1:2] in (["status"], ["cancel"]):
        show_or_cancel(sys.argv[1], console)
        return
    arguments = submission_arguments()
    require_compatible(arguments)
    folder = _study_folder(arguments, console)
    if not arguments.local:
        _submit(folder, arguments, console)
    elif arguments.dry_run:
        show_plan(folder, console, arguments.repeat_disturbed, arguments.force)
    else:
        run_study(folder, console, arguments.repeat_disturbed, arguments.force, arguments.more_repeats)


def _study_folder(arguments: argparse.Namespace, console: Console) -> StudyFolder:
    """Return the folder of the study that is named by the command line."""
    study = read_study(arguments.study, dict(arguments.set), arguments.name)
    require_throughput(study)
    folder = open_study_folder(arguments.logs / study.name, study)
    require_known(folder.study, arguments.force)  # with the repeats that were added
    if folder.study.name != study.name:
        console.print(f"{folder.path} was renamed: its runs go on as those of study {folder.study.name}")
    return folder


def _submit(folder: StudyFolder, arguments: argparse.Namespace, console: Console) -> None:
    submitter = Submitter(
        folder=folder,
        cluster=read_cluster(arguments.cluster),
        places=Places(PROJECT, Path(sys.executable)),
        console=console,
        one_allocation=arguments.one_allocation,
        force=tuple(arguments.force),
        repeat_disturbed=arguments.repeat_disturbed,
        more_repeats=arguments.more_repeats,
    )
    if arguments.dry_run:
        submitter.dry_run()
    elif arguments.wait:
        submit_and_wait(submitter)
    else:
        submitter.submit()
        console.print(f"watch it with: {PROGRAM} status {folder.path.name} --watch")


def require_compatible(arguments: argparse.Namespace) -> None:
    """Raise UserError for options of which one would have to be ignored."""
    for one, other, advice in CONFLICTS:
        if getattr(arguments, one) and getattr(arguments, other):
            names = " and ".join("--" + name.replace("_", "-") for name in (one, other))
            raise UserError(f"{names} do not go together: {advice}")
    keys = [key for key, _ in arguments.set] + ["name"] * (arguments.name is not None)
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"--set {key}=...: {key} is given twice on the command line; leave one out")


def submit_and_wait(submitter: Submitter) -> None:
    """Submit, wait, and submit again what was interrupted, until nothing is left to do.

    Runs that Slurm refuses do not keep the others from being waited for.
    """
    while True:
        try:
            queued = submitter.submit()
            submitter = replace(
                submitter, force=(), more_repeats=0
            )  # once; else a forced run would start anew each time
        except UserError:
            wait_for_active(submitter.folder.path)
            raise
        if not wait_for_active(submitter.folder.path) and not queued:
            break
    rows = study_rows(submitter.folder.path)
    show_status(submitter.folder.path, submitter.console, as_json=False, watch=False)
    states = [row.state for row in rows if not row.surplus]
    incomplete = len(states) - states.count("complete")
    if incomplete:
        raise UserError(f"{incomplete} of {len(states)} runs are not complete")


def wait_for_active(folder: Path) -> bool:
    """Wait until no run is queued or running; return whether any was."""
    waited = False
    while any(row.state in ACTIVE for row in study_rows(folder)):
        waited = True
        time.sleep(REFRESH_SECONDS)
    return waited


def show_or_cancel(command: str, console: Console) -> None:
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {command}")
    parser.add_argument("study", help="name of a study below logs/, or its folder")
    parser.add_argument("--logs", type=Path, default=logs_folder(), help="where study folders are")
    if command == "status":
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="a list of objects instead of a table")
        form.add_argument("--watch", action="store_true", help="refresh until no run is queued or running")
    arguments = parser.parse_args(sys.argv[2:])
    named = arguments.logs / arguments.study
    folder = named if named.is_dir() else Path(arguments.study)
    if command == "status":
        show_status(folder, console, arguments.json, arguments.watch)
    else:
        cancel_study(folder, console)


def submission_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Run every run of a study that is missing, failed or interrupted.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, metavar="STUDY.toml", help="what to measure; see slurm/studies/")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--cluster", type=Path, metavar="CLUSTER.toml", help="submit to Slurm; see slurm/clusters/"
    )
    where.add_argument("--local", action="store_true", help="run on this machine with mpiexec, without Slurm")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would run and the cost; start nothing"
    )
    parser.add_argument(
        "--wait", action="store_true", help="stay until all is done; resubmit what was interrupted"
    )
    parser.add_argument(
        "--one-allocation", action="store_true", help="all runs in one job, one after the other"
    )
    parser.add_argument(
        "--force",
        action="append",
        default=[],
        metavar="RUN",
        help="run this run in any case, also a complete one (may be repeated)",
    )
    parser.add_argument(
        "--repeat-disturbed",
        action="store_true",
        help="launch complete runs again that other programs or a stall disturbed",
    )
    parser.add_argument(
        "--more-repeats", type=positive, default=0, metavar="N", help="add N repeats to a complete study"
    )
    parser.add_argument("--name", help="folder below logs/ (default: the study's name)")
    parser.add_argument(
        "--logs", type=Path, default=logs_folder(), help="where study folders are (default: logs)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="TABLE.KEY=VALUE",
        help="replace a value of the study, e.g. training.epochs=3 (may be repeated)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    run_program(main)
