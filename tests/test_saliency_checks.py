"""What is made of maps: curves and correlations held to networks whose answer is known, and overlays."""

import io

import numpy as np
import pytest
from PIL import Image

from unet_scaling.explain.checks import (
    Reals,
    Trial,
    faithfulness,
    overlay_png,
    pixel_places,
    random_priorities,
    rank_correlation,
)
from unet_scaling.study.options import CURVE_STREAM
from unet_scaling.study.saliency import Faithfulness

SHAPE = (12, 16)
SHARES = tuple(np.linspace(0, 1, 13).tolist())
TRIAL = Trial(SHARES, seed=5, cell=(3, 4))
WEIGHTS = np.random.default_rng(3).permutation(np.arange(1.0, 193.0)).reshape(SHAPE) ** 2
WEIGHTS /= WEIGHTS.sum()
COLOURED = np.random.default_rng(2).integers(0, 256, (20, 30, 3), dtype=np.uint8)
COLOURED[0, 0] = 255
GREY = COLOURED[:, :, :1]
RAMP = np.linspace(0, 0.3, 600).reshape(20, 30)


def weighed(masks: np.ndarray) -> Reals:
    """Two scores of a network that adds up the weights of the pixels it sees; the second sees the reverse."""
    return np.stack([(masks * WEIGHTS).sum(axis=(1, 2)), (masks * WEIGHTS[::-1]).sum(axis=(1, 2))], axis=1)


def areas(curves: Faithfulness) -> dict[str, float]:
    return {name: float(np.trapezoid(scores, SHARES)) for name, scores in vars(curves).items()}


def curves_of(saliency: Reals, trial: Trial = TRIAL, image: int = 0) -> Faithfulness:
    return faithfulness(np.stack([saliency, saliency[::-1]]), weighed, trial, image)[0]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_true_map_is_better_than_random_order_both_ways_and_the_reversed_one_worse(sign: int) -> None:
    own = areas(curves_of(sign * WEIGHTS))
    assert sign * (own["random_deletion"] - own["deletion"]) > 0.1
    assert sign * (own["insertion"] - own["random_insertion"]) > 0.1


def test_each_score_is_judged_by_its_own_map() -> None:
    both = faithfulness(np.stack([WEIGHTS, WEIGHTS[::-1]]), weighed, TRIAL, 0)
    assert both[0].deletion == pytest.approx(both[1].deletion)
    assert both[0].random_deletion != both[1].random_deletion
    swapped = faithfulness(np.stack([WEIGHTS[::-1], WEIGHTS]), weighed, TRIAL, 0)
    assert areas(swapped[0])["deletion"] > areas(both[0])["deletion"] + 0.05


def test_curves_remove_exactly_the_most_salient_pixels_from_none_to_all() -> None:
    for name, scores in vars(curves_of(WEIGHTS)).items():
        ends = (1.0, 0.0) if "deletion" in name else (0.0, 1.0)
        assert (scores[0], scores[-1], len(scores)) == (*map(pytest.approx, ends), len(SHARES))
    seen: list[np.ndarray] = []

    def noted(masks: np.ndarray) -> Reals:
        seen.extend(masks)
        return weighed(masks)

    faithfulness(WEIGHTS[None], noted, Trial((0.0, 0.25, 1.0), seed=1), 0)
    most_salient = np.sort(WEIGHTS, axis=None)[-48] <= WEIGHTS
    assert np.array_equal(seen[-5], ~most_salient)
    assert np.array_equal(seen[-2], most_salient)


def test_random_orders_follow_from_seed_and_image_and_not_from_the_batch() -> None:
    """Intervals over the images are of independent ones: one order for all would be lucky for all."""
    assert curves_of(WEIGHTS, Trial(SHARES, 5, (3, 4), batch=5)) == curves_of(WEIGHTS)
    others = [curves_of(WEIGHTS, image=image) for image in range(3)]
    others.append(curves_of(WEIGHTS, Trial(SHARES, seed=6, cell=(3, 4))))
    assert len({tuple(curves.random_deletion) for curves in others}) == 4
    assert len({tuple(curves.deletion) for curves in others}) == 1


