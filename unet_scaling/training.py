"""Task, model and optimizer of a run, its learning rate at each epoch, and one optimizer step."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_scaling.base.errors import UserError, optional_part
from unet_scaling.data.batches import Batch, RunData, StepBatches
from unet_scaling.format.record_lines import Phase
from unet_scaling.group.gpus import require_compiler
from unet_scaling.group.group import wait_for_device
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.epoch_meter import NO_CLOCK, Clock
from unet_scaling.model import Norm
from unet_scaling.run import training_state
from unet_scaling.study.config import RunConfig
from unet_scaling.task.task import Task, UNetTask

# The reference divides its rate by 2, 4 and 8 from epochs 80, 120 and 150 of 200.
REFERENCE_STAGES = ((0.40, 2), (0.60, 4), (0.75, 8))


class NonFiniteGradientGuard:
    """Keeps a fused optimizer from updating weights by gradients that are not finite."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._flag = torch.zeros((), device=self._weights[0].device)
        # A wrapper of an optimizer keeps what is set on it to itself: the flag would be ignored.
        raw: Any = getattr(optimizer, "optimizer", optimizer)
        # Fused optimizers skip a step on the device where this is 1, as they do for a GradScaler.
        raw.found_inf = self._flag

    def check(self) -> None:
        """Check the averaged gradients, before the update; does not wait for the device."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        # A norm is finite exactly when all of its elements are, but for overflow, which is divergence too.
        total = torch.stack(list(torch._foreach_norm(gradients))).sum()
        self._flag.copy_(torch.maximum(self._flag, torch.isfinite(total).logical_not().to(self._flag)))

    def triggered(self) -> bool:
        """Return whether any step had such gradients; waits for the device."""
        return bool(self._flag.item())


def learning_rate(config: RunConfig, epoch: int) -> float:
    """Return the rate of a whole epoch, from epoch 0: a pure function of the configuration and the epoch.

    During the warm-up it rises in equal steps from the rate of one worker to the scaled one.
    """
    training = config.training
    workers = config.played_workers
    factors = {"linear": float(workers), "square_root": math.sqrt(workers), "none": 1.0}
    factor = factors[training.rate_scaling]
    if epoch < training.warmup_epochs:
        factor = 1 + (factor - 1) * (epoch + 1) / (training.warmup_epochs + 1)
    divisor = 1
    if training.schedule != "constant":
        divisor = max((by for share, by in REFERENCE_STAGES if epoch >= share * training.epochs), default=1)
    return training.learning_rate * factor * config.strategy.stale_rate_factor / divisor


def load_task(config: RunConfig) -> Task:
    """Return the task of a run: that of its file, or the built-in U-Net. Raises UserError as `FileTask`."""
    if not config.has_own_task:
        return UNetTask(config)
    # A run of the built-in task needs none of what verifies others.
    from unet_scaling.task.file_task import FileTask

    return FileTask(config)


def build_model(task: Task, device: torch.device, synchronized_norm: Norm) -> nn.Module:
    """Return the model of the task on the worker's device; its weights are a function of the seed alone.

    `synchronized_norm` is the framework's batch norm over all workers. Raises UserError where the device
    cannot have it, where the weights to start from or the profile to wait by do not fit, and where the node
    lacks a compiler.
    """
    config = task.config
    training = config.training
    if config.model.batch_norm == "sync" and device.type == "cpu":
        raise UserError(
            "model.batch_norm = 'sync': the frameworks have it for GPUs only; use 'local' or 'off'"
        )
    training_state.set_float32_precision(training.precision)
    torch.backends.cudnn.benchmark = training.cudnn_benchmark
    torch.manual_seed(config.seed)
    model = task.build_model(synchronized_norm)
    if training.initial_weights is not None:
        training_state.load_weights(model, Path(training.initial_weights))
    model.to(device)
    if training.channels_last:
        _name_strides_as_gradients_will(model)
    if config.plays_per_worker > 1:
        model.add_module(
            training_state.PLAYED_STATISTICS, training_state.PlayedStatistics(model, config.plays_per_worker)
        )
    if training.compile:
        require_compiler(device.type == "cuda")
        model.compile()
    return model


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


def build_optimizer(task: Task, model: nn.Module) -> Optimizer:
    """Return the optimizer of the task at the rate of the first epoch.

    Raises UserError for one that not all frameworks would take in the same way.
    """
    if task.config.is_emulated:
        with optional_part("emulation.compute"):
            from unet_scaling.emulation.worker import EmulatedAdam
        return EmulatedAdam(task.parameters(model), lr=learning_rate(task.config, 0), fused=True)
    optimizer = task.optimizer(model)
    groups = optimizer.param_groups
    # Horovod makes another object of the class, and gives it the groups alone; a fused one can leave a step
    # out on the device (NonFiniteGradientGuard).
    is_known = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
    if not is_known or not all(group["fused"] for group in groups) or groups[0]["lr"] <= 0:
        raise UserError(
            f"task.file: optimizer gives {type(optimizer).__name__}; use Adam, AdamW or SGD of torch.optim, "
            "with fused=True and a first lr above 0"
        )
    set_learning_rate(optimizer, learning_rate(task.config, 0))
    return optimizer


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Give the first group of parameters this rate, and the others rates in the ratio they were made with."""
    groups = optimizer.param_groups
    for group in groups:
        group.setdefault("initial_lr", float(group["lr"]))
    for group in groups:
        group["lr"] = rate * (group["initial_lr"] / groups[0]["initial_lr"])


