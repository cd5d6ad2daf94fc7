"""What is known of each map: its pictures, how faithful it is, and the map of an untrained network.

A faithful map names the pixels that the network needs: removed first, they lower its score sooner than
pixels in random order do (deletion), and put back first, they restore it sooner (insertion). After Petsiuk,
Das, Saenko: RISE, https://arxiv.org/abs/1806.07421, section 4.3. All is made after the clock has stopped.
"""

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import stats  # type: ignore[import-untyped]
from torch import nn

from unet_scaling.format.saliency import SCORES, ExplainedImage, Faithfulness, SaliencyScore, UntrainedMap
from unet_scaling.saliency.maps import CleanImage, ExplainedNetwork, MapMaker, clean_image
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import CURVE_STREAM, UNTRAINED_STREAM

NOTHING_PREDICTED = "nothing is predicted on the image itself: there is no score to explain"
# Orders of which the random curves are the mean: one alone differs from another as much as from a map's.
RANDOM_ORDERS = 5
# Of least to most salient: lighter and lighter, so that the order shows without colours, too. After the
# colour map "plasma" of Smith and van der Walt, whose darkest part would be lost on a dark image.
COLOURS = np.array(
    [[126, 3, 168], [170, 35, 149], [204, 71, 120], [230, 108, 92], [248, 149, 64], [253, 197, 39],
     [240, 249, 33]]
)  # fmt: skip
# The value of the brightest pixel.
WHITE = 255
# The noise of a nearly black image is not worth more.
MOST_BRIGHTER_FACTOR = 4.0
# The most salient pixel is covered so far: what the image has there still shows.
MOST_OPAQUE_SHARE = 0.8

Reals = NDArray[np.floating]
PictureBytes = NDArray[np.uint8]
# Takes masks [n, height, width], true where a pixel is kept, and returns [n, scores]; it fills the others.
ScoreMasks = Callable[[NDArray[np.bool_]], Reals]


@dataclass(frozen=True)
class MapChecks:
    """What checks the maps of this worker's images, made of the network `trained`."""

    maker: MapMaker
    trained: nn.Module

    def image(self, position: int, name: str) -> ExplainedImage:
        """Return the manifest's entry of a test image, if need be an earlier attempt's; all is written."""
        files = self.maker.files
        entry = files.read_entry(position)
        if entry is not None:
            return entry
        clean = self.maker.clean(position)
        height, width = clean.batch.images.shape[-2:]
        # The image may be empty by the prediction of another worker, whatever this one predicts.
        is_mapped = not clean.is_empty and files.is_mapped(position)
        pixels = _bytes(clean.batch.cropped(clean.batch.images))
        truth = _bytes(clean.batch.cropped(clean.batch.masks))
        entry = ExplainedImage(
            image=name,
            position=position,
            height=height,
            width=width,
            box=clean.box,
            foreground=float(clean.region.double().mean()),
            map=files.map_file(position) if is_mapped else None,
            no_map=None if is_mapped else NOTHING_PREDICTED,
            pictures={
                "image": files.write_picture(position, "image", picture_png(brighter(pixels))),
                "truth": files.write_picture(position, "truth", picture_png(truth)),
            },
        )
        if is_mapped:
            saliency = clean.batch.cropped(torch.from_numpy(files.read_map(position))).numpy()
            overlays = {
                score: files.write_picture(position, score, overlay_png(pixels, of_score))
                for score, of_score in zip(SCORES, saliency, strict=True)
            }
            is_compared = position < self.maker.config.saliency.untrained_check
            made = {
                "overlays": overlays,
                "faithfulness": self._faithfulness(position, clean, saliency),
                "untrained": self._untrained(position, clean, saliency) if is_compared else None,
            }
            entry = entry.model_copy(update=made)
        files.write_entry(entry)
        return entry

    def _faithfulness(
        self, position: int, clean: CleanImage, saliency: Reals
    ) -> dict[SaliencyScore, Faithfulness]:
        trial = trial_of(self.maker.config)
        if not trial.shares:
            return {}
        curves = faithfulness(saliency, clean.scores_of_image, trial, position)
        return dict(zip(SCORES, curves, strict=True))

    def _untrained(self, position: int, trained: CleanImage, saliency: Reals) -> UntrainedMap:
        maker = replace(self.maker, network=self._untrained_network)
        clean = clean_image(maker.network, trained.batch, self.maker.config)
        if clean.is_empty:
            return UntrainedMap(no_map=NOTHING_PREDICTED)
        other = clean.batch.cropped(torch.from_numpy(maker.saliency(clean).astype(np.float32))).numpy()
        return UntrainedMap(
            correlation={
                score: rank_correlation(own, untrained)
                for score, own, untrained in zip(SCORES, saliency, other, strict=True)
            },
            faithfulness=self._faithfulness(position, clean, other),
        )

    @cached_property
    def _untrained_network(self) -> ExplainedNetwork:
        config = self.maker.config
        return ExplainedNetwork(untrained(self.trained, config.seed), config)


