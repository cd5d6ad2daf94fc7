"""Ask Slurm what a cluster has: partitions, nodes, GPUs, limits, accounts, and how srun starts MPI."""

import getpass
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm.cluster import limit_seconds
from slurm.scheduler import Slurm, UnreachableError
from unet_scaling.study.errors import UserError

NODE_COLUMNS = "%R|%N|%T|%c|%m|%X|%G"
# The beginnings of the states of nodes that take no jobs, as sinfo writes them.
OUT_OF_SERVICE = ("down", "drain", "fail", "error", "unknown", "inval", "future", "blocked")
# Behind the state of a node that does not answer.
NOT_RESPONDING = "*"
NO_LIMIT = ("UNLIMITED", "INFINITE", "NONE", "N/A", "(NULL)")
# Task plugins that bind the processes of a step to its cores.
BINDING_PLUGINS = ("task/affinity", "task/cgroup")


@dataclass(frozen=True)
class NodeFacts:
    """A node of a partition; `gpus` are counts by type, "" where Slurm knows no type."""

    name: str
    in_service: bool
    cores: int
    memory_mib: int
    sockets: int
    gpus: Mapping[str, int]


@dataclass(frozen=True)
class PartitionFacts:
    """A partition; a limit is None where there is none, `accounts` where every account may use it."""

    name: str
    nodes: tuple[NodeFacts, ...]
    is_default: bool = False
    is_up: bool = True
    limit_seconds: int | None = None
    max_nodes: int | None = None
    max_cores_per_node: int | None = None
    accounts: frozenset[str] | None = None

    @property
    def gpus(self) -> int:
        """Return the GPUs of all nodes that are in service."""
        return sum(sum(node.gpus.values()) for node in self.nodes if node.in_service)


@dataclass(frozen=True)
class SlurmFacts:
    """A cluster as one user sees it. `accounts`: those to charge jobs to, the user's default first."""

    partitions: tuple[PartitionFacts, ...]
    accounts: tuple[str, ...] = ()
    binds_cores: bool = True
    mpi_kinds: tuple[str, ...] = ()


def ask_cluster() -> SlurmFacts:
    """Ask the Slurm of this machine. Raises UserError where there is none, or where it does not answer."""
    ask = Slurm().call
    try:
        nodes = ask(["sinfo", "--noheader", "--Node", f"--format={NODE_COLUMNS}"])
        partitions = ask(["scontrol", "--oneliner", "show", "partition"])
        configuration = ask(["scontrol", "show", "config"])
        mpi = ask(["sh", "-c", "srun --mpi=list 2>&1"])  # some versions answer on standard error
    except UnreachableError as error:
        raise UserError(f"Slurm does not answer ({error}); try again") from None
    return SlurmFacts(
        partitions=read_partitions(partitions, nodes),
        accounts=_accounts(),
        binds_cores=read_binding(configuration),
        mpi_kinds=read_mpi_kinds(mpi),
    )


def read_partitions(partitions: str, nodes: str) -> tuple[PartitionFacts, ...]:
    """Return the partitions of `scontrol --oneliner show partition` with their nodes, by sinfo's lines."""
    by_partition = read_nodes(nodes)
    facts = (_key_values(line) for line in partitions.splitlines())
    return tuple(
        _partition(values, by_partition.get(values["PartitionName"], ()))
        for values in facts
        if "PartitionName" in values
    )


def read_nodes(answer: str) -> dict[str, tuple[NodeFacts, ...]]:
    """Return the nodes of each partition from lines of NODE_COLUMNS. Raises UserError where none is one."""
    nodes: dict[str, list[NodeFacts]] = {}
    for line in answer.splitlines():
        fields = line.split("|")
        if len(fields) == NODE_COLUMNS.count("|") + 1:
            nodes.setdefault(fields[0], []).append(_node(fields))
    if answer.strip() and not nodes:
        raise UserError(f"sinfo answered {answer.strip()[:80]!r}, which has not the columns {NODE_COLUMNS}")
    return {partition: tuple(listed) for partition, listed in nodes.items()}


