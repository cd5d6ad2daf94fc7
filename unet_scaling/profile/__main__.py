"""The command line of the input profiler; torch is imported only when it runs."""

import argparse
from pathlib import Path

from unet_scaling.study.errors import run_program
from unet_scaling.study.study_file import read_study
from unet_scaling.study.validation import setting

EPILOG = """\
The stages are timed in one process, then real loader processes (0, 1, 2, ... up to the cores this
process may use), then training steps of one plain process on the cores of one worker, with loading
in line and with loading ahead. It takes about a minute; docs/profile.md tells how to read it.
"""


def main() -> None:
    profile(_parser().parse_args())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m unet_scaling.profile",
        description=profile.__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, metavar="STUDY.toml", help="whose first point is profiled")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="TABLE.KEY=VALUE",
        help="replace a value of the study, e.g. data.loading=decode (may be repeated)",
    )
    for name, default, text in (
        ("samples", 128, "images for the stages, in whole batches"),
        ("seconds", 60, "about as long it may take in all"),
        ("workers-per-host", None, "that share the cores here (default: the study's largest that fits)"),
    ):
        shown = text if default is None else f"{text} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=_positive, default=default, metavar="N", help=shown)
    parser.add_argument(
        "--processes",
        type=_counts,
        default=(),
        metavar="N,N,...",
        help="numbers of loader processes to try (default: 0, 1, 2, ... up to the cores)",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json", help="a torch.profiler trace, for Perfetto or TensorBoard"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    return parser


def profile(arguments: argparse.Namespace) -> None:
    """Time every stage of a study's input on this machine, and say what to change."""
    from unet_scaling.profile.profiler import Options, print_profile, profile_study  # torch: not for --help

    study = read_study(arguments.study, dict(arguments.set))
    options = Options(
        samples=arguments.samples,
        seconds=arguments.seconds,
        workers_per_host=arguments.workers_per_host,
        processes=arguments.processes,
        trace=arguments.trace,
        json=arguments.json,
    )
    print_profile(profile_study(study, options), options)


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {text}; a whole number from 1 is expected")
    return number


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_whole(part) for part in text.split(","))


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"found {text!r}; a whole number is expected")
    return int(text)


if __name__ == "__main__":
    run_program(main)
