"""Training: model and optimizer of a point, its rate at each epoch, and one epoch under the clock."""

import math
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from unet_scaling.data.loader import Batch, RunData
from unet_scaling.divergence import NonFiniteGradientGuard
from unet_scaling.group.allocator import keep_memory
from unet_scaling.group.watchdog import waiting
from unet_scaling.group.worker import Group
from unet_scaling.measure.epoch_meter import Meter
from unet_scaling.measure.phases import NO_CLOCK, Clock
from unet_scaling.model import Norm, UNet
from unet_scaling.run.checkpoint import EpochSoFar
from unet_scaling.run.safe_points import Position, SafePoints
from unet_scaling.run.weights import load_weights
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_DIVERGED, UserError
from unet_scaling.study.measurements import Phase
from unet_scaling.study.progress import progress
from unet_scaling.study.record_lines import Epoch

# The reference divides its rate by 2, 4 and 8 from epochs 80, 120 and 150 of 200.
REFERENCE_STAGES = ((0.40, 2), (0.60, 4), (0.75, 8))


def learning_rate(config: RunConfig, epoch: int) -> float:
    """The rate of a whole epoch: a pure function of the configuration and the epoch, from epoch 0.

    During the warm-up it climbs in equal stairs from the rate of one worker to the scaled one.
    """
    training = config.training
    factors = {"linear": float(config.workers), "square_root": math.sqrt(config.workers), "none": 1.0}
    factor = factors[training.rate_scaling]
    if epoch < training.warmup_epochs:
        factor = 1 + (factor - 1) * (epoch + 1) / (training.warmup_epochs + 1)
    return training.learning_rate * factor / _divisor(config, epoch)


def _divisor(config: RunConfig, epoch: int) -> int:
    if config.training.schedule == "constant":
        return 1
    passed = [divisor for share, divisor in REFERENCE_STAGES if epoch >= share * config.training.epochs]
    return passed[-1] if passed else 1


def build_model(config: RunConfig, device: torch.device, synchronized_norm: Norm) -> UNet:
    """The U-Net of this point on the worker's device; its weights are a function of the seed alone.

    `synchronized_norm` is the framework's batch norm over all workers, for points that ask for it.
    """
    if config.model.batch_norm == "sync" and device.type == "cpu":
        raise UserError(
            "model.batch_norm = 'sync': both frameworks have it for GPUs only; use 'local' or 'off'"
        )
    # fp32 means fp32: torch would otherwise allow TF32 in the convolutions of a GPU.
    torch.backends.fp32_precision = "tf32" if config.training.precision == "tf32" else "ieee"  # type: ignore[attr-defined]
    torch.manual_seed(config.seed)
    shape = config.model
    norms: dict[str, Norm] = {"local": nn.BatchNorm2d, "sync": synchronized_norm, "off": nn.Identity}
    model = UNet(config.data.channels, shape.width, shape.depth, norm=norms[shape.batch_norm])
    if config.training.initial_weights is not None:
        load_weights(model, Path(config.training.initial_weights))
    model.to(device)
    if config.training.channels_last:
        _name_strides_as_gradients_will(model)
    if config.training.compile:
        _require_compiler()
        model.compile()
    return model


def _require_compiler() -> None:
    """torch.compile calls a C++ compiler on the node of the worker, on GPUs too.

    Going on without would compare a worker that is compiled with one that is not.
    """
    wanted = os.environ.get("CXX", "g++")
    if shutil.which(wanted) is None:
        raise UserError(
            f"training.compile = true needs a C++ compiler on every node, but {socket.gethostname()} has no"
            f" {wanted!r}; load one, name it in CXX, or set training.compile = false"
        )


