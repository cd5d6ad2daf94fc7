"""What one worker owns on its host: a GPU, or some cores, and the memory that its allocator keeps.

By default glibc gives the large tensors of a step back to the system and takes them again in the next one:
every page of them is then cleared and mapped anew. Kept in its heap they cost nothing; but what lasts, and
was allocated between them, leaves holes that they do not fit. So the first step still maps each of them
apart, and what lasts from it (kernels, for the most part) lies close together; `keep_memory` comes after it.
The launcher asks for it (`KEEP_MEMORY`); glibc reads its variables before Python starts.
"""

import ctypes
import os
import socket
from pathlib import Path

import torch

from unet_scaling.group.identity import (
    CORES_VARIABLE,
    KEEP_MEMORY,
    SWITCH,
    Identity,
    emulated_cores,
    identify,
    own_processors,
)
from unet_scaling.study.config import RunConfig
from unet_scaling.study.dilation import DILATION_VARIABLE, dilation, is_dilated
from unet_scaling.study.errors import UserError

GLIBC_PREFIX = "MALLOC_"  # of all its variables but the tunables
# Parameters of mallopt, from malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
# A library loaded before all others may bring an allocator that takes the place of glibc's.
PRELOAD = "LD_PRELOAD"


def start_worker(config: RunConfig) -> tuple[Identity, torch.device]:
    """Return this process's identity and the device it owns; keep it on its own cores, or as many as wanted.

    Called before anything starts threads: those of torch and MPI inherit the cores. Raises UserError where
    the launcher started another number of workers than the run asks for, or has no device left for this one.
    """
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
    processors = cores[:wanted]
    if is_dilated():
        processors = own_processors(identity, len(processors), sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, processors)
    torch.set_num_threads(len(processors))
    return identity, own_device(identity)


def owned_cores(identity: Identity, wanted: int | None = None) -> list[int]:
    """Return the cores that this worker was bound to; on a dilated cluster the first of its host's."""
    if is_dilated():
        return emulated_cores(identity, wanted)
    return sorted(os.sched_getaffinity(0))


def own_device(identity: Identity) -> torch.device:
    """Return this worker's GPU: the one it sees, of several that of its local rank. Without any, the CPU."""
    visible = torch.cuda.device_count()
    if visible and is_dilated():
        raise UserError(
            f"{DILATION_VARIABLE} = {dilation():g} slows cores and links, but no GPU: hide the {visible} "
            "GPUs from the workers (CUDA_VISIBLE_DEVICES= in the cluster file's environment)"
        )
    if visible == 0:
        return torch.device("cpu")
    index = identity.local_rank if visible > 1 else 0
    if index >= visible:
        raise UserError(
            f"worker {identity.rank} is number {identity.local_rank} on {socket.gethostname()}, "
            f"which shows it only {visible} GPUs; ask for fewer workers per node"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _own_cores(identity: Identity) -> list[int]:
    """Return the cores that the launcher bound, or this worker's share where CORES_VARIABLE says how many."""
    if is_dilated():
        return emulated_cores(identity)
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


def keep_memory() -> None:
    """Take large blocks from glibc's heap from now on and never shrink it, where the launcher asked for that.

    Nothing happens under another C library or allocator.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if os.environ.get(SWITCH) == "1" and mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def _is_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
