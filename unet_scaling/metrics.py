"""Segmentation metrics from integer counts: summed over workers first, divided once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


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
