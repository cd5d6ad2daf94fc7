"""Run a study on this machine without Slurm: every run that is missing, failed or interrupted."""

import argparse

from slurm.commands.options import add_launch, add_study, new_console, study_folder
from slurm.local import run_study
from slurm.local_plan import show_plan
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
        show_plan(folder, console, arguments.repeat_disturbed, arguments.force)
    else:
        run_study(folder, console, arguments.repeat_disturbed, arguments.force, arguments.more_repeats)
