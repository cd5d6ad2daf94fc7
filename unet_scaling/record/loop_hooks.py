"""The phases of a hand-written training loop, by hooks on its model and optimizer.

    data wait        until the loader gives a batch
    host to device   from there until the forward pass
    forward          of the model alone
    backward         the loss, and until the last gradient of the worker is ready (measure/phases.py)
    sync             until the optimizer begins its update: with Horovod, until it has the averages
    optimizer        the update
    rest             until the next batch is asked for

What the script does between the backward pass and the update, such as clipping, is part of sync.
"""

import torch
from torch import nn
from torch.optim import Optimizer

from unet_scaling.measure.phases import Clock
from unet_scaling.study.measurements import Phase

NOT_ONE_FORWARD = "the model did not have one forward pass with gradients for each batch"
PASSES_IN_UPDATE = "the optimizer's update ran the passes itself: where sync ends is not known"


class LoopHooks:
    """Marks the phases of one epoch, and counts its forward passes and updates."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, clock: Clock) -> None:
        self.clock = clock
        self._forwards = 0
        self._depth = 0
        self._passes_in_update = False
        self.updates = 0
        own = unwrapped(optimizer)
        self._handles = (
            model.register_forward_pre_hook(self._forward_begins),
            model.register_forward_hook(self._forward_ends),
            own.register_step_pre_hook(self._update_begins),
            own.register_step_post_hook(self._update_ends),
        )

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def fault(self, batches: int) -> str:
        """Return why the phases of so many batches are not those of a step; empty where they are."""
        if self._passes_in_update:
            return PASSES_IN_UPDATE
        return "" if self._forwards == batches else NOT_ONE_FORWARD

    def _forward_begins(self, *_: object) -> None:
        # A pass without gradients, such as one of a teacher, is part of what comes next.
        if torch.is_grad_enabled():
            self._passes_in_update |= self._depth > 0
            self.clock.mark(Phase.HOST_TO_DEVICE)

    def _forward_ends(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self._forwards += 1
            self.clock.mark(Phase.FORWARD)

    def _update_begins(self, *_: object) -> None:
        # Horovod's optimizer waits for the averages in its step, and calls that of the wrapped one inside.
        self._depth += 1
        self.clock.mark(Phase.SYNC)

    def _update_ends(self, *_: object) -> None:
        self.clock.mark(Phase.OPTIMIZER)
        self._depth -= 1
        if self._depth == 0:
            self.updates += 1


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that updates: those of Fabric and Accelerate hold it, and call no hooks."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, Optimizer) else optimizer
