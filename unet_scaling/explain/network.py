"""The trained network as a black box: scores of masked images against its prediction for the clean one."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unet_scaling.data.batches import CropBox, ImageBatch
from unet_scaling.model import UNet
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_DIVERGED, UserError

# How maps follow from weights. Change it with any change of the bytes of maps: a resumed run then makes its
# earlier maps again instead of mixing both.
ARITHMETIC = "batch norm folded; on CPUs channels last"

Doubles = NDArray[np.float64]


class NotFiniteError(UserError):
    """What the network predicts on a test image is not finite."""

    def __init__(self, image: str = "a test image") -> None:
        super().__init__(f"saliency: the network's prediction for {image} is not finite", EXIT_DIVERGED)


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


@dataclass(frozen=True)
class CleanImage:
    """An image, and the region that the network predicts on it, both without its padding.

    `region` is bool [height, width] on the device, `reference` the scores [2] of the image itself, `fill`
    what hidden pixels become, float64 [channels, 1, 1]; None for black.
    """

    batch: ImageBatch
    region: Tensor
    reference: Doubles
    fill: Tensor | None
    network: ExplainedNetwork

    @property
    def box(self) -> CropBox:
        assert self.batch.box is not None
        return self.batch.box

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is predicted: then no score exists."""
        return not bool(self.region.any())

    def scores(self, masks: NDArray[np.generic]) -> Doubles:
        """Return the scores [n, 2] of the image under masks [n, height, width] of its padded size.

        One forward pass: its sums may depend on how many masks there are.
        """
        kept = torch.from_numpy(np.ascontiguousarray(masks)).to(self.batch.images.device).unsqueeze(1)
        images = self.batch.images * kept
        if self.fill is not None:
            # In float64, as xaitk does.
            images = (images.double() + (1 - kept.float()) * self.fill).float()
        return self.scores_of(images)

    def scores_of(self, images: Tensor) -> Doubles:
        """Return the scores [n, 2] of images [n, channels, height, width] that stand for the clean one."""
        return region_scores(self.batch.cropped(self.network.logits(images)), self.region)

    def scores_of_image(self, kept: NDArray[np.bool_]) -> Doubles:
        """Return the scores [n, 2] where masks are of the image without its padding, which stays."""
        top, left, height, width = self.box
        padded = np.ones((len(kept), *self.batch.images.shape[-2:]), np.bool_)
        padded[:, top : top + height, left : left + width] = kept
        return self.scores(padded)


def clean_image(network: ExplainedNetwork, batch: ImageBatch, config: RunConfig) -> CleanImage:
    """Return what the network predicts on a test image; NotFiniteError (70) where that is not finite."""
    logits = batch.cropped(network.logits(batch.images))
    if not bool(torch.isfinite(logits).all()):
        raise NotFiniteError
    region = logits[0] > 0
    fill = None
    if config.saliency.fill == "mean":
        fill = batch.cropped(batch.images).mean(dim=(0, 2, 3), dtype=torch.float64)[:, None, None]
    return CleanImage(batch, region, region_scores(logits, region)[0], fill, network)


def region_scores(logits: Tensor, region: Tensor) -> Doubles:
    """Return the scores [n, 2] of logits [n, height, width] against a region [height, width].

    The first is the mean probability within the region, the second the IoU of the predicted pixels with it;
    neither is a number where the region is empty.
    """
    probability = (torch.sigmoid(logits) * region).sum(dim=(1, 2), dtype=torch.float64)
    predicted = logits > 0
    common = (predicted & region).sum(dim=(1, 2))
    either = (predicted | region).sum(dim=(1, 2))
    scores = torch.stack([probability / region.sum(), common.double() / either], dim=1)
    found: Doubles = scores.cpu().numpy()
    return found
