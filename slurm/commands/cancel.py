"""End the jobs of a study that are queued or running, and no others; submissions that wait stop."""

from slurm.commands.options import add_submitted_study, new_console, submitted_study
from slurm.status import cancel_study
from unet_scaling.study.command_line import CommandLine


def main() -> None:
    cancel_study(submitted_study(command_line().parse_args()), new_console())


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling cancel", __doc__)
    add_submitted_study(parser)
    return parser