def test_a_constant_map_is_one_of_the_random_orders() -> None:
    generator = np.random.default_rng([TRIAL.seed, 0, CURVE_STREAM])
    rival = random_priorities(SHAPE, TRIAL.cell, generator)
    constant = curves_of(np.zeros(SHAPE))
    assert constant.deletion == curves_of(rival).deletion != curves_of(WEIGHTS).deletion


def test_a_random_order_takes_cells_whole() -> None:
    priorities = random_priorities((7, 9), (3, 4), np.random.default_rng(0))
    assert len(np.unique(priorities)) <= 4 * 4
    places = pixel_places(priorities)
    assert sorted(places.ravel()) == list(range(63))
    first = np.argwhere(places < (priorities == priorities.max()).sum())
    assert np.ptp(first, axis=0).max() < 4


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (WEIGHTS, np.sqrt(WEIGHTS), 1),
        (WEIGHTS, -WEIGHTS, -1),
        (WEIGHTS, np.random.default_rng(1).random(SHAPE), pytest.approx(0, abs=0.3)),
        # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: a correlation of sqrt(0.9).
        (np.array([0.0, 1, 1, 2]), np.arange(4.0), 0.9**0.5),
        (np.ones(SHAPE), WEIGHTS, None),
        (WEIGHTS, np.ones(SHAPE), None),
    ],
)
def test_maps_correlate_by_their_ranks(one: Reals, other: Reals, expected: float | None) -> None:
    found = rank_correlation(one, other)
    assert found == (pytest.approx(expected) if isinstance(expected, int | float) else expected)


def picture(image: np.ndarray, saliency: np.ndarray) -> np.ndarray:
    with Image.open(io.BytesIO(overlay_png(image, saliency))) as opened:
        assert opened.mode == "RGB"
        return np.asarray(opened).astype(int)


@pytest.mark.parametrize("image", [GREY, COLOURED], ids=["grey", "coloured"])
def test_an_overlay_is_the_grey_image_where_hiding_a_pixel_lowers_no_score(image: np.ndarray) -> None:
    grey = np.rint(image.mean(axis=2, keepdims=True)).repeat(3, axis=2)
    assert np.array_equal(picture(image, np.zeros((20, 30))), grey)
    seen = picture(image, np.where(np.arange(30) < 15, -1.0, 1.0) * np.ones((20, 1)))
    assert np.array_equal(seen[:, :15], grey[:, :15])
    assert not np.array_equal(seen[:, 15:], grey[:, 15:])
    # Where the map is strongest, the image shows through.
    assert len(np.unique(seen[:, 15:].reshape(-1, 3), axis=0)) > 30


@pytest.mark.parametrize(("brightest", "shown"), [(100, 255), (10, 40), (255, 255), (0, 0)])
def test_a_dark_image_is_made_brighter_but_not_without_end(brightest: int, shown: int) -> None:
    image = np.linspace(0, brightest, 600).astype(np.uint8).reshape(20, 30, 1)
    assert picture(image, np.zeros((20, 30))).max() == shown


@pytest.mark.parametrize("brightness", [0, 128, 255])
def test_what_is_more_salient_is_more_coloured_on_any_image(brightness: int) -> None:
    seen = picture(np.full((20, 30, 1), brightness, np.uint8), RAMP).reshape(600, 3)
    coloured = np.ptp(seen, axis=1)
    assert coloured[0] == 0
    assert (np.diff(coloured[::60]) > 0).all()
    # On a dark image the order shows without colours.
    assert brightness or (np.diff((seen @ np.array([0.299, 0.587, 0.114]))[::20]) > 0).all()
    assert overlay_png(GREY, RAMP) == overlay_png(GREY, RAMP * 2.0**-20)
