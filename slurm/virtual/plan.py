"""Plan of a virtual cluster: its hosts, their addresses and the files of its state folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from unet_scaling.study.errors import UserError
from unet_scaling.study.texts import short_digest

DEFAULT_STATE = Path("/run/virtual_cluster")
# Addresses of the last part of 10.77.x.y that are left for nodes.
MOST_HOSTS = 200


@dataclass(frozen=True)
class Host:
    """One host of the cluster: a name and an address in its own network namespace."""

    name: str
    address: str


@dataclass(frozen=True)
class Plan:
    """All options of `up`; `network` is the third number of the addresses 10.77.x.y."""

    state: Path
    hosts: int = 7
    gpus_per_host: int = 2
    cores_per_host: int = 24
    link_rate: str | None = None
    partitions: tuple[str, ...] = ("virtual",)
    accounting: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    network: int = 0
    dilation: float = 1.0

    @property
    def is_dilated(self) -> bool:
        return self.dilation > 1

    @property
    def has_variables(self) -> bool:
        """Return whether tasks are told how this cluster differs from its machine."""
        return self.is_dilated or self.link_rate is not None

    @property
    def nodes(self) -> list[Host]:
        return [Host(f"node{number}", self.address(number)) for number in range(1, self.hosts + 1)]

    @property
    def controller(self) -> Host:
        return Host("controller", self.address(254))

    @property
    def login(self) -> Host:
        """Return the caller's own shell, as the cluster sees it."""
        return Host("login", self.address(253))

    @property
    def database(self) -> Host:
        return Host("database", self.address(252))

    @property
    def inner_hosts(self) -> list[Host]:
        """Return every host that has namespaces of its own."""
        return [self.controller, *([self.database] if self.accounting else []), *self.nodes]

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

    @property
    def subnet(self) -> str:
        return f"{self.address(0)}/24"

    def address(self, number: int) -> str:
        return f"10.77.{self.network}.{number}"

    def log(self, service: str) -> Path:
        return self.state / "log" / f"{service}.log"

    def process_file(self, service: str) -> Path:
        return self.state / "processes" / service

    def host(self, name: str) -> Host:
        """Return the host called `name`; raise UserError with the known names if there is none."""
        hosts = {host.name: host for host in self.inner_hosts}
        if name not in hosts:
            raise UserError(f"{self.state}: no host is called {name!r}; there are {', '.join(hosts)}")
        return hosts[name]


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
        raise UserError(
            f"{state}: no virtual cluster is up here; start one with: {command('up', state)}"
        ) from None
    return Plan(
        **{
            **content,
            "state": Path(content["state"]),
            "partitions": tuple(content["partitions"]),
            "settings": tuple((key, value) for key, value in content["settings"]),
        }
    )


def command(verb: str, state: Path, host: str = "") -> str:
    """Return the command line that does `verb` to the cluster in `state`, for messages."""
    folder = [] if state == DEFAULT_STATE else ["--state-dir", str(state)]
    return " ".join(["slurm/virtual_cluster", verb, *folder, *([host] if host else [])])
