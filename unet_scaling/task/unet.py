"""The built-in task: the reference U-Net, images with masks, binary cross-entropy, and IoU."""

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from unet_scaling.data.batches import ImageBatch, ImageData
from unet_scaling.data.loader import load_data
from unet_scaling.emulation import EmulatedUNet, parameter_bytes
from unet_scaling.group.group import Group
from unet_scaling.model import Norm, UNet
from unet_scaling.study.compute_profile import profile_of, require_same_parameters
from unet_scaling.study.record_lines import Evaluated, Result
from unet_scaling.task.task import Task, finite_counts, require_finite


class UNetTask(Task):
    """Segmentation of the images of `[data]` by the network of `[model]`."""

    def load_data(self, group: Group) -> ImageData:
        return load_data(self.config, group)

    def build_model(self, synchronized_norm: Norm) -> UNet:
        """Return the U-Net, or what stands for it in an emulated worker.

        Raises UserError where the profile to wait by is of another network, and where batch norm over all
        workers is asked for on a CPU.
        """
        config = self.config
        network = EmulatedUNet if config.is_emulated else UNet
        norm = self._norm(synchronized_norm)
        model = network(config.data.channels, config.model.width, config.model.depth, norm=norm)
        if config.is_emulated:
            require_same_parameters(profile_of(config), parameter_bytes(model))
        return model

    def _norm(self, synchronized_norm: Norm) -> Norm:
        norms: dict[str, Norm] = {"local": nn.BatchNorm2d, "sync": synchronized_norm, "off": nn.Identity}
        return norms[self.config.model.batch_norm]

    def loss(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        """Return the binary cross-entropy with logits, the mean over images and pixels."""
        return functional.binary_cross_entropy_with_logits(model(batch.images).float(), batch.masks)

    def count(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        """Return int64 [4]: true positive, false positive, false negative, true negative pixels."""
        logits = batch.cropped(model(batch.images))
        return finite_counts(count_pixels(logits, batch.cropped(batch.masks)), [logits])

    def result(self, counts: Tensor, evaluated: Evaluated) -> Result:
        require_finite(counts, evaluated.epochs, "evaluation")
        total = total_counts(counts)
        return Result(
            **evaluated.model_dump(),
            **dataclasses.asdict(total),
            iou=total.iou,
            dice=total.dice,
            image_iou=mean_image_iou(counts),
        )


@dataclass(frozen=True)
class PixelCounts:
    """Pixels of a test set by mask and prediction."""

    true_positive: int
    false_positive: int
    false_negative: int
    true_negative: int

    @property
    def iou(self) -> float | None:
        """Return TP / (TP + FP + FN); none where neither mask nor prediction has foreground."""
        union = self.true_positive + self.false_positive + self.false_negative
        return self.true_positive / union if union else None

    @property
    def dice(self) -> float | None:
        """Return 2 TP / (2 TP + FP + FN); none where neither mask nor prediction has foreground."""
        both = 2 * self.true_positive + self.false_positive + self.false_negative
        return 2 * self.true_positive / both if both else None


def count_pixels(logits: Tensor, mask: Tensor) -> Tensor:
    """Return int64 [4]: true positive, false positive, false negative, true negative pixels.

    A pixel is predicted as foreground where its logit is above 0, that is its probability above
    one half. `logits` and `mask` have the same shape; the mask holds 0 and 1.
    """
    assert logits.shape == mask.shape, f"logits {tuple(logits.shape)}, mask {tuple(mask.shape)}"
    predicted = logits > 0
    actual = mask > 0
    true_positive = (predicted & actual).sum()
    false_positive = predicted.sum() - true_positive
    false_negative = actual.sum() - true_positive
    true_negative = mask.numel() - true_positive - false_positive - false_negative
    return torch.stack([true_positive, false_positive, false_negative, true_negative])


def total_counts(counts: Tensor) -> PixelCounts:
    """Return the sum of int64 counts [images, 4]."""
    true_positive, false_positive, false_negative, true_negative = counts.sum(dim=0).tolist()
    return PixelCounts(true_positive, false_positive, false_negative, true_negative)


def mean_image_iou(counts: Tensor) -> float | None:
    """Return the mean of the images' own IoU, over those that have one, from int64 counts [images, 4]."""
    of_images = [PixelCounts(*row).iou for row in counts.tolist()]
    defined = [iou for iou in of_images if iou is not None]
    # Summed exactly, so that it does not depend on the order of the images.
    return math.fsum(defined) / len(defined) if defined else None
