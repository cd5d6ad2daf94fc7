"""The trained network as maps need it: for many forward passes, and no backward pass."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unet_scaling.model import UNet
from unet_scaling.study.config import RunConfig

# How maps follow from weights. Change it with any change of the bytes of maps: a resumed run then makes its
# earlier maps again instead of mixing both.
ARITHMETIC = "batch norm folded; on CPUs channels last"


@dataclass(frozen=True)
class ExplainedNetwork:
    """A network in evaluation mode, and the memory layout in which it takes images."""

    model: nn.Module
    layout: torch.memory_format

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return float32 logits [n, height, width] of images [n, channels, height, width]."""
        # Copied, since kernels are chosen by strides, and one channel has several that mean the same.
        stored = torch.empty(
            images.shape, dtype=torch.float32, device=images.device, memory_format=self.layout
        )
        logits: Tensor = self.model(stored.copy_(images))
        return logits[:, 0].float()


def explained_network(model: nn.Module, config: RunConfig) -> ExplainedNetwork:
    """Return a copy of the run's U-Net that is made for inference.

    On CPUs images have channels last, which with folded norms makes a map of the reference network 1.08 times
    as fast. Of a GPU that is not known: there, `training.channels_last` decides.
    """
    assert isinstance(model, UNet), f"maps are of the built-in U-Net, not of {type(model).__name__}"
    is_on_cpu = next(model.parameters()).device.type == "cpu"
    is_last = is_on_cpu or config.training.channels_last
    layout = torch.channels_last if is_last else torch.contiguous_format
    copied = model.for_inference().to(memory_format=layout)  # type: ignore[call-overload]
    return ExplainedNetwork(copied, layout)
