"""Command line of slurm/virtual_cluster: its options, and the plan that they ask for."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm.virtual.plan import DEFAULT_STATE, MOST_HOSTS, Plan
from unet_scaling.study.command_line import CommandLine

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

# slurm.conf knows no quoting and a socket's path is short, so the folder's name is kept plain and short.
PLAIN_FOLDER = re.compile(r"/[A-Za-z0-9._/+-]{1,80}")
RATE = re.compile(r"[1-9][0-9]*(\.[0-9]+)?(k|m|g)?bit")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SETTING = re.compile(r"[A-Za-z]+=[^\s#]+")
# Of one core: the kernel gives at least a millisecond of a processor, in at most a second.
LARGEST_DILATION_FACTOR = 1000
PURPOSES = {
    "up": "bring the cluster up and wait until every node is idle",
    "down": "take it down, also after a crash; nothing is left behind",
    "status": "one line per host",
    "env": "print what makes sbatch, squeue, sinfo and srun of this shell talk to it",
    "stop": "cut the power of a node; of controller or database terminate the daemon only",
    "start": "start what was stopped, and wait until Slurm uses it",
    "exec": "run a command inside a host, such as: exec node1 -- hostname",
}


def command_line() -> CommandLine:
    """Return the parser of the command line; `verb` holds the command."""
    parser = CommandLine(
        "slurm/virtual_cluster",
        "A real Slurm of several hosts on one Linux machine, to rehearse studies on. Needs root.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    for verb, purpose in PURPOSES.items():
        sub = verbs.add_parser(verb, help=purpose, description=purpose)
        sub.add_argument(
            "--state-dir", type=_folder, default=DEFAULT_STATE, metavar="DIR", help="its files (%(default)s)"
        )
        if verb == "up":
            _add_sizes(sub)
            _add_choices(sub)
        if verb in ("stop", "start", "exec"):
            sub.add_argument("host", help="node1, node2, ..., controller or database")
        if verb == "exec":
            sub.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the cluster that `up` was asked for."""
    return Plan(
        state=arguments.state_dir,
        hosts=arguments.hosts,
        gpus_per_host=arguments.gpus_per_host,
        cores_per_host=arguments.cores_per_host,
        link_rate=arguments.link_rate,
        partitions=tuple(arguments.partition or Plan.partitions),
        accounting=arguments.accounting,
        settings=tuple(arguments.set),
        dilation=arguments.dilate,
    )


def _add_sizes(sub: argparse.ArgumentParser) -> None:
    sizes = {
        "--hosts": (1, MOST_HOSTS, Plan.hosts, "number of nodes"),
        "--gpus-per-host": (0, 64, Plan.gpus_per_host, "GPUs that each node offers"),
        "--cores-per-host": (1, 1024, Plan.cores_per_host, "cores that each node claims to have"),
    }
    for option, (low, high, default, purpose) in sizes.items():
        sub.add_argument(
            option, type=_between(low, high), default=default, metavar="N", help=f"{purpose} (%(default)s)"
        )


def _add_choices(sub: argparse.ArgumentParser) -> None:
    rate = _matching(RATE, "a rate such as 1gbit or 200mbit")
    sub.add_argument(
        "--link-rate",
        type=rate,
        metavar="RATE",
        help="both ways, of every node, before it is slowed (default: not limited)",
    )
    sub.add_argument(
        "--dilate",
        type=_factor,
        default=Plan.dilation,
        metavar="K",
        help="slow cores, links and time-outs K-fold, so that many workers fit on few cores (1: not slowed)",
    )
    name = _matching(NAME, "letters, digits, . _ -")
    sub.add_argument(
        "--partition",
        type=name,
        action="append",
        metavar="NAME",
        help="repeatable; first is default (virtual)",
    )
    setting = _matching(SETTING, "KEY=VALUE without blanks")
    sub.add_argument(
        "--set",
        type=lambda text: tuple(setting(text).split("=", 1)),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a line of slurm.conf, such as MinJobAge=10; repeatable",
    )
    sub.add_argument(
        "--accounting", action="store_true", help="with a database of its own, so that sacct works"
    )
    sub.add_argument("--install", action="store_true", help="install missing Debian packages first")


def _between(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return number


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= LARGEST_DILATION_FACTOR:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {LARGEST_DILATION_FACTOR}")
    return factor


def _matching(form: re.Pattern[str], meaning: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if not form.fullmatch(text):
            raise argparse.ArgumentTypeError(f"{text!r} is not {meaning}")
        return text

    return checked


def _folder(text: str) -> Path:
    path = Path(text).resolve()
    _matching(PLAIN_FOLDER, "a path of at most 80 letters, digits and . _ / + -")(str(path))
    return path
