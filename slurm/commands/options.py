"""Options that the commands on studies share, and what they name: a study, its folder, a console."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from slurm.launch.preflight import require_throughput
from slurm.launch.study_folder import LOCK_NAME, StudyFolder, logs_folder, open_study_folder
from unet_scaling.base.command_line import CommandLine, named_folder
from unet_scaling.base.console import CleanConsole
from unet_scaling.base.errors import UserError
from unet_scaling.base.texts import did_you_mean
from unet_scaling.base.validation import add_settings, positive
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.study.near_paths import describe_no_study
from unet_scaling.study.study_file import STUDY_NAME, list_run_folders, read_study

# The width of lines that go into a file or pipe.
PIPE_WIDTH_CHARACTERS = 160
# The most studies that a message names.


def add_study(parser: CommandLine, optional: bool = False) -> None:
    """Add the study file, and the option that replaces some of its values."""
    what = "what to measure; see slurm/studies/"
    parser.add_argument("study", type=Path, nargs="?" if optional else None, metavar="STUDY.toml", help=what)
    add_settings(parser)


def add_launch(parser: CommandLine) -> None:
    """Add the options that say which runs of a study to launch, and where its folder is."""
    add = parser.add_argument
    add("--dry-run", action="store_true", help="print what would run and the cost; start nothing")
    forced = "run this run in any case, also a complete one (may be repeated)"
    add("--force", action="append", default=[], metavar="RUN", help=forced)
    disturbed = "launch complete runs again that other programs or a stall disturbed"
    add("--repeat-disturbed", action="store_true", help=disturbed)
    more = "add N repeats to a complete study"
    add("--more-repeats", type=positive, default=0, metavar="N", help=more)
    add("--name", help="folder below logs/ (default: the study's name)")
    add_logs(parser)


def add_logs(parser: CommandLine) -> None:
    where = "where study folders are (default: logs)"
    parser.add_argument("--logs", type=Path, default=logs_folder(), help=where)


def add_submitted_study(parser: CommandLine, *, optional: bool = False) -> None:
    """Add the name of a study that has a folder already; where it is optional, none stands for all."""
    what = "name of a study below logs/, or its folder" + ("; without one all are listed" if optional else "")
    parser.add_argument("study", nargs="?" if optional else None, help=what)
    parser.names_below = logs_folder()
    add_logs(parser)


def find_submitted_study(arguments: argparse.Namespace, unbegun: str = "") -> Path:
    """Return the folder of the study that `add_submitted_study` asked for; raises UserError for none.

    `unbegun` is said in place of how a study is begun.
    """
    folder = named_folder(arguments.study, arguments.logs)
    marks = (STUDY_NAME, LOCK_NAME, f"*/{RECORD_NAME}")
    if not any(next(folder.glob(mark), None) for mark in marks) and not list_run_folders(folder):
        raise UserError(describe_no_study(folder, arguments.logs, unbegun))
    return folder


def given_values(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the values that --set gives. Raises UserError for a key that is given twice."""
    given = [key for key, _ in arguments.set]
    given += ["name"] * (getattr(arguments, "name", None) is not None)
    for key in given:
        if given.count(key) > 1:
            raise UserError(f"--set {key}=...: {key} is given twice on the command line; leave one out")
    return dict(arguments.set)


def find_study_folder(arguments: argparse.Namespace, console: Console) -> StudyFolder:
    """Return the folder of the study of the command line. Raises UserError for options that contradict."""
    for other in ("more_repeats", "wait"):
        if arguments.dry_run and getattr(arguments, other, False):
            raise UserError(f"--dry-run starts nothing: leave --{other.replace('_', '-')} out")
    if arguments.repeat_disturbed and getattr(arguments, "keep_disturbed", False):
        raise UserError("--keep-disturbed keeps what --repeat-disturbed launches again: leave one out")
    study = read_study(arguments.study, given_values(arguments), arguments.name)
    require_throughput(study)
    folder = open_study_folder(arguments.logs / study.name, study)
    known = folder.study.run_names() if arguments.force else []  # including added repeats
    for run in arguments.force:
        if run not in known:
            hint = did_you_mean(run, known) or f"it has {known[0]}, ..."
            raise UserError(f"--force {run}: study {study.name} has no such run; {hint.strip()}")
    if folder.study.name != study.name:
        console.print(f"{folder.path} was renamed: its runs go on as those of study {folder.study.name}")
    return folder


def new_console() -> Console:
    """Return a console that takes no text for markup; lines in a file or pipe have a fixed width."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH_CHARACTERS
    return CleanConsole(markup=False, highlight=False, soft_wrap=True, width=width)