class Twin(NamedTuple):
    """The functions by which a framework averages gradients; each is explained in its twin."""

    distribute: Callable[[nn.Module, Optimizer, RunConfig], tuple[nn.Module, Optimizer]]
    hold_gradients: Callable[[nn.Module], AbstractContextManager[object]]
    wait_for_gradients: Callable[[Optimizer], None]
    update: Callable[[Optimizer], None]


# Nothing is averaged.
ALONE = Twin(
    lambda model, optimizer, _: (model, optimizer),
    lambda _: nullcontext(),
    lambda _: None,
    lambda optimizer: optimizer.step(),
)


@dataclass(frozen=True)
class Step:
    """One optimizer step, in which a framework averages the gradients."""

    # Whether all workers have the same weights and optimizer between any two steps.
    is_shared: ClassVar[bool] = True

    task: Task
    model: nn.Module
    optimizer: Optimizer
    twin: Twin = ALONE

    @property
    def config(self) -> RunConfig:
        return self.task.config

    @cached_property
    def guard(self) -> NonFiniteGradientGuard:
        return NonFiniteGradientGuard(self.model, self.optimizer)

    @property
    def players(self) -> range:
        """Return the numbers of the workers that this one plays: of itself alone, 0."""
        return range(self.config.plays_per_worker)

    @cached_property
    def _played(self) -> training_state.PlayedStatistics | None:
        return training_state.played_statistics(self.model)

    def warm_up_step(self, data: RunData) -> None:
        """Take a step without its update, and restore the state: memory that lacks shows before any epoch.

        So does a buffer that cannot be averaged: UserError, on every worker alike.

        DDP also rearranges its buckets after a first step, and does so in a resumed run too.
        """
        if self.config.training.epochs == 0:
            return
        of_players = list(self._played.generators) if self._played else []
        with blocking, training_state.leaving_no_trace(self.model):
            self.model.train()
            self.average_gradients(self.players, next(data.steps(0, NO_CLOCK)), NO_CLOCK)
            wait_for_device(data.group.device)
            training_state.buffers_that_differ(self.model, data.group)
        self.optimizer.zero_grad()
        if self._played:
            self._played.generators[:] = of_players

    def take(self, batches: Iterable[Batch], clock: Clock, left: int = 0) -> Tensor:  # noqa: ARG002
        """Average the gradients of all batches of all workers and update; return this worker's mean loss.

        `left` are the steps of the epoch that follow: a strategy may exchange something in the last one.
        """
        return self.take_as(self.players, batches, clock)

    def take_as(self, players: range, batches: Iterable[Batch], clock: Clock) -> Tensor:
        """Take a step as some of the workers that this one plays; return their mean loss."""
        self.optimizer.zero_grad()
        clock.mark(Phase.OPTIMIZER)
        loss = self.average_gradients(players, batches, clock)
        self.update(clock)
        return loss

    def update(self, clock: Clock) -> None:
        """Update the weights by the gradients, unless these are not finite."""
        if not self.config.is_emulated:
            self.guard.check()
        self.twin.update(self.optimizer)
        clock.mark(Phase.OPTIMIZER)

    def own_state(self) -> list[dict[str, Any]]:
        """Return what this worker has for itself between two steps; nothing where all are equal."""
        return []

    def set_own_state(self, state: list[dict[str, Any]]) -> None:
        """Go on from what `own_state` returned. ValueError, or as torch raises, where it does not fit."""

    def average_gradients(self, players: range, batches: Iterable[Batch], clock: Clock) -> Tensor:
        """Leave the mean gradients of all batches of all workers in place; return this worker's mean loss.

        `players` are those of the workers that this one plays whose batches these are.
        """
        losses = []
        passes = len(players) * self.config.training.accumulate
        batches = batches if isinstance(batches, StepBatches) else StepBatches(batches)
        for number, batch in zip(range(passes), batches, strict=False):
            is_last = number + 1 == passes
            held = nullcontext() if is_last else self.twin.hold_gradients(self.model)
            player = players[number // self.config.training.accumulate]
            with held, self._played.acting(player) if self._played else nullcontext():
                losses.append(self._forward_and_backward(batch, passes, clock, batches.load_ahead))
            # The last backward pass marks its own end: what follows its last gradient is sync.
            if not is_last:
                clock.mark(Phase.BACKWARD)
        assert len(losses) == passes, f"{len(losses)} batches of {passes}"
        missing = self.task.missing_gradients()
        self.twin.wait_for_gradients(self.optimizer)
        # Not before: a worker does not leave while Horovod still averages.
        if missing:
            raise missing
        clock.mark(Phase.SYNC)
        return torch.stack(losses).sum()

    def _forward_and_backward(
        self, batch: Batch, passes: int, clock: Clock, load_ahead: Callable[[Clock], None]
    ) -> Tensor:
        half = self.config.training.precision == "bf16"
        device = next(self.model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = self.task.loss(self.model, batch)
        if self.config.task.find_unused_parameters:
            loss = with_zero_gradients(loss, self.model)
        loss = loss / passes
        clock.mark(Phase.FORWARD)
        load_ahead(clock)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def with_zero_gradients(loss: Tensor, model: nn.Module) -> Tensor:
    """Return the loss as it is, from which every trained parameter gets a gradient, if of zeros.

    With a parameter that a pass does not use (`task.find_unused_parameters`) DDP and Horovod have each their
    own way: so neither meets one. The gradient of a parameter that the loss uses is not changed.
    """
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    joined: Tensor = _ZeroGradients.apply(loss, *trained)  # type: ignore[no-untyped-call]
    return joined


class _ZeroGradients(torch.autograd.Function):
    # A term `0 * weight.sum()` would read all weights, and be NaN where one is infinite.
    @staticmethod
    def forward(ctx: Any, loss: Tensor, *weights: Tensor) -> Tensor:  # noqa: ANN401
        ctx.weights = [(weight.shape, weight.dtype, weight.device) for weight in weights]
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        # Each takes the memory of one zero, until it is added or kept.
        zeros = (
            torch.zeros((), dtype=dtype, device=device).expand(shape) for shape, dtype, device in ctx.weights
        )
        return gradient, *zeros
