"""Parameters without a gradient in some passes (`task.find_unused_parameters`): they get one of zero.

DDP and Horovod each have their own way with a parameter that a pass does not use, and so would not train the
same weights: DDP searches the graph and may leave it without gradient, Horovod averages zeros. Here every
parameter is part of the graph of every loss, so that no framework meets one that is not used.
"""

from typing import Any

import torch
from torch import Tensor, nn


def with_zero_gradients(loss: Tensor, model: nn.Module) -> Tensor:
    """Return the loss as it is, from which every trained parameter gets a gradient, if of zeros.

    The gradient of a parameter that the loss uses is not changed.
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
        return gradient, *(_zeros(*weight) for weight in ctx.weights)


def _zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros that take the memory of one, until they are added or kept."""
    return torch.zeros((), dtype=dtype, device=device).expand(shape)
