"""Train the model of one run folder with native PyTorch DDP."""

import contextlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, distributed, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from unet_scaling.base.errors import run_worker
from unet_scaling.group.group import Group
from unet_scaling.group.rendezvous import hold_until_exit, rendezvous
from unet_scaling.group.worker import start_worker
from unet_scaling.run.recorder import recording
from unet_scaling.run.run_folder import open_run
from unet_scaling.study.config import RunConfig
from unet_scaling.training import Twin, build_model, build_optimizer, load_task
from unet_scaling.training_loop import build_step, explain, train_epochs


def join_group(config: RunConfig) -> Group:
    """Join the other workers of the run."""
    identity, device = start_worker(config)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with rendezvous(identity, config, TCPStore) as store:
        distributed.init_process_group(backend, None, store.timeout, identity.size, identity.rank, store)
    return Group(identity, device, start_sum, {"backend": backend}, new_subgroup=distributed.new_group)


def distribute(model: nn.Module, optimizer: Optimizer, config: RunConfig) -> tuple[nn.Module, Optimizer]:
    """Give every worker the weights of worker 0; from now on, average gradients over all workers."""
    replica = DistributedDataParallel(model, **config.wrapper_arguments())
    replica.broadcast_buffers = False
    if config.training.gradient_compression == "fp16":
        replica.register_comm_hook(None, fp16_compress_hook)
    return replica, optimizer


def hold_gradients(model: nn.Module) -> contextlib.AbstractContextManager[object]:
    """Hold averaging back in all but the last pass of a step; Horovod counts the passes itself."""
    assert isinstance(model, DistributedDataParallel)
    return model.no_sync()


def wait_for_gradients(optimizer: Optimizer) -> None:
    """Return when all gradients are averaged; with DDP, the last backward pass has seen to it."""


def update(optimizer: Optimizer) -> None:
    optimizer.step()


def start_sum(tensor: Tensor, subgroup: Any = None) -> Callable[[], object]:  # noqa: ANN401
    """Begin to sum a tensor over all workers, or a subgroup, in place; return what waits for the end."""
    work = distributed.all_reduce(tensor, group=subgroup, async_op=True)
    return lambda: work.wait()


def leave_group() -> None:
    hold_until_exit(distributed.group.WORLD)
    distributed.destroy_process_group()


def main() -> None:
    with open_run(__doc__) as run:
        group = join_group(run.config)
        with recording(run, group) as record:
            task = load_task(run.config)
            data = task.load_data(group)
            model = build_model(task, group.device, SyncBatchNorm)
            optimizer = build_optimizer(task, model)
            task.verify(model, data)
            record.begin(data, model, optimizer)
            twin = Twin(distribute, hold_gradients, wait_for_gradients, update)
            step = build_step(task, model, optimizer, data, twin)
            train_epochs(step, model, data, group, record)
            explain(task, model, data, group, record)
            record.finish(model)
        leave_group()


if __name__ == "__main__":
    run_worker(main)
