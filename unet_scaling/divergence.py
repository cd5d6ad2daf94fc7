"""Gradients that are not finite, checked after averaging: every worker sees them in the same step.

A NaN of one worker is in everybody's average. From the first such step on no update is made any more, so
that the weights stay the last good ones; the flag is on the device and read only between steps.
"""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


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
