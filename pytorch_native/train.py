"""Train the U-Net of one run folder with native PyTorch DDP."""

from contextlib import AbstractContextManager
from datetime import timedelta

from torch import Tensor, distributed, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from unet_scaling.data.loader import load_data
from unet_scaling.evaluation import evaluate
from unet_scaling.group.rendezvous import BACKEND_TIMEOUT_MARGIN, rendezvous, wait_for_peers
from unet_scaling.group.watchdog import waiting
from unet_scaling.group.worker import Group, identify_worker, own_device
from unet_scaling.run.checkpoint import Trained
from unet_scaling.run.recorder import recording
from unet_scaling.run.run_folder import open_run
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import run_worker
from unet_scaling.training import Step, build_model, build_optimizer, train_epoch


def join_group(config: RunConfig) -> Group:
    """Meet the other workers by TCP at the first host of the job."""
    identity = identify_worker(config)
    device = own_device(identity, config)
    backend = "nccl" if device.type == "cuda" else "gloo"
    patience = timedelta(seconds=config.training.timeout_seconds)
    with rendezvous(identity) as (host, port):
        store = TCPStore(host, port, None, identity.rank == 0, patience, wait_for_workers=False)
        wait_for_peers(store, identity, patience)
        distributed.init_process_group(
            backend, None, patience + BACKEND_TIMEOUT_MARGIN, identity.size, identity.rank, store
        )
    return Group(identity, device, sum_over_workers, {"backend": backend})


def distribute(model: nn.Module, optimizer: Optimizer, config: RunConfig) -> tuple[nn.Module, Optimizer]:
    """Give every worker the weights of worker 0, and average gradients from now on."""
    knobs = config.pytorch_native.model_dump(exclude_none=True) if config.pytorch_native else {}
    replica = DistributedDataParallel(model, forward_sync_buffers=False, **knobs)
    if config.training.gradient_compression == "fp16":
        replica.register_comm_hook(None, fp16_compress_hook)
    return replica, optimizer


def hold_gradients(model: nn.Module) -> AbstractContextManager[object]:
    """Inside, backward passes only add up the worker's own gradients."""
    assert isinstance(model, DistributedDataParallel)
    return model.no_sync()


def wait_for_gradients(optimizer: Optimizer) -> None:
    """Backward does not return before the gradients are averaged."""


def update(optimizer: Optimizer) -> None:
    optimizer.step()


def sum_over_workers(tensor: Tensor) -> Tensor:
    distributed.all_reduce(tensor)
    return tensor


def leave_group() -> None:
    distributed.destroy_process_group()


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
