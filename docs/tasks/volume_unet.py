"""A small 3-D U-Net that finds balls in noisy volumes, which are made."""

import torch
from torch import nn
from torch.nn import functional

SIDE = 16


def ball(index):
    """Return a noisy volume [1, 16, 16, 16] with a ball, and where it is; a function of the index alone."""
    draw = torch.Generator().manual_seed(index)
    centre = torch.randint(4, SIDE - 4, (3, 1, 1, 1), generator=draw)
    radius = torch.randint(2, 5, (), generator=draw)
    grid = torch.stack(torch.meshgrid(*[torch.arange(SIDE)] * 3, indexing="ij"))
    inside = ((grid - centre) ** 2).sum(dim=0, keepdim=True) <= radius**2
    return inside + 0.7 * torch.randn(1, SIDE, SIDE, SIDE, generator=draw), inside.float()


def convolutions(inputs, outputs):
    return nn.Sequential(nn.Conv3d(inputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU())


class UNet3d(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.flat = convolutions(1, width)
        self.deep = convolutions(width, 2 * width)
        self.upsampling = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.head = nn.Sequential(convolutions(2 * width, width), nn.Conv3d(width, 1, 1))

    def forward(self, volumes):
        flat = self.flat(volumes)
        deep = self.deep(functional.max_pool3d(flat, 2))
        return self.head(torch.cat([flat, self.upsampling(deep)], dim=1))


def build_model(options):
    return UNet3d(options["width"])


def datasets(options):
    balls = [ball(index) for index in range(options["samples"])]
    return balls[: -len(balls) // 5], balls[-len(balls) // 5 :]


def loss(model, batch):
    volumes, inside = batch
    return functional.binary_cross_entropy_with_logits(model(volumes), inside)


def count(model, batch):
    found, inside = model(batch[0]) > 0, batch[1] > 0
    return torch.stack([(found & inside).sum(), found.sum() + inside.sum()])


def score(counts):
    both, sizes = counts
    return {"dice": 2 * both / sizes if sizes else None}
