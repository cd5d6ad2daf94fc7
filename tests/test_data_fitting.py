"""Resizing keeps the aspect ratio, centres, pads with zeros and says where the picture is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.data_folders import blob, noise
from unet_scaling.data.fitting import Box, fit_image, fit_mask, fitted_box

side = st.integers(1, 3000)


@given(side, side, side, side)
def test_the_box_fills_the_target_in_one_direction_and_keeps_the_ratio(
    height: int, width: int, target_height: int, target_width: int
) -> None:
    box = fitted_box(height, width, target_height, target_width)
    assert 1 <= box.height <= target_height
    assert 1 <= box.width <= target_width
    assert box.height == target_height or box.width == target_width
    scale = min(target_height / height, target_width / width)
    assert abs(box.height - height * scale) <= 1
    assert abs(box.width - width * scale) <= 1
    assert abs((target_height - box.height) - 2 * box.top) <= 1
    assert abs((target_width - box.width) - 2 * box.left) <= 1


def test_a_picture_of_the_right_size_is_not_touched() -> None:
    image = noise()[:, :, None]
    assert fit_image(image, 12, 16) is image
    np.testing.assert_array_equal(fit_mask(blob(value=1), 12, 16), blob(value=1))


def test_a_picture_that_only_needs_padding_is_not_resampled() -> None:
    image = noise(16, 16)[:, :, None]
    assert fitted_box(16, 16, 16, 24) == Box(0, 4, 16, 16)
    fitted = fit_image(image, 16, 24)
    np.testing.assert_array_equal(fitted[:, 4:20], image)
    assert fitted[:, :4].max() == fitted[:, 20:].max() == 0


def test_shrinking_smooths_images_and_keeps_mask_values() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))
    shrunk = fit_image(np.repeat(stripes[:, :, None], 3, axis=2), 16, 16)
    assert shrunk.shape == (16, 16, 3)
    # The columns at the border see one stripe more than the others.
    assert np.abs(shrunk[:, 2:-2].astype(int) - 128).max() < 10
    assert set(np.unique(fit_mask(blob(120, 160, value=200), 13, 17))) == {0, 200}


def test_image_and_mask_stay_in_register() -> None:
    mask = blob(120, 160, value=1)
    image = mask[:, :, None] * np.uint8(255)
    difference = (fit_image(image, 48, 48)[:, :, 0] > 127) != (fit_mask(mask, 48, 48) > 0)
    assert difference.mean() < 0.01
