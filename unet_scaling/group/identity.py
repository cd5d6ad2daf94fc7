"""The identity of a worker: its rank, as its launcher says in the environment.

Needs neither torch nor a network: pure functions of the environment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from unet_scaling.study.errors import UserError

# Below the range from which Linux takes ephemeral ports (32768 on).
FIRST_PORT = 15000
PORTS = 10000
# How many of its host's cores each worker takes, by local rank, where the launcher binds none.
CORES_VARIABLE = "UNET_SCALING_CORES_PER_WORKER"
# How variables begin that tell a process of one launch who it is, and whom to call. Its launcher sets them.
IDENTITY_VARIABLES = (
    "PMI_", "PMI2_", "PMIX_NAMESPACE", "PMIX_RANK", "PMIX_SERVER", "PMIX_SECURITY", "PMIX_GDS", "PMIX_BFROP",
    "PMIX_PTL", "PMIX_DSTORE", "PMIX_HOSTNAME", "PMIX_VERSION", "PALS_", "ALPS_", "JSM_", "MPIRUN_", "HYDI_",
    "MPI_LOCAL", "MV2_COMM_WORLD", "MVP_COMM_WORLD", "OMPI_COMM_WORLD", "OMPI_UNIVERSE", "OMPI_APP_CTX",
    "OMPI_FIRST_RANKS", "OMPI_NUM_APP_CTX", "OMPI_MCA_orte", "OMPI_MCA_ess", "OMPI_MCA_pmix",
    "OMPI_MCA_initial_wdir",
    "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_", "TORCHELASTIC_",
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_GLOO_", "HOROVOD_HOSTNAME",
    "UNET_SCALING_STOP_AT", CORES_VARIABLE,
)  # fmt: skip


@dataclass(frozen=True)
class Launcher:
    """The variables by which one launcher tells a process its rank."""

    name: str
    rank: str
    size: str
    local_ranks: tuple[str, ...]


OPEN_MPI = Launcher(
    "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)
)
# The order matters: mpiexec inside a Slurm job leaves the SLURM_ variables of the batch step behind.
LAUNCHERS = (
    Launcher("PMI", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "SLURM_LOCALID")),
    OPEN_MPI,
    Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_LOCALID",)),
    Launcher("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK",)),
)


@dataclass(frozen=True)
class Identity:
    """This process among all workers: rank of size, and its rank on its own host."""

    rank: int
    size: int
    local_rank: int
    launcher: str


def identify(environment: Mapping[str, str]) -> Identity:
    """Return the identity that the first launcher gives; a process started by none is a group of one.

    Raises UserError where the variables of that launcher contradict each other.
    """
    for launcher in LAUNCHERS:
        if launcher.rank in environment and launcher.size in environment:
            return _identity_by(launcher, environment)
    return Identity(rank=0, size=1, local_rank=0, launcher="none")


def _identity_by(launcher: Launcher, environment: Mapping[str, str]) -> Identity:
    rank = _number(environment, launcher.rank)
    size = _number(environment, launcher.size)
    if rank >= size:
        raise UserError(f"{launcher.rank}={rank} is not below {launcher.size}={size}")
    return Identity(rank, size, _local_rank(launcher, environment, size), launcher.name)


def _local_rank(launcher: Launcher, environment: Mapping[str, str], size: int) -> int:
    for name in launcher.local_ranks:
        if name in environment:
            return _number(environment, name)
    if size > 1:
        raise UserError(f"{launcher.name} set {launcher.rank}, but none of {', '.join(launcher.local_ranks)}")
    return 0


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment[name]
    if not re.fullmatch(r"[0-9]+", value):
        raise UserError(f"{name}={value!r} is not a number")
    return int(value)


def rendezvous_address(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the rendezvous; UserError where neither launcher nor Slurm says.

    MASTER_ADDR and MASTER_PORT where the launcher chose them (torchrun, a local launch); else the
    first host of the Slurm step and a port that follows from the job id, below the ephemeral range.
    Under Open MPI the first host of the job: the step is that of its daemons on all hosts but this one.
    """
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        return environment["MASTER_ADDR"], _number(environment, "MASTER_PORT")
    of_step = "" if OPEN_MPI.rank in environment else environment.get("SLURM_STEP_NODELIST")
    nodes = of_step or environment.get("SLURM_JOB_NODELIST")
    if not nodes or "SLURM_JOB_ID" not in environment:
        raise UserError(
            "the rendezvous has no address: set MASTER_ADDR and MASTER_PORT, or start inside a Slurm job"
        )
    return first_host(nodes), FIRST_PORT + _number(environment, "SLURM_JOB_ID") % PORTS


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list such as `node[03-05,9],login1`: node03."""
    matched = re.match(r"([^\[,]*)(?:\[([0-9]+)[^\]]*\]([^,]*))?", nodes)
    assert matched is not None
    prefix, number, suffix = matched.groups(default="")
    return prefix + number + suffix


def job_id(environment: Mapping[str, str]) -> str:
    """Return the Slurm job that this process belongs to; empty outside Slurm."""
    return environment.get("SLURM_JOB_ID", "")
