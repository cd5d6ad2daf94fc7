"""The model and optimizer of an emulated worker: all that communicates is there, nothing is computed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unet_scaling.measure.emulated_compute import emulated_compute
from unet_scaling.model import UNet


class EmulatedUNet(UNet):
    """The parameters of the U-Net. Its passes wait; gradients are zero, ready in the recorded order."""

    def forward(self, images: Tensor) -> Tensor:
        """Return one logit of zero, whatever the images are."""
        order = emulated_compute.order()
        weights = list(self.parameters())
        logits = images.new_zeros(1, 1, 1, 1)
        # The node that is made last runs first in the backward pass; a gradient is accumulated, and its hooks
        # are called, before the next node runs.
        for place in reversed(range(len(order))):
            weight = weights[order[place]]
            logits = _ReadyGradient.apply(logits, weight, place)  # type: ignore[no-untyped-call]
        emulated_compute.forward()
        return logits


class _ReadyGradient(torch.autograd.Function):
    """The identity; in the backward pass it waits, then gives the parameter its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, weight: Tensor, place: int) -> Tensor:  # noqa: ANN401
        ctx.weight = weight
        ctx.place = place
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        # A new tensor each time, which the parameter takes over without a copy.
        own = torch.zeros_like(ctx.weight)
        emulated_compute.gradient(ctx.place)
        return gradient, own, None


class EmulatedAdam(torch.optim.Adam):
    """Waits as long as an update took, and changes no weight."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        with emulated_compute.clearing():
            super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        emulated_compute.update()


def parameter_bytes(model: nn.Module) -> dict[str, int]:
    """Return the size of every parameter by name, in the order of model.parameters()."""
    return {name: weight.numel() * weight.element_size() for name, weight in model.named_parameters()}
