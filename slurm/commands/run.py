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
    if arguments.dry_run:
        _print_plan(folder, console, arguments)
        return
    if arguments.probe or arguments.estimate_from:
        _print_lines(console, _estimate(folder, arguments))
    run_study(folder, console, arguments.repeat_disturbed, arguments.force, arguments.more_repeats)


def _print_plan(folder: StudyFolder, console: Console, arguments: argparse.Namespace) -> None:
    """Print what would run, and how long it takes: the complete runs' answer, the estimate's, or both.

    An estimate stands alone where the complete runs do not tell it of all points.
    """
    foreseen = show_plan(folder, console, arguments.repeat_disturbed, arguments.force)
    estimate = _estimate(folder, arguments)
    if foreseen and (foreseen.of_all or not estimate):
        _print_lines(console, foreseen.text)
    _print_lines(console, estimate)


def _print_lines(console: Console, text: str) -> None:
    if text:
        console.print(text, markup=False)


def _estimate(folder: StudyFolder, arguments: argparse.Namespace) -> str:
    """Return how long the runs take that are not complete, where anything is known of their speed.

    Empty where every point has complete runs, which say so themselves, and no other source is asked for.
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
        return local_time(configs, basis)
    return ""
