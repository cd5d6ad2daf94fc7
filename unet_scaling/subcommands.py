"""The subcommands of `unet-scaling`: one table, each a program of its own.

A subcommand's module has `main`, which reads sys.argv, and `command_line`, its parser. It is imported only
when it is called, so that --help and --version need neither torch nor pandas.
"""

import signal
import sys
import tomllib
from typing import Any

from unet_scaling import CODE_FOLDER, IS_CLONE
from unet_scaling.base.errors import (
    EXIT_OK,
    EXIT_USAGE,
    UserError,
    exit_codes_text,
    required_module,
)
from unet_scaling.base.texts import COMMAND, did_you_mean

# The module of each, and what it does.
_OF_FULL_CHECKOUT = {
    "check": ("slurm.commands.check", "try the installation, and what a study or cluster file needs"),
    "new": ("slurm.commands.new", "write a study and a cluster file for this machine or cluster"),
    "data": ("unet_scaling.data.__main__", "verify, fetch or make images"),
    "profile": ("unet_scaling.profile.__main__", "time the input of a study, and say what limits it"),
    "run": ("slurm.commands.run", "run a study on this machine, without Slurm"),
    "submit": ("slurm.commands.submit", "submit a study to Slurm"),
    "status": ("slurm.commands.status", "one table of all runs of a study, or of all studies"),
    "cancel": ("slurm.commands.cancel", "cancel the jobs of a study, and no others"),
    "doctor": ("slurm.commands.doctor", "test launcher and network for half a minute"),
    "report": ("analysis.__main__", "write the report of a study"),
    "segment": ("slurm.commands.segment", "masks of a folder of images, by the network of a run"),
    "serve": ("unet_scaling.inference.serve", "serve the network of a run over HTTP"),
    "compare": ("analysis.compare.command", "compare two studies"),
    "predict": ("analysis.predict.command", "predict larger worker counts before they are measured"),
    "explain": ("slurm.commands.explain", "explain a key of a study or cluster file"),
    "completion": ("unet_scaling.completion", "print what lets bash or zsh complete this command"),
}
# A capability that was taken away has no command.
SUBCOMMANDS = {
    name: (module, about)
    for name, (module, about) in _OF_FULL_CHECKOUT.items()
    if (CODE_FOLDER / module.replace(".", "/")).with_suffix(".py").exists()
}
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
    program = module_of(name).main
    if callable(signal.getsignal(signal.SIGINT)):  # that of __main__.py, for the time of imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [f"{COMMAND} {name}", *sys.argv[2:]]
    code: int | None = program()
    return code


def module_of(name: str) -> Any:  # noqa: ANN401  (a module, each with a `main` of its own)
    """Return the module of this subcommand; raises UserError with the nearest for an unknown one."""
    if name in _OF_FULL_CHECKOUT:
        return required_module(_OF_FULL_CHECKOUT[name][0], f"{COMMAND} {name}")
    hint = did_you_mean(name, [*SUBCOMMANDS, "--help", "--version"])
    if name.endswith(".toml"):
        hint = f"did you mean {COMMAND} run {name}, or submit? "
    raise UserError(f"{COMMAND} {name}: no such command; {hint}commands: {', '.join(SUBCOMMANDS)}")


def usage() -> str:
    """Return the text of --help."""
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:{width}}  {about}" for name, (_, about) in SUBCOMMANDS.items()]
    return USAGE.format("\n".join(lines)) + f"\n{exit_codes_text()}"


def version() -> str:
    """Return the version of the project: of a clone, as its pyproject.toml has it."""
    if not IS_CLONE:
        from importlib import metadata  # slow: --help does without

        return metadata.version("unet-scaling")
    return str(tomllib.loads((CODE_FOLDER / "pyproject.toml").read_text())["project"]["version"])
