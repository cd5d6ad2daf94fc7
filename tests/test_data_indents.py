"""Synthetic indents are reproducible, varied, and not separable by a threshold."""

import numpy as np
import pytest

from unet_scaling.data.indents import draw_indents


def test_a_picture_is_a_function_of_seed_and_index() -> None:
    for first, second in zip(draw_indents(64, 80, 3, 7), draw_indents(64, 80, 3, 7), strict=True):
        assert first.shape == (64, 80)
        assert first.dtype == np.uint8
        np.testing.assert_array_equal(first, second)
    pictures = [draw_indents(64, 80, seed, index)[0] for seed in range(3) for index in range(3)]
    assert len({picture.tobytes() for picture in pictures}) == 9


def test_masks_hold_0_and_255_and_every_picture_has_an_imprint() -> None:
    masks = [draw_indents(128, 128, 5, index)[1] for index in range(20)]
    assert all(np.unique(mask).tolist() == [0, 255] for mask in masks)
    shares = [(mask > 0).mean() for mask in masks]
    assert 0.02 < np.median(shares) < 0.3
    assert max(shares) < 0.6


def best_threshold_iou(image: np.ndarray, mask: np.ndarray) -> float:
    """The IoU of the best threshold for this one picture, on either side of it."""
    foreground = mask > 0
    best = 0.0
    for threshold in range(0, 256, 8):
        for predicted in (image > threshold, image < threshold):
            union = (predicted | foreground).sum()
            best = max(best, float((predicted & foreground).sum() / union) if union else 0.0)
    return best


def test_no_threshold_solves_it_even_if_chosen_per_picture() -> None:
    best = [best_threshold_iou(*draw_indents(128, 128, 1, index)) for index in range(20)]
    assert np.mean(best) < 0.35


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (300, 7)])
def test_any_size_can_be_drawn(size: tuple[int, int]) -> None:
    image, mask = draw_indents(*size, 0, 0)
    assert image.shape == mask.shape == size
