"""Plan of a virtual cluster: the options of `up`, its hosts and files, and Slurm's configuration as text."""

import argparse
import json
import re
import shlex
import socket
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from math import ceil
from pathlib import Path

from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import UserError
from unet_scaling.base.texts import short_digest

DEFAULT_STATE = Path("/run/virtual_cluster")
DEVICE_FOLDER = "gpus"
CONTROLLER = "controller"
# The last part of 10.77.x.y is 1 to 200 for nodes.
MOST_HOSTS = 200
# The smallest quota of a processor that the kernel takes is a millisecond in a second.
LARGEST_DILATION_FACTOR = 1000
# A requeued job waits until its credential expires. Slurm's default is two minutes.
CREDENTIAL_SECONDS = 15
# Slurm's own time from SIGTERM to SIGKILL, in which slowed workers save their state.
KILL_WAIT_SECONDS = 30
# The memory that a node claims to have; nothing enforces it.
MEMORY_MEGABYTES = 64000
PURPOSES = {
    "up": "bring the cluster up and wait until every node is idle",
    "down": "take it down, also after a crash; nothing is left behind",
    "status": "one line per host",
    "env": "print what makes sbatch, squeue, sinfo and srun of this shell talk to it",
    "stop": "cut the power of a node; of the controller terminate the daemon only",
    "start": "start what was stopped, and wait until Slurm uses it",
    "exec": "run a command inside a host, such as: exec node1 -- hostname",
}


@dataclass(frozen=True)
class Plan:
    """All options of `up`; `network` is the third number of the addresses 10.77.x.y."""

    state: Path
    hosts: int = 7
    gpus_per_host: int = 2
    cores_per_host: int = 24
    link_rate: str | None = None
    partitions: list[str] = field(default_factory=lambda: ["virtual"])
    settings: list[list[str]] = field(default_factory=list)
    network: int = 0
    dilation: float = 1.0

    @property
    def is_dilated(self) -> bool:
        return self.dilation > 1

    @property
    def nodes(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.hosts + 1)]

    @property
    def addresses(self) -> dict[str, str]:
        """Return the address of every host that has namespaces of its own, by its name."""
        numbers = {CONTROLLER: 254} | {node: number for number, node in enumerate(self.nodes, start=1)}
        return {name: self.address(number) for name, number in numbers.items()}

    @property
    def login_address(self) -> str:
        """Return the address of the caller's own shell, as the cluster sees it."""
        return self.address(253)

    @property
    def uplink(self) -> str:
        """The caller's network interface into the cluster, the only one outside its namespaces."""
        return "vc" + short_digest(str(self.state))

    @property
    def slurm_conf(self) -> Path:
        return self.state / "slurm.conf"

    @property
    def task_prolog(self) -> Path:
        """Return the script that gives every task of a job the variables of this cluster."""
        return self.state / "task_prolog"

    @property
    def munge_socket(self) -> Path:
        return self.state / "munge" / "socket"

    @property
    def hosts_file(self) -> Path:
        return self.state / "hosts"

    def address(self, number: int) -> str:
        return f"10.77.{self.network}.{number}"

    def log(self, service: str) -> Path:
        return self.state / "log" / f"{service}.log"

    def process_file(self, service: str) -> Path:
        return self.state / "processes" / service

    def require_host(self, name: str) -> None:
        """Raise UserError with the known names if no host is called `name`."""
        if name not in self.addresses:
            known = ", ".join(self.addresses)
            raise UserError(f"{self.state}: no host is called {name!r}; there are {known}")


def plan_file(state: Path) -> Path:
    return state / "cluster.json"


def save(plan: Plan) -> None:
    """Write the plan into its state folder; raise FileExistsError if one is there already."""
    content = {**asdict(plan), "state": str(plan.state)}
    with plan_file(plan.state).open("x") as file:
        file.write(json.dumps(content, indent=1) + "\n")


def load(state: Path) -> Plan:
    """Return the plan of the cluster that runs, or was half started, in `state`; raise UserError if none."""
    try:
        content = json.loads(plan_file(state).read_text())
    except (FileNotFoundError, NotADirectoryError):
        cure = f"start one with: {command('up', state)}"
        raise UserError(f"{state}: no virtual cluster is up here; {cure}") from None
    try:
        return Plan(**content | {"state": state})
    except TypeError:
        raise UserError(f"{state}: another version of this program made it; take it down with that") from None


def command(verb: str, state: Path, host: str = "") -> str:
    """Return the command line that does `verb` to the cluster in `state`, for messages."""
    folder = [] if state == DEFAULT_STATE else ["--state-dir", str(state)]
    return " ".join(["slurm/virtual_cluster", verb, *folder, *([host] if host else [])])


