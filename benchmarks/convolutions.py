"""The convolutions of a training step and nothing else: no arrangement of the rest goes below them."""

import torch
from torch import Tensor, nn

from benchmarks.scenes import alone
from unet_scaling.config import Point
from unet_scaling.training import build_model


class ConvolutionsAlone:
    """Forward and backward of every convolution of the network, on random channels-last tensors."""

    def __init__(self, point: Point) -> None:
        self._met: list[tuple[nn.Module, Tensor, Tensor]] = []
        model = build_model(point, alone().device, nn.BatchNorm2d)
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                layer.register_forward_hook(self._meet)
        shape = (point.training.batch_per_worker, point.data.channels)
        with torch.no_grad():
            model(torch.zeros(*shape, point.data.image_height, point.data.image_width))
        for layer in model.modules():
            layer._forward_hooks.clear()

    def _meet(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        is_first = not self._met  # nobody asks for the gradient of the images
        image = _random(inputs[0].shape).requires_grad_(not is_first)
        self._met.append((layer, image, _random(output.shape)))

    def step(self) -> None:
        for layer, image, gradient in self._met:
            wanted = [*layer.parameters(), *([image] if image.requires_grad else [])]
            torch.autograd.grad(layer(image), wanted, gradient)


def _random(shape: torch.Size) -> Tensor:
    return torch.rand(shape).contiguous(memory_format=torch.channels_last)
