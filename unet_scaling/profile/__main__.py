"""Command line of the input profiler."""

from pathlib import Path

from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import run_program
from unet_scaling.base.validation import add_settings, positive
from unet_scaling.study.study_file import read_study

_EPILOG = """\
Times the stages of loading in one process, then training steps on the cores of one worker, without and with
1, 2, 4, ... loader processes on the same cores. Takes about a minute; docs/profile.md explains the output.
"""


def main() -> None:
    """Time every stage of a study's input on this machine, and recommend what to change."""
    arguments = vars(command_line().parse_args())
    # Imports torch, which --help does not need.
    from unet_scaling.profile.findings import print_profile
    from unet_scaling.profile.measure import profile_study

    study = read_study(arguments.pop("study"), dict(arguments.pop("set")))
    print_profile(profile_study(study, **arguments))


def command_line() -> CommandLine:
    parser = CommandLine("python -m unet_scaling.profile", main.__doc__, _EPILOG)
    parser.add_argument("study", type=Path, metavar="STUDY.toml", help="its first configuration is profiled")
    add_settings(parser)
    fitting = "workers that share these cores (default: the most of the study that fit)"
    for name, default, text in (
        ("samples", 128, "images to load, in whole batches (default: %(default)s)"),
        ("seconds", 60, "approximate duration (default: %(default)s)"),
        ("workers-per-host", None, fitting),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, metavar="N", help=text)
    return parser


if __name__ == "__main__":
    run_program(main)
