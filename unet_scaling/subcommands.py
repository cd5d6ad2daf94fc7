"""The subcommands of `unet-scaling`: one table, each a program of its own.

A subcommand's module has `main`, which reads sys.argv, and `command_line`, its parser. It is imported only
when it is called, so that --help and --version need neither torch nor pandas.
"""

import difflib
import importlib
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from unet_scaling.interpreter import CODE_FOLDER, IS_CLONE
from unet_scaling.study.command_line import COMMAND
from unet_scaling.study.errors import EXIT_OK, EXIT_USAGE, UserError, exit_codes_text

PROJECT_FILE = CODE_FOLDER / "pyproject.toml"


@dataclass(frozen=True)
class Subcommand:
    """A subcommand, the module that it is, and what it does."""

    name: str
    module: str
    about: str


SUBCOMMANDS = (
    Subcommand(
        "check", "slurm.commands.check", "try the installation, and what a study or cluster file needs"
    ),
    Subcommand("new", "slurm.commands.new", "write a study and a cluster file for this machine or cluster"),
    Subcommand("data", "unet_scaling.data.__main__", "verify, fetch or make images"),
    Subcommand(
        "profile", "unet_scaling.profile.__main__", "time the input of a study, and say what limits it"
    ),
    Subcommand("run", "slurm.commands.run", "run a study on this machine, without Slurm"),
    Subcommand("submit", "slurm.commands.submit", "submit a study to Slurm"),
    Subcommand("status", "slurm.commands.status", "one table of all runs of a study"),
    Subcommand("cancel", "slurm.commands.cancel", "end the jobs of a study, and no others"),
    Subcommand(
        "doctor", "slurm.commands.doctor", "launch workers for half a minute, and say what is wrong with them"
    ),
    Subcommand("report", "analysis.__main__", "write the report of a study"),
    Subcommand("compare", "analysis.compare.command", "compare two studies"),
    Subcommand(
        "predict", "analysis.predict_command", "predict larger worker counts before they are measured"
    ),
    Subcommand("explain", "slurm.commands.explain", "explain a key of a study or cluster file"),
    Subcommand("completion", "unet_scaling.completion", "print what lets bash or zsh complete this command"),
)
USAGE = f"""\
usage: {COMMAND} COMMAND [options]
       {COMMAND} --help | --version

Does native DDP or Horovod train this U-Net faster, on how many GPUs, at what cost in IoU, and why.

commands
{{}}

{COMMAND} COMMAND --help explains a command.
"""


def main() -> int | None:
    """Run the subcommand that the command line names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("", "-h", "--help"):
        print(usage())
        return EXIT_OK if name else EXIT_USAGE
    if name == "--version":
        print(f"{COMMAND} {version()}")
        return EXIT_OK
    subcommand = find_subcommand(name)
    sys.argv = [f"{COMMAND} {name}", *sys.argv[2:]]
    program: Callable[[], int | None] = importlib.import_module(subcommand.module).main
    return program()


def find_subcommand(name: str) -> Subcommand:
    """Return the subcommand of this name; raises UserError with the nearest for an unknown one."""
    known = {subcommand.name: subcommand for subcommand in SUBCOMMANDS}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    if name.endswith(".toml"):
        hint = f"did you mean {COMMAND} run {name}, or submit? "
    raise UserError(f"{COMMAND} {name}: no such command; {hint}commands: {', '.join(known)}")


def usage() -> str:
    """Return the text of --help."""
    width = max(len(subcommand.name) for subcommand in SUBCOMMANDS)
    lines = [f"  {subcommand.name:{width}}  {subcommand.about}" for subcommand in SUBCOMMANDS]
    return USAGE.format("\n".join(lines)) + f"\n{exit_codes_text()}"


def version() -> str:
    """Return the version of the project: of a clone, as its pyproject.toml has it."""
    if not IS_CLONE:
        return metadata.version("unet-scaling")
    return str(tomllib.loads(PROJECT_FILE.read_text())["project"]["version"])
