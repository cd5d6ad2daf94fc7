"""The reference U-Net."""

import pytest
import torch
from torch import nn

from unet_scaling.model import UNet


def test_has_the_reference_size() -> None:
    parameters = list(UNet().parameters())
    assert len(parameters) == 82
    assert sum(parameter.numel() for parameter in parameters) == 487_145
    assert len(list(UNet().buffers())) == 54


@pytest.mark.parametrize(("height", "width"), [(64, 64), (50, 37), (16, 17), (1, 1), (33, 48)])
def test_gives_one_logit_per_pixel_at_any_size(height: int, width: int) -> None:
    model = UNet(width=2, depth=4).eval()
    assert model(torch.rand(1, 1, height, width)).shape == (1, 1, height, width)


def test_odd_sizes_are_padded_evenly_with_zeros() -> None:
    torch.manual_seed(0)
    model = UNet(width=2, depth=3).eval()
    image = torch.rand(1, 1, 13, 10)
    padded = torch.zeros(1, 1, 16, 12)
    padded[..., 1:14, 1:11] = image
    assert torch.equal(model(image), model(padded)[..., 1:14, 1:11])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_channels_classes_and_depth_are_free(channels: int, classes: int, depth: int) -> None:
    model = UNet(channels, width=2, depth=depth, classes=classes)
    assert model(torch.rand(2, channels, 32, 32)).shape == (2, classes, 32, 32)


def test_without_norm_there_are_no_statistics() -> None:
    assert list(UNet(norm=nn.Identity).buffers()) == []


def test_channels_last_images_change_no_result() -> None:
    torch.manual_seed(0)
    model = UNet(width=4, depth=3).eval()
    image = torch.rand(1, 3, 24, 24)[:, :1]
    there = image.to(torch.float32, memory_format=torch.channels_last)
    assert torch.allclose(model(image), model(there), atol=1e-6)