def _name_strides_as_gradients_will(model: nn.Module) -> None:
    """Spare DDP a copy per step of the weights with one channel or one pixel.

    All weights stay contiguous, also for channels-last images: Horovod averages contiguous tensors
    only, and convolutions follow the layout of the images. Where a shape is contiguous under both
    layouts, its gradient has the strides of channels-last, and DDP compares strides literally.
    """
    for weight in (parameter for parameter in model.parameters() if parameter.dim() == 4):
        renamed = torch.empty_like(weight, memory_format=torch.channels_last)
        if renamed.is_contiguous():
            weight.data = renamed.copy_(weight.data)


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Adam, fused: one pass over the weights, and one that can leave a step out (see divergence.py)."""
    return torch.optim.Adam(model.parameters(), lr=learning_rate(config, 0), fused=True)


@dataclass(frozen=True)
class Step:
    """One optimizer step; what belongs to the framework are the functions of its twin."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    hold_gradients: Callable[[nn.Module], AbstractContextManager[object]]
    wait_for_gradients: Callable[[torch.optim.Optimizer], None]
    update: Callable[[torch.optim.Optimizer], None]
    config: RunConfig

    @cached_property
    def guard(self) -> NonFiniteGradientGuard:
        return NonFiniteGradientGuard(self.model, self.optimizer)

    def warm_up_step(self, data: RunData) -> None:
        """Take a step but for the update, and leave no trace: what lacks memory shows before the first epoch.

        DDP also rearranges its buckets after a first step, and does so in a resumed run too. What a first
        step allocates for good is there now, so memory is kept from here on.
        """
        if self.config.training.epochs == 0:
            return
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        self.model.train()
        self._average_gradients(next(data.steps(0, NO_CLOCK)), NO_CLOCK)
        self.optimizer.zero_grad()
        for buffer, before in zip(self.model.buffers(), statistics, strict=True):
            buffer.copy_(before)
        keep_memory()

    def take(self, batches: list[Batch], clock: Clock) -> Tensor:
        """Average the gradients of all batches of all workers and update; returns this worker's mean loss."""
        self.optimizer.zero_grad()
        clock.mark(Phase.OPTIMIZER)
        loss = self._average_gradients(batches, clock)
        self.guard.look()
        self.update(self.optimizer)
        clock.mark(Phase.OPTIMIZER)
        return loss

    def _average_gradients(self, batches: list[Batch], clock: Clock) -> Tensor:
        """Leave the gradients of all batches of all workers in the weights; this worker's mean loss."""
        losses = []
        for number, batch in enumerate(batches, start=1):
            last = number == len(batches)
            with nullcontext() if last else self.hold_gradients(self.model), waiting:
                loss = self._loss(batch) / len(batches)
                clock.mark(Phase.FORWARD)
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            if not last:
                clock.mark(Phase.BACKWARD)
        # Backward has marked its own end: what it spent after its last gradient is sync.
        with waiting:
            self.wait_for_gradients(self.optimizer)
        clock.mark(Phase.SYNC)
        return torch.stack(losses).sum()

    def _loss(self, batch: Batch) -> Tensor:
        """Binary cross-entropy with logits, the mean over images and pixels."""
        half = self.config.training.precision == "bf16"
        with torch.autocast(batch.images.device.type, torch.bfloat16, enabled=half):
            logits = self.model(batch.images)
        return functional.binary_cross_entropy_with_logits(logits.float(), batch.masks)


def train_epoch(
    step: Step, data: RunData, group: Group, epoch: int, meter: Meter, safe_points: SafePoints
) -> Epoch:
    """Train one epoch; the clock covers the steps of the slowest worker and nothing else.

    Raises UserError (70) where a loss or gradient is not finite, and StoppedError where the run was asked to
    stop: on every worker alike.
    """
    rate = learning_rate(step.config, epoch)
    for parameters in step.optimizer.param_groups:
        parameters["lr"] = rate
    step.model.train()
    first, so_far = safe_points.begin_epoch(epoch)
    loss = so_far.loss
    meter.begin(so_far.seconds)
    batches_of_steps = data.steps(epoch, meter.clock, first)
    label = f"epoch {epoch + 1}"
    shown = progress(batches_of_steps, data.steps_per_epoch - first, label, group.rank == 0)
    for done, batches in enumerate(shown, start=first + 1):
        loss = loss + step.take(batches, meter.clock)
        meter.clock.next_step()
        if safe_points.is_due() and done < data.steps_per_epoch:
            seconds = meter.pause()
            safe_points.visit(Position(epoch, done), EpochSoFar(loss, seconds), step.guard.triggered())
            meter.resume()
    ended = _ended(step, data, group, epoch, meter, loss)
    return ended.model_copy(update={"warmup": safe_points.is_first(epoch)})


def _ended(step: Step, data: RunData, group: Group, epoch: int, meter: Meter, loss: Tensor) -> Epoch:
    """The epoch that has just ended, as all workers together know it."""
    own_seconds = meter.end()
    seconds = group.gather_numbers(own_seconds)
    mean_loss = math.fsum(group.gather_numbers(loss.item())) / group.size / data.steps_per_epoch
    if not math.isfinite(mean_loss) or any(group.gather_numbers(step.guard.triggered())):
        raise UserError(f"the loss of epoch {epoch} is {mean_loss}: the training diverged", EXIT_DIVERGED)
    measures = meter.measures(epoch, own_seconds)
    return Epoch(
        epoch=epoch,
        seconds=max(seconds),
        worker_seconds=seconds,
        images=data.images_per_epoch,
        steps=data.steps_per_epoch,
        loss=mean_loss,
        learning_rate=step.optimizer.param_groups[0]["lr"],
        warmup=False,
        budget=measures.budget,
        no_budget=measures.no_budget,
        cpu=measures.cpu,
        gpu=measures.gpu,
    )
