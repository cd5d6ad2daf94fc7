"""How mpiexec is found and what it needs in its environment: the same under every MPI."""

import os
import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path

from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.group.identity import FIRST_PORT, IDENTITY_VARIABLES, PORTS
from unet_scaling.study.errors import UserError

# mpiexec must not bind processes itself: the workers take their cores, the same way under every MPI. It forks
# them on this host: from a shell that belongs to a job it would call srun, which waits for cores for ever.
MPI_ENVIRONMENT = {
    "HYDRA_LAUNCHER": "fork",
    "I_MPI_HYDRA_BOOTSTRAP": "fork",
    "I_MPI_PIN": "0",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
# How variables begin that say on which hosts to start, and how: of resource managers and of launchers.
# What tunes an MPI (FI_, UCX_, OMPI_MCA_btl, I_MPI_FABRICS) stays.
PLACE_VARIABLES = (
    "SLURM", "SRUN_", "SALLOC_", "SBATCH_", "PBS_", "LSB_", "LSF_", "SGE_", "PE_HOSTFILE", "OAR_",
    "COBALT_", "FLUX_", "LOADL_", "HYDRA_", "MPIEXEC_", "I_MPI_HYDRA_", "I_MPI_PERHOST", "I_MPI_JOB_",
    "I_MPI_PMI", "OMPI_MCA_plm", "OMPI_MCA_ras", "OMPI_MCA_rmaps", "PRTE_",
)  # fmt: skip


def mpiexec_program() -> str:
    """Return the mpiexec beside this Python, or else that of the path. Raises UserError where none is."""
    beside = Path(sys.executable).parent / "mpiexec"
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        raise UserError(
            "mpiexec not found; environment/install.sh brings one, or load your site's MPI module"
        )
    return program


def launch_environment() -> dict[str, str]:
    """Return the environment of mpiexec and its workers on this host, with a free port for their rendezvous.

    Left out is what this shell holds of a job, a step or another launch.
    """
    foreign = (*IDENTITY_VARIABLES, *PLACE_VARIABLES)
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return KEEP_MEMORY | own | MPI_ENVIRONMENT | _where_intel_mpi_is() | rendezvous


def _where_intel_mpi_is() -> dict[str, str]:
    """Return what a site's module would set: the Intel MPI of the package index does not find itself."""
    try:
        metadata.version("impi-rt")
    except metadata.PackageNotFoundError:
        return {}
    libraries = [f"{sys.prefix}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"I_MPI_ROOT": sys.prefix, "LD_LIBRARY_PATH": ":".join(libraries)}


def _free_port() -> int:
    """Return a port below the ephemeral range on which nothing listens now."""
    for offset in range(PORTS):
        port = FIRST_PORT + (os.getpid() + offset) % PORTS
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UserError(f"no free port between {FIRST_PORT} and {FIRST_PORT + PORTS}")
