"""Command line of the input profiler."""

import argparse
from pathlib import Path
from typing import Any

from unet_scaling.study.command_line import CommandLine
from unet_scaling.study.errors import run_program
from unet_scaling.study.study_file import read_study
from unet_scaling.study.validation import setting

_EPILOG = """\
Times the stages of loading in one process, then 0, 1, 2, ... loader processes up to the cores this process
may use, then training steps on the cores of one worker without and with prefetch. Takes about a minute;
docs/profile.md explains the output.
"""


def main() -> None:
    profile(vars(command_line().parse_args()))


def profile(arguments: dict[str, Any]) -> None:
    """Time every stage of a study's input on this machine, and recommend what to change."""
    # Imports torch, which --help does not need.
    from unet_scaling.profile.profiler import ProfileOptions, profile_study
    from unet_scaling.profile.show import print_profile

    study = read_study(arguments.pop("study"), dict(arguments.pop("set")))
    print_profile(profile_study(study, ProfileOptions(**arguments)))


def command_line() -> CommandLine:
    parser = CommandLine("python -m unet_scaling.profile", profile.__doc__, _EPILOG)
    parser.add_argument("study", type=Path, metavar="STUDY.toml", help="its first configuration is profiled")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="TABLE.KEY=VALUE",
        help="replace a value of the study, e.g. data.loading=decode (may be repeated)",
    )
    for name, default, text in (
        ("samples", 128, "images to load, in whole batches (default: %(default)s)"),
        ("seconds", 60, "approximate duration (default: %(default)s)"),
        (
            "workers-per-host",
            None,
            "workers that share these cores (default: the most of the study that fit)",
        ),
    ):
        parser.add_argument(f"--{name}", type=_positive, default=default, metavar="N", help=text)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; an integer of at least 1 is expected")
    return int(text)


if __name__ == "__main__":
    run_program(main)
