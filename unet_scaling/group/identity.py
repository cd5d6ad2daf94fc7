"""The identity of a worker: its rank and its cores, as its launcher says in the environment.

Needs neither torch nor a network, and nothing but the standard library.
"""

import os
import re
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from unet_scaling.base.errors import UserError, run_program

# Slurm sends SIGUSR2 where the job script asks for a warning before the time limit, and SIGTERM on
# preemption, on scancel and where another task of the step has failed.
STOP_SIGNALS = (signal.SIGUSR2, signal.SIGTERM)
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
# The launcher sets these, so that the memory of a step is kept for the next one: by default glibc returns
# large tensors to the system, and every page of them is cleared and mapped anew.
KEEP_MEMORY = {
    # From the first step on: asked for later, all of the heap would be touched once more.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    # Huge pages (from glibc 2.35 on; older ones pass over it), and no lists of small blocks that are free and
    # yet part the large ones beside them.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0",
}


@dataclass(frozen=True)
class Launcher:
    """The variables by which one launcher tells a process its rank; of several, the first that is set."""

    name: str
    rank: str
    size: str
    local_ranks: tuple[str, ...]
    local_sizes: tuple[str, ...] = ()


OPEN_MPI = Launcher(
    "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",),
)  # fmt: skip
# The order matters: mpiexec inside a Slurm job leaves the SLURM_ variables of the batch step behind.
LAUNCHERS = (
    # Set by Hydra (MPICH, Intel MPI), PALS, Flux, and srun --mpi=pmi2.
    Launcher(
        "PMI", "PMI_RANK", "PMI_SIZE",
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"),
    ),
    OPEN_MPI,
    Launcher(
        "MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
        ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_LOCALID",)),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_NPROCS", ("SLURM_LOCALID",)),
    Launcher("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
)  # fmt: skip
# Other launchers number processes by these, and do not tell how many there are.
RANKS_WITHOUT_SIZE = ("PALS_RANKID", "PMIX_RANK", "ALPS_APP_PE", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK")
# Stands in MASTER_ADDR for the first host's name: "{host}i" is another one, where a site calls InfiniBand so.
FIRST_HOST = "{host}"
LOOPBACK = ("127.", "localhost", "::1", "ip6-l")


@dataclass(frozen=True)
class Identity:
    """This process among all workers: rank of size, and its rank on its own host."""

    rank: int
    size: int
    local_rank: int
    launcher: str


def identify(environment: Mapping[str, str]) -> Identity:
    """Return the identity that the first launcher gives; a process started by none is a group of one.

    Raises UserError where the variables of that launcher contradict each other, or tell a rank and no size.
    """
    launcher = _launcher(environment)
    if launcher is None:
        for name in (*(each.rank for each in LAUNCHERS), *RANKS_WITHOUT_SIZE):
            if name in environment:
                raise UserError(
                    f"{name}={environment[name]}, and no variable says of how many workers: "
                    f"start them with srun or mpiexec; unset {name} to train alone"
                )
        return Identity(rank=0, size=1, local_rank=0, launcher="none")
    rank = _number(environment, launcher.rank)
    size = _number(environment, launcher.size)
    if rank >= size:
        raise UserError(f"{launcher.rank}={rank} is not below {launcher.size}={size}")
    local_rank = next((name for name in launcher.local_ranks if name in environment), None)
    if local_rank is None and size > 1:
        known = ", ".join(launcher.local_ranks)
        raise UserError(f"{launcher.name} set {launcher.rank}, but none of {known}")
    return Identity(rank, size, _number(environment, local_rank) if local_rank else 0, launcher.name)


def _launcher(environment: Mapping[str, str]) -> Launcher | None:
    complete = (each for each in LAUNCHERS if {each.rank, each.size} <= environment.keys())
    return next(complete, None)


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment[name]
    if not re.fullmatch(r"[0-9]+", value):
        raise UserError(f"{name}={value!r} is not a number")
    return int(value)


def rendezvous_address(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the rendezvous; UserError where neither launcher nor Slurm says.

    MASTER_ADDR where it is set (torchrun, a local launch, a site that names hosts of its fast network), in
    which {host} is the first host of the Slurm step; else that host. MASTER_PORT, or a port that follows from
    the job id, below the ephemeral range. Under Open MPI the first host of the job: the step is that of its
    daemons on all hosts but this one. Raises UserError for a loopback address of workers on several hosts.
    """
    host = environment.get("MASTER_ADDR") or FIRST_HOST
    has_port = "MASTER_PORT" in environment and host != FIRST_HOST
    of_step = "" if OPEN_MPI.rank in environment else environment.get("SLURM_STEP_NODELIST")
    nodes = of_step or environment.get("SLURM_JOB_NODELIST") or ""
    if (FIRST_HOST in host and not nodes) or not (has_port or "SLURM_JOB_ID" in environment):
        raise UserError(
            "the rendezvous has no address: set MASTER_ADDR and MASTER_PORT, or start inside a Slurm job"
        )
    if host.startswith(LOOPBACK) and _is_on_several_hosts(environment):
        raise UserError(
            f"MASTER_ADDR={host}: each host has its own, and the workers run on several; "
            f"unset it, or set it to the host of worker 0"
        )
    if FIRST_HOST in host:
        host = host.replace(FIRST_HOST, first_host(nodes))
    if has_port:
        return host, _number(environment, "MASTER_PORT")
    return host, FIRST_PORT + _number(environment, "SLURM_JOB_ID") % PORTS


def main() -> None:
    """Raise UserError where the address of the rendezvous leads to no host: job scripts ask it first."""
    host, _ = rendezvous_address(os.environ)
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        given = os.environ.get("MASTER_ADDR")
        cure = "correct it in `environment` or the prologue of the cluster file, or leave it out"
        raise UserError(f"MASTER_ADDR={given}: no host is called {host} here ({error}); {cure}") from None


def _is_on_several_hosts(environment: Mapping[str, str]) -> bool:
    """Return whether the launcher says that not all of its workers run on this host."""
    launcher = _launcher(environment)
    if launcher is None:
        return False
    for name in launcher.local_sizes:
        if name in environment:
            return _number(environment, name) < _number(environment, launcher.size)
    return int(environment.get("SLURM_STEP_NUM_NODES") or 1) > 1


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: r01n03 of `r[01-02]n[03-05,9],login1`.

    A bracket holds numbers and ranges; a range of coordinates is written `[000x133]`. Raises UserError.
    """
    matched = re.match(r"((?:[^\[\],\s]|\[[0-9A-Z][^\[\]]*\])+)(,|$)", nodes)
    if matched is None:
        raise UserError(f"{nodes!r} is no list of hosts as Slurm writes it, such as node[01-03]")
    return re.sub(r"\[([0-9A-Z]+)[^\]]*\]", r"\1", matched.group(1))


def job_id(environment: Mapping[str, str]) -> str:
    """Return the Slurm job that this process belongs to; empty outside Slurm."""
    return environment.get("SLURM_JOB_ID", "")


if __name__ == "__main__":
    run_program(main)
