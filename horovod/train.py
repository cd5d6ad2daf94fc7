"""Train the model of one run folder with Horovod."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.torch as hvd
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
from horovod.torch import SyncBatchNorm
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_scaling.base.errors import run_worker
from unet_scaling.group.group import Group
from unet_scaling.group.rendezvous import horovod_transport, rendezvous
from unet_scaling.group.worker import start_worker
from unet_scaling.run.recorder import recording
from unet_scaling.run.run_folder import open_run
from unet_scaling.study.config import RunConfig
from unet_scaling.training import Twin, build_model, build_optimizer, load_task
from unet_scaling.training_loop import build_step, explain, train_epochs


def join_group(config: RunConfig) -> Group:
    """Join the other workers of the run."""
    identity, device = start_worker(config)
    with rendezvous(identity, config, RendezvousHTTPServer, RendezvousHandler):
        hvd.init()
    transport = horovod_transport(hvd, identity)
    return Group(identity, device, start_sum, transport, new_subgroup=hvd.add_process_set)


def distribute(model: nn.Module, optimizer: Optimizer, config: RunConfig) -> tuple[nn.Module, Optimizer]:
    """Give every worker the weights of worker 0; from now on, average gradients over all workers."""
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    compression = getattr(hvd.Compression, config.training.gradient_compression)
    knobs = {"backward_passes_per_step": config.passes_per_step} | config.wrapper_arguments()
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression, **knobs)


def hold_gradients(model: nn.Module) -> contextlib.AbstractContextManager[object]:
    """Hold averaging back in all but the last pass of a step; Horovod counts the passes itself."""
    return contextlib.nullcontext()


def wait_for_gradients(optimizer: Optimizer) -> None:
    """Return when all gradients are averaged; with DDP, the last backward pass has seen to it."""
    optimizer.synchronize()  # type: ignore[attr-defined]


def update(optimizer: Optimizer) -> None:
    with optimizer.skip_synchronize():  # type: ignore[attr-defined]
        optimizer.step()


def start_sum(tensor: Tensor, subgroup: Any = None) -> Callable[[], object]:  # noqa: ANN401
    """Begin to sum a tensor over all workers, or a subgroup, in place; return what waits for the end."""
    workers = subgroup or hvd.global_process_set
    return partial(hvd.synchronize, hvd.allreduce_async_(tensor, op=hvd.Sum, process_set=workers))


def leave_group() -> None:
    hvd.shutdown()


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
