"""The device that one worker owns: a GPU, or some cores of its host."""

import os
import socket

import torch

from unet_scaling.group.identity import CORES_VARIABLE, Identity, identify
from unet_scaling.group.processor_quota import emulated_cores, own_processors
from unet_scaling.study.config import RunConfig
from unet_scaling.study.dilation import DILATION_VARIABLE, dilation, is_dilated
from unet_scaling.study.errors import UserError


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
