"""Run a study on this machine without Slurm: every run that is missing, failed or interrupted."""

import argparse
import os

from rich.console import Console

from slurm.commands.options import add_launch, add_study, estimate_basis, new_console, study_folder
from slurm.cost import local_time
from slurm.estimate import measures_all
from slurm.local import run_study
from slurm.local_plan import cores_per_worker, show_plan
from slurm.study_folder import StudyFolder, in_launch_order
from unet_scaling.study.command_line import CommandLine

_EPILOG = """\
examples
  unet-scaling run slurm/studies/demo.toml --dry-run
  unet-scaling run MY_STUDY.toml --set training.epochs=3 --name trial

The same command again runs only what is missing, failed or interrupted.
"""


def main() -> None:
    run_on_this_machine(command_line().parse_args())


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling run", __doc__, _EPILOG)
    add_study(parser)
    add_launch(parser)
    return parser


def run_on_this_machine(arguments: argparse.Namespace) -> None:
    """Run the study of the command line, or show what would run."""
    console = new_console()
    folder = study_folder(arguments, console)
    estimated = bool(arguments.probe or arguments.estimate_from)
    if arguments.dry_run:
        show_plan(folder, console, arguments.repeat_disturbed, arguments.force, foresee=not estimated)
    if arguments.dry_run or estimated:
        _print_estimate(folder, console, arguments)
    if not arguments.dry_run:
        run_study(folder, console, arguments.repeat_disturbed, arguments.force, arguments.more_repeats)


def _print_estimate(folder: StudyFolder, console: Console, arguments: argparse.Namespace) -> None:
    """Print how long the runs take that are not complete, where anything is known of their speed.

    The plan itself says so where every point has complete runs.
    """
    share = cores_per_worker(folder.study, len(os.sched_getaffinity(0)))
    basis = estimate_basis(arguments, folder, share)
    configs = [
        config
        for config in in_launch_order(folder.study)
        if config.run in arguments.force or not folder.recorded(config).state.is_complete
    ]
    asked = arguments.probe or arguments.estimate_from
    if basis and configs and (asked or not measures_all(configs, basis)):
        console.print(local_time(configs, basis), markup=False)
