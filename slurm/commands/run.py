"""Run a study on this machine without Slurm: every run that is missing, failed or interrupted."""

import argparse
import os
import sys

from rich.console import Console

from slurm.commands.options import add_launch, add_study, estimate_basis, new_console, study_folder
from slurm.cost import local_time
from slurm.estimate import measures_all
from slurm.local import StudyStoppedError, run_study
from slurm.local_plan import cores_per_worker, local_plan
from slurm.study_folder import StudyFolder
from unet_scaling.study.command_line import CommandLine

_EPILOG = """\
examples
  unet-scaling run slurm/studies/demo.toml --dry-run
  unet-scaling run MY_STUDY.toml --set training.epochs=3 --name trial

The same command again runs only what is missing, failed or interrupted.
"""


def main() -> int | None:
    try:
        run_on_this_machine(command_line().parse_args())
    except StudyStoppedError as stopped:  # as asked: no error
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    return None


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling run", __doc__, _EPILOG)
    add_study(parser)
    add_launch(parser)
    return parser


def run_on_this_machine(arguments: argparse.Namespace) -> None:
    """Run the study of the command line, or show what would run."""
    console = new_console()
    folder = study_folder(arguments, console)
    if arguments.dry_run or arguments.probe or arguments.estimate_from:
        _show_plan(folder, console, arguments)
    if not arguments.dry_run:
        run_study(folder, console, arguments.repeat_disturbed, arguments.force, arguments.more_repeats)


def _show_plan(folder: StudyFolder, console: Console, arguments: argparse.Namespace) -> None:
    """Print what would run, and how long it takes: the complete runs' answer, the estimate's, or both.

    An estimate stands alone where the complete runs do not tell it of all points. There is none where every
    point has complete runs and no other source is asked for.
    """
    plan = local_plan(folder, console, arguments.repeat_disturbed, arguments.force)
    asked = arguments.probe or arguments.estimate_from
    basis = plan.basis
    if asked:
        basis = estimate_basis(
            arguments, folder, cores_per_worker(folder.study, len(os.sched_getaffinity(0)))
        )
    estimated = basis and plan.wanted and (asked or not measures_all(plan.wanted, basis))
    estimate = local_time(plan.wanted, basis) if basis and estimated else ""
    if arguments.dry_run:
        plan.show(console)
        foreseen = plan.known.foreseen_text(plan.wanted)
        if plan.wanted and (foreseen.of_all or not estimate):
            console.print(foreseen.text, markup=False)
    if estimate:
        console.print(estimate, markup=False)
