"""Overlays of saliency maps: what is seen of the image, and what of the map."""

import io

import numpy as np
import pytest
from PIL import Image

from unet_scaling.explain.overlay import overlay_png

GREY = np.random.default_rng(2).integers(0, 256, (20, 30, 1), dtype=np.uint8)
GREY[0, 0] = 255
COLOURED = np.random.default_rng(2).integers(0, 256, (20, 30, 3), dtype=np.uint8)
COLOURED[0, 0] = 255
RAMP = np.linspace(0, 0.3, 600).reshape(20, 30)


def picture(image: np.ndarray, saliency: np.ndarray) -> np.ndarray:
    with Image.open(io.BytesIO(overlay_png(image, saliency))) as opened:
        assert opened.mode == "RGB"
        return np.asarray(opened).astype(int)


@pytest.mark.parametrize("image", [GREY, COLOURED], ids=["grey", "coloured"])
def test_an_image_is_as_large_as_before_and_grey_where_nothing_is_salient(image: np.ndarray) -> None:
    seen = picture(image, np.zeros((20, 30)))
    assert seen.shape == (20, 30, 3)
    grey = image.mean(axis=2, keepdims=True)
    assert np.array_equal(seen, np.rint(grey).repeat(3, axis=2))


@pytest.mark.parametrize(("brightest", "shown"), [(100, 255), (10, 40), (255, 255), (0, 0)])
def test_a_dark_image_is_made_brighter_but_not_without_end(brightest: int, shown: int) -> None:
    image = np.linspace(0, brightest, 600).astype(np.uint8).reshape(20, 30, 1)
    assert picture(image, np.zeros((20, 30))).max() == shown


def test_pixels_that_raise_the_score_when_hidden_are_clear() -> None:
    saliency = np.where(np.arange(30) < 15, -1.0, 1.0) * np.ones((20, 1))
    seen = picture(GREY, saliency)
    assert np.array_equal(seen[:, :15], GREY[:, :15].repeat(3, axis=2))
    assert not np.array_equal(seen[:, 15:], GREY[:, 15:].repeat(3, axis=2))


@pytest.mark.parametrize("brightness", [0, 128, 255])
def test_what_is_more_salient_is_more_coloured_on_any_image(brightness: int) -> None:
    seen = picture(np.full((20, 30, 1), brightness, np.uint8), RAMP).reshape(600, 3)
    coloured = np.ptp(seen, axis=1)
    assert coloured[0] == 0
    assert (np.diff(coloured[::60]) > 0).all()


def test_the_order_shows_without_colours_on_a_dark_image() -> None:
    seen = picture(np.zeros((20, 30, 1), np.uint8), RAMP).reshape(600, 3)
    brightness = seen @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(brightness[::20]) > 0).all()


def test_a_weak_map_is_as_visible_as_a_strong_one() -> None:
    assert overlay_png(GREY, RAMP) == overlay_png(GREY, RAMP * 2.0**-20)


def test_the_image_shows_through_where_the_map_is_strongest() -> None:
    seen = picture(GREY, np.ones((20, 30)))
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > 30
