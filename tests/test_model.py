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


def test_odd_sizes_are_padded_evenly_with_zeros() -> None:
    torch.manual_seed(0)
    model = UNet(width=2, depth=3).eval()
    image = torch.rand(1, 1, 13, 10)
    padded = torch.zeros(1, 1, 16, 12)
    padded[..., 1:14, 1:11] = image
    assert torch.equal(model(image), model(padded)[..., 1:14, 1:11])


@pytest.mark.parametrize(
    ("channels", "classes", "depth", "height", "width"),
    [(1, 4, 1, 1, 1), (3, 1, 2, 16, 17), (3, 4, 5, 50, 37), (1, 1, 4, 64, 64)],
)
def test_gives_one_logit_per_pixel_and_class_at_any_size_and_depth(
    channels: int, classes: int, depth: int, height: int, width: int
) -> None:
    model = UNet(channels, width=2, depth=depth, classes=classes).eval()
    assert model(torch.rand(2, channels, height, width)).shape == (2, classes, height, width)
    assert list(UNet(depth=depth, norm=nn.Identity).buffers()) == []


def test_channels_last_images_change_no_result() -> None:
    torch.manual_seed(0)
    model = UNet(width=4, depth=3).eval()
    image = torch.rand(1, 3, 24, 24)[:, :1]
    there = image.to(torch.float32, memory_format=torch.channels_last)
    assert torch.allclose(model(image), model(there), atol=1e-6)


def test_a_copy_for_inference_has_no_norms_and_gives_the_same_logits() -> None:
    torch.manual_seed(0)
    model = UNet(width=4, depth=3)
    for _ in range(20):
        model(torch.rand(8, 1, 24, 24))  # for statistics that are not those of a new network
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, -2, 2)
            nn.init.uniform_(part.bias, -1, 1)
    other = model.for_inference()
    assert not any(isinstance(part, nn.BatchNorm2d) for part in other.modules())
    assert model.training
    assert len(list(model.buffers())) > 0
    images = torch.rand(4, 1, 24, 24)
    in_training = model(images)
    expected = model.for_inference()(images)
    assert torch.allclose(expected, model.eval()(images), rtol=0, atol=1e-5)
    # The statistics moved on with that pass: the first copy has its own.
    assert not torch.allclose(other(images), expected, rtol=0, atol=1e-4)
    assert not torch.allclose(in_training, expected, rtol=0, atol=1e-3)


def test_a_copy_for_inference_of_a_network_without_norms_is_equal() -> None:
    model = UNet(width=2, depth=3, norm=nn.Identity).eval()
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(model.for_inference()(images), model(images))
