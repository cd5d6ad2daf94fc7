"""Deletion and insertion curves, and the rank correlation of maps, held to networks whose answer is known."""

import numpy as np
import pytest

from unet_scaling.explain.faithfulness import (
    Masks,
    Reals,
    ScoreCurves,
    Trial,
    curve_shares,
    faithfulness,
    pixel_places,
    random_priorities,
    rank_correlation,
)
from unet_scaling.study.random_streams import CURVE_STREAM

SHAPE = (12, 16)
SHARES = curve_shares(13)
TRIAL = Trial(SHARES, seed=5, cell=(3, 4))
WEIGHTS = np.random.default_rng(3).permutation(np.arange(1.0, 193.0)).reshape(SHAPE) ** 2
WEIGHTS /= WEIGHTS.sum()


def weighed(masks: Masks) -> Reals:
    """Two scores of a network that adds up the weights of the pixels it sees; the second sees the reverse."""
    return np.stack([(masks * WEIGHTS).sum(axis=(1, 2)), (masks * WEIGHTS[::-1]).sum(axis=(1, 2))], axis=1)


def areas(curves: ScoreCurves) -> dict[str, float]:
    return {name: float(np.trapezoid(scores, SHARES)) for name, scores in vars(curves).items()}


def curves_of(saliency: Reals, trial: Trial = TRIAL, image: int = 0) -> ScoreCurves:
    return faithfulness(np.stack([saliency, saliency[::-1]]), weighed, trial, image)[0]


def test_the_true_map_deletes_faster_and_inserts_faster_than_random_order() -> None:
    own = areas(curves_of(WEIGHTS))
    assert own["deletion"] < own["random_deletion"] - 0.1
    assert own["insertion"] > own["random_insertion"] + 0.1


def test_the_reversed_map_is_worse_than_random_order_both_ways() -> None:
    own = areas(curves_of(-WEIGHTS))
    assert own["deletion"] > own["random_deletion"] + 0.1
    assert own["insertion"] < own["random_insertion"] - 0.1


def test_each_score_is_judged_by_its_own_map() -> None:
    both = faithfulness(np.stack([WEIGHTS, WEIGHTS[::-1]]), weighed, TRIAL, 0)
    assert both[0].deletion == pytest.approx(both[1].deletion)
    assert both[0].random_deletion != both[1].random_deletion
    swapped = faithfulness(np.stack([WEIGHTS[::-1], WEIGHTS]), weighed, TRIAL, 0)
    assert areas(swapped[0])["deletion"] > areas(both[0])["deletion"] + 0.05


def test_curves_begin_and_end_with_the_whole_image_and_the_filled_one() -> None:
    curves = curves_of(WEIGHTS)
    for name, scores in vars(curves).items():
        ends = (1.0, 0.0) if "deletion" in name else (0.0, 1.0)
        assert (scores[0], scores[-1]) == pytest.approx(ends)
        assert len(scores) == len(SHARES)


def test_a_share_removes_exactly_the_most_salient_pixels() -> None:
    seen: list[Masks] = []

    def noted(masks: Masks) -> Reals:
        seen.extend(masks)
        return weighed(masks)

    faithfulness(WEIGHTS[None], noted, Trial((0.0, 0.25, 1.0), seed=1), 0)
    deleted, inserted = seen[-5], seen[-2]
    most_salient = np.sort(WEIGHTS, axis=None)[-48] <= WEIGHTS
    assert np.array_equal(deleted, ~most_salient)
    assert np.array_equal(inserted, most_salient)


def test_the_batch_changes_no_curve() -> None:
    whole = curves_of(WEIGHTS, Trial(SHARES, seed=5, batch=1000))
    assert whole == curves_of(WEIGHTS, Trial(SHARES, seed=5, batch=5))


def test_a_seed_gives_the_same_random_orders_and_another_gives_others() -> None:
    assert curves_of(WEIGHTS) == curves_of(WEIGHTS)
    other = curves_of(WEIGHTS, Trial(SHARES, seed=6, cell=(3, 4)))
    assert other.random_deletion != curves_of(WEIGHTS).random_deletion
    assert other.deletion == curves_of(WEIGHTS).deletion


def test_each_image_has_random_orders_of_its_own() -> None:
    """Intervals over the images are of independent ones: one order for all would be lucky for all."""
    of_images = [curves_of(WEIGHTS, image=image) for image in range(3)]
    assert len({curves.random_deletion for curves in of_images}) == 3
    assert len({curves.deletion for curves in of_images}) == 1


def test_a_constant_map_is_one_of_the_random_orders() -> None:
    generator = np.random.default_rng([TRIAL.seed, 0, CURVE_STREAM])
    rival = random_priorities(SHAPE, TRIAL.cell, generator)
    constant = curves_of(np.zeros(SHAPE))
    assert constant.deletion == curves_of(rival).deletion
    assert constant.deletion != curves_of(WEIGHTS).deletion


def test_a_random_order_takes_cells_whole() -> None:
    priorities = random_priorities((7, 9), (3, 4), np.random.default_rng(0))
    assert len(np.unique(priorities)) <= 4 * 4
    places = pixel_places(priorities)
    assert sorted(places.ravel()) == list(range(63))
    first = np.argwhere(places < (priorities == priorities.max()).sum())
    assert np.ptp(first, axis=0).max() < 4


def test_maps_that_rank_pixels_alike_correlate_fully() -> None:
    assert rank_correlation(WEIGHTS, np.sqrt(WEIGHTS)) == pytest.approx(1)
    assert rank_correlation(WEIGHTS, -WEIGHTS) == pytest.approx(-1)
    noise = np.random.default_rng(1).random(SHAPE)
    assert abs(rank_correlation(WEIGHTS, noise) or 0.0) < 0.3


def test_ties_have_their_mean_rank() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: a correlation of sqrt(0.9).
    assert rank_correlation(np.array([0.0, 1, 1, 2]), np.arange(4.0)) == pytest.approx(0.9**0.5)


def test_a_constant_map_has_no_correlation() -> None:
    assert rank_correlation(np.ones(SHAPE), WEIGHTS) is None
    assert rank_correlation(WEIGHTS, np.ones(SHAPE)) is None
