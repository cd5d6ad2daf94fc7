"""Parse command lines: every program of the project tells its exit codes, and the option nearest to a slip.

Imported for --help and --version alone, so it needs the standard library only.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from unet_scaling.interpreter import IS_CLONE
from unet_scaling.study.errors import exit_codes_text

# What the programs are called from; the first word of sys.argv where one of its commands runs.
COMMAND = "unet-scaling"
# How hints name it, so that the line can be pasted at the root of the clone.
PASTED = f".venv/bin/{COMMAND}" if IS_CLONE else COMMAND
UNRECOGNIZED = "unrecognized arguments: "
# Where no study is at hand.
LAUNCH_HINT = f"{PASTED} run STUDY.toml (on Slurm: submit)"


def check_command(folder: object) -> str:
    """Return the command that verifies a data folder and writes its manifest."""
    return f"{PASTED} data check {folder}"


def launch_command(study: str, cluster: str | None = None) -> str:
    """Return the command that runs what is missing of a study, here or, with a cluster file, on Slurm."""
    if cluster is None:
        return f"{PASTED} run {study}"
    return f"{PASTED} submit {study} --cluster {cluster}"


class CommandLine(argparse.ArgumentParser):
    """A parser that knows what its program is called, and what its words can be completed to.

    `words` are what its positional argument may be, `names_below` a folder whose subfolders it may name.
    """

    def __init__(self, prog: str, description: str | None, epilog: str = "") -> None:
        codes = exit_codes_text()
        super().__init__(
            prog=_called(prog),
            description=description,
            epilog=f"{epilog.rstrip()}\n\n{codes}" if epilog else codes,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.words: Sequence[str] = ()
        self.names_below: Path | None = None

    def options(self) -> list[str]:
        """Return the long options, of subcommands too."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        return list(dict.fromkeys(known + [name for sub in self.subcommands().values() for name in sub]))

    def subcommands(self) -> dict[str, list[str]]:
        """Return the long options of each subcommand that was added to this parser."""
        groups = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return {
            name: [option for option in parser._option_string_actions if option.startswith("--")]
            for group in groups
            for name, parser in group.choices.items()
        }

    def error(self, message: str) -> NoReturn:
        """Leave with the message of argparse and, for an unknown option, the nearest known one."""
        super().error(message + self._nearest(message))

    def _nearest(self, message: str) -> str:
        if not message.startswith(UNRECOGNIZED):
            return ""
        slips = [word.partition("=")[0] for word in message.removeprefix(UNRECOGNIZED).split()]
        near = [match for slip in slips for match in difflib.get_close_matches(slip, self.options(), n=1)]
        return f"; did you mean {' '.join(near)}?" if near else ""


def _called(program: str) -> str:
    """Return what the user called this program by: one of the commands of `unet-scaling`, or its own name."""
    called = sys.argv[0]
    return program if program.startswith(called) or not called.startswith(f"{COMMAND} ") else called