def _bytes(image: torch.Tensor) -> PictureBytes:
    """Return the first of float images [1, channels, height, width], [height, width, channels]."""
    pixels: PictureBytes = (image[0] * 255).round().to("cpu", torch.uint8).permute(1, 2, 0).numpy()
    return pixels


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a network with weights drawn anew, as its layers draw them; the same on any device."""
    device = next(model.parameters()).device
    other = copy.deepcopy(model).cpu()
    # A worker may see several GPUs, of which only its own draws.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed + UNTRAINED_STREAM)
        for layer in other.modules():
            draw_weights = getattr(layer, "reset_parameters", None)
            if draw_weights is not None:
                draw_weights()
    return other.to(device).eval()


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


def trial_of(config: RunConfig) -> Trial:
    """Return how the curves of a run's maps are made; without shares where there are to be none."""
    options = config.saliency
    cell = (options.window, options.window)
    if options.method == "rise":
        cell = (-(-config.data.image_height // options.grid), -(-config.data.image_width // options.grid))
    shares = np.linspace(0, 1, options.curve_steps + 1).tolist() if options.curve_steps else ()
    return Trial(tuple(shares), options.seed, cell, options.batch)


def faithfulness(maps: Reals, score_masks: ScoreMasks, trial: Trial, image: int) -> list[Faithfulness]:
    """Return the curves of each score, whose map stands at its place in `maps` [scores, height, width].

    Each image, by its number, has random orders of its own: one order that suits the network by chance would
    count on every image otherwise.
    Among equally salient pixels a random order decides, so that a constant map is a random order.
    """
    generator = np.random.default_rng([trial.seed, image, CURVE_STREAM])
    rivals = [random_priorities(maps.shape[1:], trial.cell, generator) for _ in range(RANDOM_ORDERS)]
    random = np.mean([_scores_along(pixel_places(rival), score_masks, trial) for rival in rivals], axis=0)
    found = []
    for score, saliency in enumerate(maps):
        own = _scores_along(pixel_places(saliency, rivals[0]), score_masks, trial)
        found.append(
            Faithfulness(
                deletion=own[0, :, score].tolist(),
                insertion=own[1, :, score].tolist(),
                random_deletion=random[0, :, score].tolist(),
                random_insertion=random[1, :, score].tolist(),
            )
        )
    return found


def random_priorities(shape: tuple[int, ...], cell: tuple[int, int], generator: np.random.Generator) -> Reals:
    """Return random numbers [height, width], one for each cell; the grid of cells is shifted at random."""
    rows, columns = (
        (np.arange(pixels) + generator.integers(size)) // size
        for pixels, size in zip(shape, cell, strict=True)
    )
    of_cells = generator.random((rows[-1] + 1, columns[-1] + 1))
    of_pixels: Reals = of_cells[rows[:, None], columns]
    return of_pixels


def pixel_places(saliency: Reals, ties: Reals | None = None) -> NDArray[np.int64]:
    """Return the place of each pixel in the order, 0 for the most salient; `ties` decides among equals."""
    keys = (-saliency,) if ties is None else (-ties, -saliency)
    places: NDArray[np.int64] = np.lexsort([key.ravel() for key in keys]).argsort()
    return places.reshape(saliency.shape)


def rank_correlation(one: Reals, other: Reals) -> float | None:
    """Return Spearman's correlation of two maps, ties averaged; none where one of them is constant."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(stats.spearmanr(one.ravel(), other.ravel()).statistic)


def _scores_along(places: NDArray[np.int64], score_masks: ScoreMasks, trial: Trial) -> Reals:
    """Return [deletion and insertion, shares, scores] of one order.

    Deletion keeps all but the first pixels of the order, insertion only these.
    """
    counts = np.rint(np.multiply(trial.shares, places.size)).astype(np.int64)

    def masks() -> Iterator[NDArray[np.bool_]]:
        for keeps_first in (False, True):
            for start in range(0, len(counts), trial.batch):
                first = places < counts[start : start + trial.batch, None, None]
                yield first == keeps_first

    return np.concatenate([score_masks(some) for some in masks()]).reshape(2, len(counts), -1)


def overlay_png(image: PictureBytes, saliency: Reals) -> bytes:
    """Return a PNG of an image [height, width, 1 or 3], grey, with its map [height, width] in colour over it.

    Pixels whose hiding raises the score have no colour. Colours are of shares of the map's own maximum: two
    pictures tell nothing of which map is stronger.
    """
    positive = np.clip(saliency.astype(np.float64), 0, None)
    shares = positive / (positive.max() or 1.0)
    places = np.linspace(0, 1, len(COLOURS))
    colours = np.stack([np.interp(shares, places, channel) for channel in COLOURS.T], axis=-1)
    # Grey, since the image's own colours would be taken for the map's.
    grey = brighter(image).mean(axis=-1, keepdims=True)
    opacity = MOST_OPAQUE_SHARE * shares[..., None]
    return picture_png(np.rint((1 - opacity) * grey + opacity * colours).astype(np.uint8))


def brighter(image: PictureBytes) -> PictureBytes:
    """Return an image so bright that a dark one can be made out beside the colours of a map."""
    factor = min(WHITE / max(int(image.max()), 1), MOST_BRIGHTER_FACTOR)
    bright: PictureBytes = np.rint(image * factor).astype(np.uint8)
    return bright


def picture_png(pixels: PictureBytes) -> bytes:
    """Return a PNG of pixels [height, width, 1 or 3]."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "png")
    return file.getvalue()
