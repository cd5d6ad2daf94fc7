"""Augmentation: exact moves, the same for an image wherever and with whomever it is trained."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unet_scaling.data.batches import (
    BRIGHTNESS,
    CONTRAST,
    DRAWN,
    FLIP_COLUMNS,
    FLIP_ROWS,
    LEFT,
    TOP,
    Augmentation,
    draw,
)

OFF: dict[str, Any] = {"flips": False, "crop": 1.0, "brightness": 0.0, "contrast": 0.0}
ALL: dict[str, Any] = {"flips": True, "crop": 0.75, "brightness": 0.1, "contrast": 0.2}


def pictures(count: int = 3, height: int = 8, width: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    return torch.rand(count, 1, height, width), (torch.rand(count, 1, height, width) > 0.5).float()


def draws(**chosen: float) -> npt.NDArray[np.float64]:
    """For one image: in the middle of everything, but for what is chosen."""
    places = {
        "flip_rows": FLIP_ROWS, "flip_columns": FLIP_COLUMNS, "top": TOP, "left": LEFT,
        "brightness": BRIGHTNESS, "contrast": CONTRAST,
    }  # fmt: skip
    found = np.full((1, DRAWN), 0.5)
    for name, value in chosen.items():
        found[0, places[name]] = value
    return found


def test_what_is_off_is_not_touched() -> None:
    images, masks = pictures()
    found = Augmentation(**OFF).augment(images, masks, draw(1, 2, np.arange(3)))
    assert found[0] is images
    assert found[1] is masks


@pytest.mark.parametrize(("name", "axis"), [("flip_rows", 2), ("flip_columns", 3)])
def test_a_flip_is_exact_for_image_and_mask(name: str, axis: int) -> None:
    images, masks = pictures(1)
    flipped = Augmentation(**OFF | {"flips": True}).augment(images, masks, draws(**{name: 0.49}))
    assert torch.equal(flipped[0], images.flip(axis))
    assert torch.equal(flipped[1], masks.flip(axis))


@pytest.mark.parametrize(("drawn", "first"), [(0.0, 0), (0.999, 2)])
def test_a_crop_keeps_a_window_of_the_image(drawn: float, first: int) -> None:
    images, masks = pictures(1)
    found = Augmentation(**OFF | {"crop": 0.75}).augment(images, masks, draws(top=drawn, left=0.0))
    assert torch.equal(found[0], images[:, :, first : first + 6, :9])
    assert torch.equal(found[1], masks[:, :, first : first + 6, :9])


def test_brightness_and_contrast_change_images_alone_and_keep_their_range() -> None:
    images, masks = pictures(1)
    augmentation = Augmentation(**OFF | {"brightness": 0.2, "contrast": 0.5})
    found = augmentation.augment(images, masks, draws(brightness=1.0, contrast=0.0))
    assert torch.allclose(found[0], ((images - 0.5) * 0.5 + 0.7).clamp(0, 1))
    assert found[1] is masks


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_layout_is_kept(layout: torch.memory_format) -> None:
    images, masks = pictures()
    images = torch.cat([images] * 3, dim=1).contiguous(memory_format=layout)
    found = Augmentation(**ALL).augment(images, masks, draw(1, 2, np.arange(3)))[0]
    assert found.is_contiguous(memory_format=layout)


@given(st.integers(0, 2**32), st.integers(0, 500), st.lists(st.integers(0, 10**6), min_size=1, max_size=6))
def test_an_image_is_augmented_alike_in_any_batch(seed: int, epoch: int, images: list[int]) -> None:
    together = draw(seed, epoch, np.array(images))
    alone = [draw(seed, epoch, np.array([image]))[0] for image in images]
    assert np.array_equal(together, np.array(alone))
    assert ((together >= 0) & (together < 1)).all()


def test_draws_stay_those_of_the_first_runs() -> None:
    """Written down when they were first drawn: a resumed run must go on as it began."""
    expected = [[0.130003, 0.936745, 0.096795, 0.326096, 0.913198, 0.52129]]
    assert draw(3, 1, np.array([7])).round(6).tolist() == expected
