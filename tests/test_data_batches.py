"""Every image where it belongs, exactly once, for any number of workers, and augmented alike in any batch."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.data_folders import refused
from tests.studies import make_point
from unet_scaling.base.errors import UserError
from unet_scaling.data import batches
from unet_scaling.data import order as orderings
from unet_scaling.data.batches import (
    BRIGHTNESS,
    CONTRAST,
    DRAWN,
    FLIP_COLUMNS,
    FLIP_ROWS,
    LEFT,
    TOP,
    augment,
    draw,
)
from unet_scaling.data.order import require_enough_images
from unet_scaling.study.options import Data

counts = st.integers(1, 16)


@given(st.integers(2, 500), st.floats(0.001, 0.999), st.integers(0, 2**32))
def test_the_split_uses_every_image_once_and_leaves_none_empty(count: int, share: float, seed: int) -> None:
    split = orderings.split(count, share, seed)
    assert sorted([*split.train, *split.test]) == list(range(count))
    assert len(split.train) >= 1
    assert len(split.test) >= 1
    assert abs(len(split.test) - count * share) <= 1


def test_the_split_depends_on_its_seed_and_is_what_it_was_in_earlier_versions() -> None:
    # A change here would silently change every test set: results could no longer be compared.
    assert orderings.split(20, 0.2, 42).test.tolist() == [1, 10, 13, 17]
    assert orderings.split(20, 0.2, 43).test.tolist() != [1, 10, 13, 17]
    assert orderings.epoch_order(np.arange(8), 1, seed=1, epoch=0).tolist() == [2, 0, 7, 4, 6, 3, 5, 1]
    for count in (0, 1):
        with pytest.raises(UserError) as caught:
            orderings.split(count, 0.2, 1)
        assert refused(caught, 65, f"{count} image", "at least 2")


@given(st.integers(1, 100), st.integers(1, 4), st.integers(0, 1000), st.integers(0, 1000))
def test_an_epoch_shows_each_image_once_per_pass(count: int, passes: int, seed: int, epoch: int) -> None:
    train = np.arange(count) * 3
    order = orderings.epoch_order(train, passes, seed, epoch)
    for shuffled in order.reshape(passes, count):
        assert sorted(shuffled) == train.tolist()
    np.testing.assert_array_equal(order, orderings.epoch_order(train, passes, seed, epoch))


def test_every_epoch_seed_and_pass_has_its_own_shuffle() -> None:
    train = np.arange(50)
    orders = [orderings.epoch_order(train, 1, seed, epoch) for seed in range(4) for epoch in range(4)]
    orders += list(orderings.epoch_order(train, 2, 9, 9).reshape(2, 50))
    assert len({tuple(order) for order in orders}) == len(orders)


@given(st.integers(0, 300), counts, st.integers(1, 4), st.integers(1, 3))
def test_many_workers_share_the_order_and_see_what_one_with_a_larger_batch_sees(
    count: int, workers: int, batch: int, accumulate: int
) -> None:
    order = np.random.default_rng(0).permutation(count)
    alone = orderings.worker_batches(order, 0, 1, workers * batch, accumulate)
    own = [orderings.worker_batches(order, worker, workers, batch, accumulate) for worker in range(workers)]
    np.testing.assert_array_equal(np.concatenate(own, axis=2), alone)
    np.testing.assert_array_equal(alone.ravel(), order[: count - count % (workers * batch * accumulate)])


@given(st.integers(16, 300), st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_one_that_plays_several_sees_their_batches_one_worker_after_the_other(
    count: int, workers: int, plays: int, batch: int, accumulate: int
) -> None:
    assume(count >= workers * plays * batch * accumulate)
    order = np.random.default_rng(0).permutation(count)
    for worker in range(workers):
        played = orderings.worker_batches(order, worker, workers, batch, accumulate, plays)
        ranks = range(worker * plays, (worker + 1) * plays)
        real = [orderings.worker_batches(order, rank, workers * plays, batch, accumulate) for rank in ranks]
        np.testing.assert_array_equal(played, np.concatenate(real, axis=1))


@given(st.integers(1, 224), counts)
def test_the_workers_evaluate_every_image_exactly_once(count: int, workers: int) -> None:
    test = np.arange(count) * 2
    shares = [orderings.test_share_of_worker(test, worker, workers) for worker in range(workers)]
    assert sorted(np.concatenate(shares)) == test.tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(1, 200), counts, st.integers(1, 20), st.integers(1, 3))
def test_too_few_images_for_one_step_are_refused_before_training(
    images: int, workers: int, batch: int, accumulate: int
) -> None:
    steps = len(orderings.worker_batches(np.arange(images), 0, workers, batch, accumulate))
    with nullcontext() if steps else pytest.raises(UserError):
        point = make_point(Path("none"), workers=workers, batch_per_worker=batch, accumulate=accumulate)
        require_enough_images(point, images)


@pytest.mark.parametrize("channels_last", [True, False])
def test_bytes_become_floats_on_the_device(channels_last: bool) -> None:
    images = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5)
    masks = (torch.arange(2 * 4 * 5, dtype=torch.uint8) % 3 == 0).reshape(2, 4, 5)
    packed = torch.from_numpy(np.packbits(masks.numpy().astype(np.uint8), axis=-1))
    moved, targets = batches.to_device(images, packed, torch.device("cpu"), channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert moved.is_contiguous(memory_format=layout)
    torch.testing.assert_close(moved, images.float() / 255)
    assert torch.equal(targets, masks.unsqueeze(1).float())
    assert targets.shape == (2, 1, 4, 5)
    assert targets.dtype == torch.float32
    assert targets.is_contiguous()
    assert images.dtype == torch.uint8


def augmented(**options: Any) -> Data:
    return Data(folder="none", image_height=8, image_width=12, **options)


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


@pytest.mark.parametrize(("name", "axis"), [("flip_rows", 2), ("flip_columns", 3)])
def test_a_flip_is_exact_for_image_and_mask(name: str, axis: int) -> None:
    images, masks = pictures(1)
    flipped = augment(augmented(augment_flips=True), images, masks, draws(**{name: 0.49}))
    assert torch.equal(flipped[0], images.flip(axis))
    assert torch.equal(flipped[1], masks.flip(axis))


@pytest.mark.parametrize(("drawn", "first"), [(0.0, 0), (0.999, 2)])
def test_a_crop_keeps_a_window_of_the_image(drawn: float, first: int) -> None:
    images, masks = pictures(1)
    found = augment(augmented(augment_crop=0.75), images, masks, draws(top=drawn, left=0.0))
    assert torch.equal(found[0], images[:, :, first : first + 6, :9])
    assert torch.equal(found[1], masks[:, :, first : first + 6, :9])


def test_brightness_and_contrast_change_images_alone_and_keep_their_range() -> None:
    images, masks = pictures(1)
    data = augmented(augment_brightness=0.2, augment_contrast=0.5)
    found = augment(data, images, masks, draws(brightness=1.0, contrast=0.0))
    assert torch.allclose(found[0], ((images - 0.5) * 0.5 + 0.7).clamp(0, 1))
    assert found[1] is masks


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_layout_is_kept(layout: torch.memory_format) -> None:
    images, masks = pictures()
    images = torch.cat([images] * 3, dim=1).contiguous(memory_format=layout)
    found = augment(augmented(augment_crop=0.75), images, masks, draw(1, 2, np.arange(3)))[0]
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
