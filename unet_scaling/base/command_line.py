"""Parse command lines: every program of the project tells its exit codes, and the option nearest to a slip.

Imported for --help and --version alone, so it needs the standard library only.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from unet_scaling import PROJECT
from unet_scaling.base.errors import EXIT_USAGE, exit_codes_text
from unet_scaling.base.texts import CALLED, COMMAND, clean, did_you_mean

UNRECOGNIZED = "unrecognized arguments: "
INVALID_CHOICE = re.compile("invalid choice: '([^']*)'")


def named_folder(study: str, logs: Path = PROJECT / "logs") -> Path:
    """Return the folder of a study that is given by its name below `logs`, or by its folder."""
    is_name = study.strip("./") == study and (logs / study).is_dir()
    return logs / study if is_name else Path(study)


class CommandLine(argparse.ArgumentParser):
    """A parser with the name of its program, and with the words by which a shell completes it.

    `known` are what its positional argument may be, `names_below` a folder whose subfolders it may name.
    """

    def __init__(self, prog: str, description: str | None, epilog: str = "") -> None:
        called = sys.argv[0]
        is_command = called.startswith(f"{COMMAND} ") and not prog.startswith(called)
        super().__init__(
            prog=called if is_command else prog,
            description=description,
            epilog=f"{epilog}\n{exit_codes_text()}".lstrip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # --repeat 3 is not --repeat-disturbed.
            allow_abbrev=False,
        )
        self.known: Sequence[str] = ()
        self.names_below: Path | None = None

    def words(self) -> list[str]:
        """Return what a shell can complete: long options, choices and subcommands, and all of theirs."""
        found = list(self.known)
        for action in self._actions:
            found += [name for name in action.option_strings if name.startswith("--")]
            if isinstance(action, argparse._SubParsersAction):
                found += [word for parser in action.choices.values() for word in parser.words()]
            found += map(str, action.choices or ())
        return list(dict.fromkeys(found))

    def error(self, message: str) -> NoReturn:
        """Leave with one line: the message of argparse, the nearest known word, and where the help is."""
        slips = message.partition(UNRECOGNIZED)[2].split() or INVALID_CHOICE.findall(message)
        hints = "".join(did_you_mean(slip.partition("=")[0], self.words()) for slip in slips)
        program = self.prog
        if program.startswith(f"{COMMAND} "):
            program = CALLED + program.removeprefix(COMMAND)
        self.exit(EXIT_USAGE, f"error: {clean(message)}; {hints}see {program} --help\n")