def command_line() -> CommandLine:
    """Return the parser of the command line; `verb` holds the command."""
    parser = CommandLine(
        "slurm/virtual_cluster",
        "A real Slurm of several hosts on one Linux machine, to rehearse studies on. Needs root.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    # slurm.conf knows no quoting and a socket's path is short, so the folder's name is kept plain and short.
    folder = _matching(r"/[A-Za-z0-9._/+-]{1,80}", "a path of at most 80 letters, digits and . _ / + -")
    for verb, purpose in PURPOSES.items():
        sub = verbs.add_parser(verb, help=purpose, description=purpose)
        sub.add_argument(
            "--state-dir",
            dest="state",
            type=lambda text: Path(folder(str(Path(text).resolve()))),
            default=DEFAULT_STATE,
            metavar="DIR",
            help="its files (%(default)s)",
        )
        if verb == "up":
            _add_options(sub)
        if verb in ("stop", "start", "exec"):
            sub.add_argument("host", help="node1, node2, ... or controller")
        if verb == "exec":
            sub.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


def _add_options(up: argparse.ArgumentParser) -> None:
    rate = _matching(r"[1-9][0-9]*(\.[0-9]+)?(k|m|g)?bit", "a rate such as 1gbit or 200mbit")
    name = _matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits, . _ -")
    key_and_value = _matching(r"[A-Za-z]+=[^\s#]+", "KEY=VALUE without blanks")
    add = up.add_argument
    add("--hosts", type=_between(int, 1, MOST_HOSTS), metavar="N", help="number of nodes (%(default)s)")
    gpus = "GPUs that each node offers (%(default)s)"
    add("--gpus-per-host", type=_between(int, 0, 64), metavar="N", help=gpus)
    cores = "cores that each node claims to have (%(default)s)"
    add("--cores-per-host", type=_between(int, 1, 1024), metavar="N", help=cores)
    limited = "of every node, both ways, before it is slowed (not limited)"
    add("--link-rate", type=rate, metavar="RATE", help=limited)
    slowed = "slow cores, links and time-outs K-fold, so that many workers fit on few cores (1: not slowed)"
    factor = _between(float, 1, LARGEST_DILATION_FACTOR)
    add("--dilate", dest="dilation", type=factor, metavar="K", help=slowed)
    names = "repeatable; first is default (virtual)"
    add("--partition", dest="partitions", type=name, action="append", metavar="NAME", help=names)
    line = "a line of slurm.conf, such as MinJobAge=10; repeatable"
    add(
        "--set",
        dest="settings",
        type=lambda text: key_and_value(text).split("=", 1),
        action="append",
        metavar="KEY=VALUE",
        help=line,
    )
    add("--install", action="store_true", help="install missing Debian packages first")
    up.set_defaults(**{each.name: each.default for each in fields(Plan) if each.default is not MISSING})


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Return the cluster that `up` was asked for."""
    names = {each.name for each in fields(Plan)}
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    return Plan(**given)


def _between(kind: type[int] | type[float], low: int, high: int) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            found = kind(text)
        except ValueError:
            found = low - 1
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return found

    return number


def _matching(form: str, meaning: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if not re.fullmatch(form, text):
            raise argparse.ArgumentTypeError(f"{text!r} is not {meaning}")
        return text

    return checked


def slurm_conf(plan: Plan) -> str:
    """Return the text of slurm.conf; what the user set with --set replaces a default of the same name.

    No process is confined and the hardware given is trusted: any geometry fits on a laptop.
    """
    values: dict[str, object] = {
        "ClusterName": "virtual",
        "SlurmctldHost": f"{CONTROLLER}({plan.addresses[CONTROLLER]})",
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={plan.munge_socket},cred_expire={CREDENTIAL_SECONDS}",
        "StateSaveLocation": plan.state / "controller",
        "SlurmdSpoolDir": plan.state / "spool" / "%n",
        "SlurmctldPidFile": plan.state / "slurmctld.pid",
        "SlurmdPidFile": plan.state / "%n.pid",
        "SlurmctldLogFile": plan.log(CONTROLLER),
        "SlurmdLogFile": plan.log("%n"),
        "MailProg": "/bin/true",
        **({"TaskProlog": plan.task_prolog} if plan.is_dilated or plan.link_rate else {}),
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SlurmdTimeout": 15,
        **({"KillWait": ceil(KILL_WAIT_SECONDS * plan.dilation)} if plan.is_dilated else {}),
        **({"GresTypes": "gpu"} if plan.gpus_per_host else {}),
    }
    known = {key.lower(): key for key in values}
    for key, value in plan.settings:
        values[known.get(key.lower(), key)] = value
    nodes = _node_range(plan)
    gpus = f" Gres=gpu:{plan.gpus_per_host}" if plan.gpus_per_host else ""
    lines = [f"{key}={value}" for key, value in values.items()]
    lines.append(
        f"NodeName={nodes} NodeAddr={nodes.replace('node', f'10.77.{plan.network}.')} Boards=1"
        f" SocketsPerBoard=1 CoresPerSocket={plan.cores_per_host} ThreadsPerCore=1"
        f" RealMemory={MEMORY_MEGABYTES}{gpus}"
    )
    for number, name in enumerate(plan.partitions):
        default = "" if number else " Default=YES"
        lines.append(f"PartitionName={name}{default} Nodes=ALL MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def gres_conf(plan: Plan) -> str:
    """Return the text of gres.conf: null devices stand for the GPUs."""
    if not plan.gpus_per_host:
        return ""
    names = f"gpu[0-{plan.gpus_per_host - 1}]" if plan.gpus_per_host > 1 else "gpu0"
    return f"NodeName={_node_range(plan)} Name=gpu File={plan.state}/{DEVICE_FOLDER}/{names}\n"


def _node_range(plan: Plan) -> str:
    return f"node[1-{plan.hosts}]" if plan.hosts > 1 else "node1"


def task_prolog(variables: Mapping[str, str]) -> str:
    """Return the text of the script by which Slurm sets these variables for every task of a job."""
    lines = [f"echo {shlex.quote(f'export {name}={value}')}" for name, value in variables.items()]
    return "\n".join(["#!/bin/sh", *lines]) + "\n"


def hosts_table(plan: Plan) -> str:
    """Return the text of /etc/hosts inside every host; the caller's machine is known by its own name, too."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{address} {name}" for name, address in plan.addresses.items()]
    lines.append(f"{plan.login_address} login {socket.gethostname()}")
    return "\n".join(lines) + "\n"
