"""Pixels become 8-bit images and mask values; tests/test_images.py holds the encodings of files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data_folders import Array, blob, noise, refused, save
from unet_scaling.data.images import decode, read_bytes, to_image, to_mask_values
from unet_scaling.study.errors import UserError

COLOUR = np.random.default_rng(1).integers(0, 256, (12, 16, 3)).astype(np.uint8)


def load(path: Path) -> Array:
    return decode(path, read_bytes(path))


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_empty_and_missing_files_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=f"{name}: is empty"):
        load(tmp_path / name)
    with pytest.raises(UserError, match=r"gone\.png: cannot be read"):
        load(tmp_path / "gone.png")


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_the_limit_on_pixels_stays_on(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / f"a{suffix}", noise(20, 20))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 399)
    with pytest.raises(UserError) as caught:
        load(path)
    assert refused(caught, 65, path, "20 x 20", "limit")


def test_sixteen_bits_map_their_whole_range_to_eight() -> None:
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256, 1)
    expected = np.rint(every.astype(np.float64) * 255 / 65535)
    np.testing.assert_array_equal(to_image(every, 1, "dtype"), expected)


def test_eight_bit_grey_is_left_alone() -> None:
    pixels = noise()[:, :, None]
    np.testing.assert_array_equal(to_image(pixels, 1, "dtype"), pixels)
    np.testing.assert_array_equal(to_image(pixels, 3, "dtype"), np.repeat(pixels, 3, axis=2))


def test_colour_becomes_luminosity() -> None:
    expected = np.asarray(Image.fromarray(COLOUR).convert("L"), dtype=int)
    assert np.abs(to_image(COLOUR, 1, "dtype")[:, :, 0] - expected).max() <= 1
    np.testing.assert_array_equal(to_image(np.dstack([COLOUR, COLOUR[:, :, :1]]), 3, "dtype"), COLOUR)


def test_per_image_intensity_uses_the_range_that_the_image_has() -> None:
    pixels = np.array([[1000, 1500, 3000]], dtype=np.uint16)[:, :, None]
    assert to_image(pixels, 1, "image").ravel().tolist() == [0, 64, 255]
    assert to_image(np.full((2, 2, 1), 9, np.uint8), 1, "image").max() == 0


def test_overlay_masks_count_as_grey_where_their_channels_agree(tmp_path: Path) -> None:
    values = blob()
    opaque = np.dstack([values, values, values, np.full_like(values, 255)])
    np.testing.assert_array_equal(to_mask_values(tmp_path, opaque), values)
    np.testing.assert_array_equal(to_mask_values(tmp_path, np.dstack([values] * 4)), values)
    with pytest.raises(UserError, match="has colours"):
        to_mask_values(tmp_path, np.dstack([values, values, 255 - values]))
    with pytest.raises(UserError, match="transparent"):
        to_mask_values(tmp_path, np.dstack([np.full_like(values, 255)] * 3 + [values]))
