"""The reference U-Net: 487,145 parameters in 82 tensors at width 8 and depth 5."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.checkpoint import checkpoint

Norm = Callable[[int], nn.Module]


class ConvolutionPair(nn.Module):
    """Two 3x3 convolutions that keep the size, each followed by its norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, norm: Norm) -> None:
        super().__init__()
        self.convolution1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm1 = norm(outputs)
        self.convolution2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = norm(outputs)

    def forward(self, features: Tensor) -> Tensor:
        # Work in place: no backward pass needs what the norm, or without one the convolution, gave.
        features = functional.relu_(self.norm1(self.convolution1(features)))
        return functional.relu_(self.norm2(self.convolution2(features)))


def _folded(convolution: nn.Conv2d, norm: nn.Module) -> tuple[nn.Conv2d, nn.Module]:
    """Make batch norm in evaluation mode, which scales and shifts, a part of a convolution."""
    if isinstance(norm, _BatchNorm):
        return fuse_conv_bn_eval(convolution, norm), nn.Identity()
    return convolution, norm


def _convolution_pairs(channels: list[int], norm: Norm) -> nn.ModuleList:
    """Return a pair from each of these numbers of channels to the next."""
    return nn.ModuleList(ConvolutionPair(inputs, outputs, norm) for inputs, outputs in pairwise(channels))


class UNet(nn.Module):
    """Encoder, decoder and a 1x1 head that gives one logit per pixel and class.

    Levels have width, 2 width, 4 width, ... channels. Images of any size are accepted: one that
    2^(depth-1) does not divide is padded evenly with zeros, and its logits are cropped back.
    """

    def __init__(
        self,
        channels: int = 1,
        width: int = 8,
        depth: int = 5,
        classes: int = 1,
        norm: Norm = nn.BatchNorm2d,
        *,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        upwards = widths[::-1]
        # Seeds give the same weights only as long as the modules are made in this order.
        self.encoder = _convolution_pairs([channels, *widths], norm)
        self.upsampling = nn.ModuleList(
            nn.ConvTranspose2d(deep, flat, 2, stride=2) for deep, flat in pairwise(upwards)
        )
        self.decoder = _convolution_pairs(upwards, norm)
        self.head = nn.Conv2d(width, classes, 1)
        self.multiple = 2 ** (depth - 1)
        self.checkpointing = checkpointing

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width] of images [batch, channels, height, width]."""
        height, width = images.shape[-2:]
        top, bottom = _margins(height, self.multiple)
        left, right = _margins(width, self.multiple)
        if top or bottom or left or right:
            images = functional.pad(images, (left, right, top, bottom))
        logits: Tensor = self.head(self._features(images))
        return logits[..., top : top + height, left : left + width]

    def for_inference(self) -> "UNet":
        """Return a copy in evaluation mode without batch norm, whose logits differ by rounding alone."""
        other = copy.deepcopy(self).eval()
        for part in other.modules():
            if isinstance(part, ConvolutionPair):
                part.convolution1, part.norm1 = _folded(part.convolution1, part.norm1)
                part.convolution2, part.norm2 = _folded(part.convolution2, part.norm2)
        return other

    def _features(self, features: Tensor) -> Tensor:
        compute = _computed_again if self.checkpointing and torch.is_grad_enabled() else _computed
        levels: list[Tensor] = []
        for level, pair in enumerate(self.encoder):
            features = compute(_down if level else _first, pair, features)
            levels.append(features)
        for upsampling, pair, skipped in zip(self.upsampling, self.decoder, levels[-2::-1], strict=True):
            features = compute(_up, pair, upsampling, features, skipped)
        return features


def _first(pair: nn.Module, images: Tensor) -> Tensor:
    return pair(images)  # type: ignore[no-any-return]


def _down(pair: nn.Module, features: Tensor) -> Tensor:
    return pair(functional.max_pool2d(features, 2))  # type: ignore[no-any-return]


def _up(pair: nn.Module, upsampling: nn.Module, features: Tensor, skipped: Tensor) -> Tensor:
    return pair(torch.cat([upsampling(features), skipped], dim=1))  # type: ignore[no-any-return]


def _computed(level: Callable[..., Tensor], pair: nn.Module, *inputs: object) -> Tensor:
    return level(pair, *inputs)


def _computed_again(level: Callable[..., Tensor], pair: nn.Module, *inputs: object) -> Tensor:
    """Keep the inputs of a level alone, from which the backward pass computes it once more.

    Only the first time its batches count for the running statistics of batch norm.
    """
    computed: Tensor = checkpoint(
        level, pair, *inputs, use_reentrant=False, preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), _statistics_left(pair)),
    )  # fmt: skip
    return computed


@contextmanager
def _statistics_left(pair: nn.Module) -> Iterator[None]:
    """Let a batch be normalized without counting in the running statistics, which autograd has saved."""
    norms = [part for part in pair.modules() if isinstance(part, _BatchNorm) and part.training]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked -= 1


def _margins(length: int, multiple: int) -> tuple[int, int]:
    """Return the pixels to add before and after to make the length a multiple; the odd one goes after."""
    missing = -length % multiple
    return missing // 2, missing - missing // 2
