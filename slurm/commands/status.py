"""Show one table of all runs of a study, and why a run is not complete."""

from slurm.commands.options import add_submitted_study, new_console, submitted_study
from slurm.status import show_status
from unet_scaling.study.command_line import CommandLine


def main() -> None:
    arguments = command_line().parse_args()
    show_status(submitted_study(arguments), new_console(), arguments.json, arguments.watch)


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling status", __doc__)
    add_submitted_study(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    form.add_argument("--watch", action="store_true", help="refresh until no run is queued or running")
    return parser
