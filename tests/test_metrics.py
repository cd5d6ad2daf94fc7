"""Counts and what follows from them, held against torchmetrics."""

import dataclasses

import pytest
import torch
from torchmetrics.classification import BinaryF1Score, BinaryJaccardIndex

from unet_scaling.format.record_lines import PixelCounts
from unet_scaling.task.task import count_pixels, image_ious, mean


def random_case(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, 1, 17, 23, generator=generator)
    return logits, (torch.rand(5, 1, 17, 23, generator=generator) > 0.7).float()


@pytest.mark.parametrize("seed", range(5))
def test_agrees_with_torchmetrics(seed: int) -> None:
    logits, masks = random_case(seed)
    of_images = torch.stack([count_pixels(*pair) for pair in zip(logits, masks, strict=True)])
    counts = PixelCounts(*of_images.sum(dim=0).tolist())
    assert sum(dataclasses.astuple(counts)) == masks.numel()
    assert counts.iou == pytest.approx(BinaryJaccardIndex()(logits.sigmoid(), masks.int()).item(), rel=1e-6)
    assert counts.dice == pytest.approx(BinaryF1Score()(logits.sigmoid(), masks.int()).item(), rel=1e-6)


def test_counts_each_kind_of_pixel() -> None:
    logits = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0])
    assert count_pixels(logits, torch.tensor([1.0, 0, 1, 0, 0])).tolist() == [1, 1, 1, 2]


def test_nothing_there_and_nothing_found_has_no_iou() -> None:
    counts = PixelCounts(0, 0, 0, 10)
    assert counts.iou is None
    assert counts.dice is None


def test_image_iou_is_the_mean_over_images_that_have_one() -> None:
    counts = torch.tensor([[1, 1, 0, 2], [0, 0, 0, 4], [1, 0, 0, 3]])
    assert mean(image_ious(counts)) == 0.75
    assert mean(image_ious(counts[1:2])) is None
