"""The variables that torchrun sets: by them, a wrapper of DDP adopts the process group that is there.

Left alone, Lightning would look for a cluster (which starts MPI in the worker, and takes the rank for node x
devices + local rank), and Accelerate, which reads no variable of Slurm, would train alone.
"""

import os

import torch

from unet_scaling.group.identity import Identity
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError


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


def require_all_workers(wrapper: str, found: int, config: RunConfig) -> None:
    """Raise UserError where a wrapper trains with another number of workers than the run has."""
    if found != config.workers:
        raise UserError(
            f"run {config.run} asks for {config.workers} workers, but {wrapper} counts {found}: unset its "
            "own variables (ACCELERATE_*, LT_*), and start the workers by srun or mpiexec"
        )
