"""The convolutions of a training step and nothing else: no arrangement of the rest goes below them."""

import torch
from torch import Tensor, nn

from unet_scaling.group.group import single_worker
from unet_scaling.study.config import RunConfig
from unet_scaling.task.loading import load_task
from unet_scaling.training import build_model

Convolution = nn.Conv2d | nn.ConvTranspose2d
Convolved = tuple[Convolution, torch.Size, torch.Size]


def convolutions_of(config: RunConfig, batch: int) -> list[Convolved]:
    """Return every convolution of a forward pass in its order, with the sizes of its input and output."""
    model = build_model(load_task(config), single_worker().device, nn.BatchNorm2d)
    layers_and_sizes: list[Convolved] = []

    def record_sizes(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, Convolution)
        layers_and_sizes.append((layer, inputs[0].shape, output.shape))

    layers = [layer for layer in model.modules() if isinstance(layer, Convolution)]
    hooks = [layer.register_forward_hook(record_sizes) for layer in layers]
    with torch.no_grad():
        model(torch.zeros(batch, config.data.channels, config.data.image_height, config.data.image_width))
    for hook in hooks:
        hook.remove()
    return layers_and_sizes


class ConvolutionsAlone:
    """Forward and backward of every convolution of the network, on random channels-last tensors."""

    def __init__(self, config: RunConfig) -> None:
        self._work: list[tuple[nn.Module, Tensor, Tensor]] = []
        for layer, inputs, outputs in convolutions_of(config, config.training.batch_per_worker):
            is_first = not self._work  # nobody asks for the gradient of the images
            self._work.append((layer, _random(inputs).requires_grad_(not is_first), _random(outputs)))

    def step(self) -> None:
        for layer, image, gradient in self._work:
            wanted = [*layer.parameters(), *([image] if image.requires_grad else [])]
            torch.autograd.grad(layer(image), wanted, gradient)


def _random(shape: torch.Size) -> Tensor:
    return torch.rand(shape).contiguous(memory_format=torch.channels_last)