def read_gpus(gres: str) -> dict[str, int]:
    """Return the GPUs by type of a list such as `gpu:a100:4(S:0-1),nvme:1`, empty for `(null)`."""
    gpus: Counter[str] = Counter()
    for resource in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *words = resource.strip().split(":")
        if name == "gpu":
            gpus += _gpus_of(words)
    return dict(gpus)


def _gpus_of(words: list[str]) -> Counter[str]:
    """Return the GPUs of `a100:4`, `4` or nothing, which stands for one."""
    counts = [int(word) for word in words if word.isdigit()]
    kind = next((word for word in words if not word.isdigit()), "")
    return Counter({kind: counts[-1] if counts else 1})


def read_binding(configuration: str) -> bool:
    """Return whether Slurm binds the processes of a step to its cores, by `scontrol show config`."""
    plugins = re.search(r"^TaskPlugin\s*=\s*(.*)$", configuration, re.MULTILINE)
    return plugins is not None and any(name in plugins.group(1) for name in BINDING_PLUGINS)


def read_mpi_kinds(answer: str) -> tuple[str, ...]:
    """Return what `srun --mpi=list` offers, such as pmi2 and pmix."""
    return tuple(sorted(set(re.findall(r"\b(?:pmi2|pmix(?:_v\d+)?|openmpi|cray_shasta)\b", answer))))


def read_accounts(associations: str, default: str, user: str) -> tuple[str, ...]:
    """Return the accounts of sacctmgr's lines `USER|ACCOUNT`, each once, the default first."""
    rows = [line.strip().split("|") for line in [*default.splitlines(), *associations.splitlines()]]
    return tuple(dict.fromkeys(row[1] for row in rows if row[0] == user and len(row) > 1 and row[1]))


def _accounts() -> tuple[str, ...]:
    """Return the user's accounts; none where the site has no accounting, or it does not answer."""
    command = ["sacctmgr", "--noheader", "--parsable2", "show"]
    user = getpass.getuser()
    try:
        default = Slurm().call([*command, "user", user, "format=User,DefaultAccount"])
        all_of_user = Slurm().call([*command, "associations", f"user={user}", "format=User,Account"])
        return read_accounts(all_of_user, default, user)
    except (UserError, UnreachableError):
        return ()


def _partition(values: Mapping[str, str], nodes: Iterable[NodeFacts]) -> PartitionFacts:
    limit = _limit(values.get("MaxTime", ""))
    accounts = values.get("AllowAccounts", "ALL")
    return PartitionFacts(
        name=values["PartitionName"],
        nodes=tuple(nodes),
        is_default=values.get("Default") == "YES",
        is_up=values.get("State", "UP") == "UP",
        limit_seconds=None if limit is None else limit_seconds(limit),
        max_nodes=_number(values.get("MaxNodes", "")),
        max_cores_per_node=_number(values.get("MaxCPUsPerNode", "")),
        accounts=None if accounts == "ALL" else frozenset(accounts.split(",")),
    )


def _node(fields: list[str]) -> NodeFacts:
    _, name, state, cores, memory, sockets, gres = fields
    return NodeFacts(
        name=name,
        in_service=not state.startswith(OUT_OF_SERVICE) and not state.endswith(NOT_RESPONDING),
        cores=_first_number(cores),
        memory_mib=_first_number(memory),
        sockets=_first_number(sockets),
        gpus=read_gpus(gres),
    )


def _first_number(text: str) -> int:
    """Return the number at the beginning: sinfo writes `24+` for nodes that differ."""
    digits = re.match(r"\d+", text.strip())
    return int(digits.group()) if digits else 0


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _limit(text: str) -> str | None:
    return None if not text or text.upper() in NO_LIMIT else text


def _key_values(line: str) -> dict[str, str]:
    """Return the pairs of a line of `scontrol --oneliner`; values with blanks are not of interest here."""
    pairs = (word.partition("=") for word in line.split())
    return {key: value for key, equals, value in pairs if equals}
