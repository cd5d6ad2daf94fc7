"""How faithful saliency maps are: the score while pixels are removed, or put back, in their order.

A faithful map names the pixels that the network needs: removed first, they lower its score sooner than
pixels in random order do (deletion), and put back first, they restore it sooner (insertion). After Petsiuk,
Das, Saenko: RISE, https://arxiv.org/abs/1806.07421, section 4.3.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from unet_scaling.study.random_streams import CURVE_STREAM

# Orders of which the random curves are the mean: one alone differs from another as much as from a map's.
RANDOM_ORDERS = 5

Reals = NDArray[np.floating]
PixelPlaces = NDArray[np.int64]
Masks = NDArray[np.bool_]
# Takes masks [n, height, width], true where a pixel is kept, and returns [n, scores]; it fills the others.
ScoreMasks = Callable[[Masks], Reals]


@dataclass(frozen=True)
class ScoreCurves:
    """One score of an image, at each share of its pixels removed (deletion) or put back (insertion)."""

    deletion: tuple[float, ...]
    insertion: tuple[float, ...]
    random_deletion: tuple[float, ...]
    random_insertion: tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """How curves are made: at which shares of the pixels, and from which random orders.

    A random order takes cells of `cell` pixels (height, width) whole. Single pixels from all over an image
    make noise of it, as no map's order does: cells as large as those of the masks are the fair rival.
    `batch` is how many masks are scored at a time.
    """

    shares: tuple[float, ...]
    seed: int
    cell: tuple[int, int] = (1, 1)
    batch: int = 16


def curve_shares(steps: int) -> tuple[float, ...]:
    """Return so many shares of an image's pixels, evenly from 0 to 1."""
    return tuple(float(share) for share in np.linspace(0, 1, steps))


def faithfulness(maps: Reals, score_masks: ScoreMasks, trial: Trial, image: int) -> list[ScoreCurves]:
    """Return the curves of each score, whose map stands at its place in `maps` [scores, height, width].

    Each image, by its number, has random orders of its own: one order that suits the network by chance would
    count on every image otherwise.
    Among equally salient pixels a random order decides, so that a constant map is a random order.
    """
    generator = np.random.default_rng([trial.seed, image, CURVE_STREAM])
    rivals = [random_priorities(maps.shape[1:], trial.cell, generator) for _ in range(RANDOM_ORDERS)]
    random = np.mean([_scores_along(pixel_places(rival), score_masks, trial) for rival in rivals], axis=0)
    own = [_scores_along(pixel_places(saliency, rivals[0]), score_masks, trial) for saliency in maps]
    return [_curves(scores[..., score], random[..., score]) for score, scores in enumerate(own)]


def random_priorities(shape: tuple[int, ...], cell: tuple[int, int], generator: np.random.Generator) -> Reals:
    """Return random numbers [height, width], one for each cell; the grid of cells is shifted at random."""
    rows, columns = (
        (np.arange(pixels) + generator.integers(size)) // size
        for pixels, size in zip(shape, cell, strict=True)
    )
    of_cells = generator.random((rows[-1] + 1, columns[-1] + 1))
    of_pixels: Reals = of_cells[rows[:, None], columns]
    return of_pixels


def pixel_places(saliency: Reals, ties: Reals | None = None) -> PixelPlaces:
    """Return the place of each pixel in the order, 0 for the most salient; `ties` decides among equals."""
    keys = (-saliency,) if ties is None else (-ties, -saliency)
    places: PixelPlaces = np.lexsort([key.ravel() for key in keys]).argsort()
    return places.reshape(saliency.shape)


def rank_correlation(one: Reals, other: Reals) -> float | None:
    """Return Spearman's correlation of two maps, ties averaged; none where one of them is constant."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(stats.spearmanr(one.ravel(), other.ravel()).statistic)


def _scores_along(places: PixelPlaces, score_masks: ScoreMasks, trial: Trial) -> Reals:
    """Return [deletion and insertion, shares, scores] of one order."""
    counts = np.rint(np.multiply(trial.shares, places.size)).astype(np.int64)
    scores = [score_masks(masks) for masks in _curve_masks(places, counts, trial.batch)]
    return np.concatenate(scores).reshape(2, len(counts), -1)


def _curve_masks(places: PixelPlaces, counts: PixelPlaces, batch: int) -> Iterator[Masks]:
    """Yield the masks that keep all but the first `counts` pixels, then those that keep only these."""
    for keeps_first in (False, True):
        for start in range(0, len(counts), batch):
            first = places < counts[start : start + batch, None, None]
            yield first == keeps_first


def _curves(own: Reals, random: Reals) -> ScoreCurves:
    """Return the curves of one score, each [deletion and insertion, shares]."""
    return ScoreCurves(*(tuple(map(float, scores)) for scores in (*own, *random)))
