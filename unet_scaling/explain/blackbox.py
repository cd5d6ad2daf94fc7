"""The network as a black box: scores of masked images against the prediction for the clean one."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unet_scaling.data.image_data import CropBox, ImageBatch
from unet_scaling.explain.faithfulness import Masks as KeptPixels
from unet_scaling.explain.network import ExplainedNetwork
from unet_scaling.explain.perturbers import MaskArray
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_DIVERGED, UserError

Doubles = NDArray[np.float64]


class NotFiniteError(UserError):
    """What the network predicts on a test image is not finite."""

    def __init__(self, image: str = "a test image") -> None:
        super().__init__(f"saliency: the network's prediction for {image} is not finite", EXIT_DIVERGED)


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

    @property
    def foreground(self) -> float:
        """Return the share of the image that is predicted as foreground."""
        return float(self.region.double().mean())

    def scores(self, masks: MaskArray) -> Doubles:
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
        logits = self.batch.cropped(self.network.logits(images))
        return region_scores(logits, self.region)

    def scores_of_image(self, kept: KeptPixels) -> Doubles:
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
    fill = mean_colour(batch) if config.saliency.fill == "mean" else None
    return CleanImage(batch, region, region_scores(logits, region)[0], fill, network)


def mean_colour(batch: ImageBatch) -> Tensor:
    """Return the mean of an image without its padding, float64 [channels, 1, 1]."""
    pixels: Tensor = batch.cropped(batch.images)
    return pixels.mean(dim=(0, 2, 3), dtype=torch.float64)[:, None, None]


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
