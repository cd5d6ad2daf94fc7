"""The group of workers that a script has made, by the framework that it imported itself.

Nothing is imported here: a framework that the script does not use may not be installed.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unet_scaling.group.group import Group
from unet_scaling.group.horovod_controller import horovod_transport
from unet_scaling.group.identity import Identity, identify
from unet_scaling.study.config import Framework
from unet_scaling.study.errors import UserError

# By which function each framework makes the group, for the error where none was made.
MAKES_THE_GROUP: Mapping[Framework, str] = {
    "pytorch_native": "torch.distributed.init_process_group",
    "horovod": "horovod.torch.init",
    "lightning": "Fabric.launch",
    "accelerate": "Accelerator",
}
LAUNCHED_BY_SCRIPT = "script"


def group_of_script(framework: Framework, model: nn.Module | None) -> Group:
    """Return the group that the framework has made in this process; without any, a group of one worker.

    Raises UserError where a launcher started several workers, which have no group yet.
    """
    device = _device(model)
    group = _group_of_horovod(device) if framework == "horovod" else _group_of_torch(device)
    return group or _single_worker(framework, device)


def _device(model: nn.Module | None) -> torch.device:
    weight = next(model.parameters(), None) if model is not None else None
    if weight is not None:
        return weight.device
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _group_of_torch(device: torch.device) -> Group | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None

    def sum_over_workers(tensor: Tensor) -> Tensor:
        distributed.all_reduce(tensor)
        return tensor

    identity = _identity(distributed.get_rank(), distributed.get_world_size())
    return Group(identity, device, sum_over_workers, {"backend": distributed.get_backend()})


def _group_of_horovod(device: torch.device) -> Group | None:
    horovod: Any = sys.modules.get("horovod.torch")
    if horovod is None or not horovod.is_initialized():
        return None

    def sum_over_workers(tensor: Tensor) -> Tensor:
        horovod.allreduce_(tensor, op=horovod.Sum)
        return tensor

    identity = _identity(horovod.rank(), horovod.size())
    return Group(identity, device, sum_over_workers, horovod_transport(horovod, identity))


def _identity(rank: int, size: int) -> Identity:
    """Return this worker's identity; its rank on its host serves no purpose here, since it has its device."""
    return Identity(rank, size, 0, LAUNCHED_BY_SCRIPT)


def _single_worker(framework: Framework, device: torch.device) -> Group:
    launched = identify(os.environ)
    # A batch script of Slurm has the variables of its job, without being one of its tasks.
    if launched.size > 1 and launched.launcher != "Slurm":
        raise UserError(
            f"record.begin: {launched.launcher} started {launched.size} workers, but {framework} has no "
            f"group of them yet; call it after {MAKES_THE_GROUP[framework]}"
        )
    return Group(_identity(0, 1), device, lambda tensor: tensor, {})
