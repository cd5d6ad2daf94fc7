"""An emulated worker: all that communicates is there; loading, computing and updates are waited for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unet_scaling.data.batches import ImageBatch, ImageData
from unet_scaling.data.order import Indices
from unet_scaling.emulation.waits import emulated_compute
from unet_scaling.group.group import Group
from unet_scaling.measure.phases import Clock
from unet_scaling.model import UNet
from unet_scaling.study.compute_profile import ProfileFile, profile_of
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Data
from unet_scaling.study.record_lines import ComputeFacts

# One pixel: nothing is computed of it.
_PIXEL = (1, 1, 1, 1)


class ReplayedImages:
    """As many images as the manifest lists; a batch takes as long as the recorded one did."""

    def __init__(self, count: int, data: Data) -> None:
        self.boxes = np.tile(
            np.array([0, 0, data.image_height, data.image_width], dtype=np.int32), (count, 1)
        )

    def gather(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Wait; return one pixel, whatever was asked for."""
        emulated_compute.load()
        return torch.zeros(_PIXEL, dtype=torch.uint8), torch.zeros(_PIXEL[1:], dtype=torch.uint8)


@dataclass(frozen=True)
class EmulatedData(ImageData):
    """The batches of an emulated worker, each of one pixel; with each of them it begins a recorded step."""

    profile: ProfileFile = field(kw_only=True)

    @property
    def compute(self) -> ComputeFacts:
        """Return by which profile the workers wait."""
        profile = self.profile.profile
        return ComputeFacts(
            name=self.profile.name,
            sha256=self.profile.sha256,
            device=profile.device,
            assumption=profile.assumption,
        )

    def steps(self, epoch: int, clock: Clock, first: int = 0) -> Iterator[Iterator[ImageBatch]]:
        """Yield this worker's batches of each step from `first` on."""
        passes = self.config.passes_per_step
        emulated_compute.begin_epoch(epoch, self.steps_per_epoch * passes, first * passes)
        return super().steps(epoch, clock, first)

    def _next(self, gathered: Iterator[tuple[Tensor, Tensor]], clock: Clock) -> ImageBatch:
        emulated_compute.begin_pass()
        batch: ImageBatch = super()._next(gathered, clock)
        return batch

    def _transformed(self, batch: ImageBatch, epoch: int, indices: Indices, clock: Clock) -> ImageBatch:
        if self.config.emulation.data == "real":
            super()._transformed(batch, epoch, indices, clock)
            emulated_compute.skip_loading()
        return ImageBatch(torch.zeros(_PIXEL), torch.zeros(_PIXEL))


def emulated_profile(config: RunConfig, group: Group) -> ProfileFile:
    """Read the profile by which this worker waits from now on; UserError where it cannot."""
    if group.device.type != "cpu":
        found = f"{config.emulation.compute!r}: emulated workers have no GPU, but this one owns one"
        raise UserError(f"emulation.compute = {found}; set CUDA_VISIBLE_DEVICES= to hide it")
    file = profile_of(config)
    emulated_compute.start(file.profile, config.seed, group.rank)
    return file


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
