"""Submit a study: `slurm/submission.sh STUDY.toml`."""

import argparse
import json
import tomllib
from pathlib import Path

from rich.console import Console

from slurm.local import run_study
from slurm.study_folder import StudyFolder, logs_folder
from unet_scaling.config import read_study
from unet_scaling.errors import UserError, run_program


def main() -> None:
    arguments = parse_arguments()
    study = read_study(arguments.study, dict(arguments.set), arguments.name)
    folder = StudyFolder(arguments.logs / study.name, study)
    if not arguments.local:
        raise UserError("say where to run: --local runs the study on this machine")
    run_study(folder, Console(highlight=False, soft_wrap=True))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="slurm/submission.sh",
        description="Run every repeat of every point of a study. Running it again runs only what is missing.",
        epilog="example: slurm/submission.sh slurm/studies/demo.toml --local",
    )
    parser.add_argument("study", type=Path, metavar="STUDY.toml", help="what to measure; see slurm/studies/")
    parser.add_argument(
        "--local", action="store_true", help="run on this machine with mpiexec, without Slurm"
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
        help="replace a value of the study, e.g. --set training.epochs=3 (may be given again)",
    )
    return parser.parse_args()


def setting(text: str) -> tuple[str, object]:
    """`training.epochs=3` as ("training.epochs", 3): the value is TOML, or else a plain text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not TABLE.KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, tomllib.loads(f"value = {json.dumps(value)}")["value"]


if __name__ == "__main__":
    run_program(main)
