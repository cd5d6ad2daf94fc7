"""Train the U-Net of one run folder with Horovod."""

from contextlib import AbstractContextManager, nullcontext

import horovod.torch as hvd
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
from horovod.torch import SyncBatchNorm
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_scaling.data.loader import load_data
from unet_scaling.evaluation import evaluate
from unet_scaling.group.horovod_rendezvous import controller
from unet_scaling.group.watchdog import waiting
from unet_scaling.group.worker import Group, identify_worker, own_device
from unet_scaling.run.checkpoint import Trained
from unet_scaling.run.recorder import recording
from unet_scaling.run.run_folder import open_run
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import run_worker
from unet_scaling.study.options import HorovodKnobs
from unet_scaling.training import Step, build_model, build_optimizer, train_epoch


def join_group(config: RunConfig) -> Group:
    """Meet the other workers through the launcher's MPI, or by TCP where Gloo is to control them."""
    identity = identify_worker(config)
    device = own_device(identity, config)
    with controller(identity, config, RendezvousHTTPServer, RendezvousHandler), waiting:
        hvd.init()
    assert (hvd.rank(), hvd.size()) == (identity.rank, identity.size), f"{identity}, Horovod {hvd.rank()}"
    used = "MPI" if hvd.mpi_enabled() else "Gloo"
    built = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    facts = {"controller": used, "built with": " ".join(filter(built.get, built))}
    return Group(identity, device, sum_over_workers, facts)


def distribute(model: nn.Module, optimizer: Optimizer, config: RunConfig) -> tuple[nn.Module, Optimizer]:
    """Give every worker the weights of worker 0, and average gradients from now on."""
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    knobs, training = config.horovod or HorovodKnobs(), config.training
    half = hvd.Compression.fp16 if training.gradient_compression == "fp16" else hvd.Compression.none
    return model, hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), half, training.accumulate, groups=knobs.groups
    )


def hold_gradients(model: nn.Module) -> AbstractContextManager[object]:
    """The optimizer itself counts backward passes, and averages at the last one of a step."""
    return nullcontext()


def wait_for_gradients(optimizer: Optimizer) -> None:
    optimizer.synchronize()  # type: ignore[attr-defined]


def update(optimizer: Optimizer) -> None:
    with optimizer.skip_synchronize():  # type: ignore[attr-defined]
        optimizer.step()


def sum_over_workers(tensor: Tensor) -> Tensor:
    return tensor.copy_(hvd.allreduce(tensor, op=hvd.Sum))


def leave_group() -> None:
    hvd.shutdown()


def main() -> None:
    with open_run(__doc__) as run:
        group = join_group(run.config)
        with recording(run, group) as record:
            data = load_data(run.config, group)
            model = build_model(run.config, group.device, SyncBatchNorm)
            optimizer = build_optimizer(model, run.config)
            record.begin(data, model)
            with waiting:
                replica, optimizer = distribute(model, optimizer, run.config)
            safe_points = record.resume(Trained(model, optimizer))
            step = Step(replica, optimizer, hold_gradients, wait_for_gradients, update, run.config)
            step.warm_up_step(data)
            meter = record.start_meter(replica, data)
            for epoch in record.epochs_left():
                if record.evaluation_is_due(epoch):
                    record.result(evaluate(model, data, group, record.epochs))
                record.epoch(train_epoch(step, data, group, epoch, meter, safe_points))
            record.finish(model, evaluate(model, data, group, record.epochs))
        leave_group()


if __name__ == "__main__":
    run_worker(main)
