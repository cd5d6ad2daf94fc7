"""What is known of each map: its overlays, how faithful it is, and the map of an untrained network.

All of it is made after the clock has stopped.
"""

import copy
import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unet_scaling.explain.blackbox import CleanImage, clean_image
from unet_scaling.explain.faithfulness import Reals, Trial, curve_shares, faithfulness, rank_correlation
from unet_scaling.explain.maps import MapMaker
from unet_scaling.explain.network import ExplainedNetwork, explained_network
from unet_scaling.explain.overlay import brighter, overlay_png, picture_png
from unet_scaling.study.config import RunConfig
from unet_scaling.study.random_streams import UNTRAINED_STREAM
from unet_scaling.study.saliency import (
    SCORES,
    ExplainedImage,
    Faithfulness,
    SaliencyFile,
    SaliencyScore,
    UntrainedMap,
)

NOTHING_PREDICTED = "nothing is predicted on the image itself: there is no score to explain"


@dataclass(frozen=True)
class MapChecks:
    """What checks the maps of this worker's images, made of the network `trained`."""

    maker: MapMaker
    trained: nn.Module

    def image(self, position: int, name: str) -> ExplainedImage:
        """Return the manifest's entry of a test image, if need be an earlier attempt's; all is written."""
        entry = self.maker.files.read_entry(position)
        if entry is None:
            entry = self._made(position, name)
            self.maker.files.write_entry(entry)
        return entry

    def _made(self, position: int, name: str) -> ExplainedImage:
        clean = self.maker.clean(position)
        height, width = clean.batch.images.shape[-2:]
        # Where this worker predicts something, another one may still have called the image empty.
        is_mapped = not clean.is_empty and self.maker.files.is_mapped(position)
        entry = ExplainedImage(
            image=name,
            position=position,
            height=height,
            width=width,
            box=clean.box,
            foreground=clean.foreground,
            map=self.maker.files.map_file(position) if is_mapped else None,
            no_map=None if is_mapped else NOTHING_PREDICTED,
            pictures={
                "image": self.maker.files.write_picture(
                    position, "image", picture_png(brighter(_pixels(clean)))
                ),
                "truth": self.maker.files.write_picture(position, "truth", picture_png(_truth(clean))),
            },
        )
        return entry.model_copy(update=self._of_map(position, clean)) if is_mapped else entry

    def _of_map(self, position: int, clean: CleanImage) -> dict[str, object]:
        saliency = clean.batch.cropped(torch.from_numpy(self.maker.files.read_map(position))).numpy()
        is_checked = position < self.maker.config.saliency.untrained_check
        return {
            "overlays": self._overlays(position, clean, saliency),
            "faithfulness": self._faithfulness(position, clean, saliency),
            "untrained": self._untrained(position, clean, saliency) if is_checked else None,
        }

    def _overlays(
        self, position: int, clean: CleanImage, saliency: Reals
    ) -> dict[SaliencyScore, SaliencyFile]:
        pixels = _pixels(clean)
        return {
            score: self.maker.files.write_picture(position, score, overlay_png(pixels, of_score))
            for score, of_score in zip(SCORES, saliency, strict=True)
        }

    def _faithfulness(
        self, position: int, clean: CleanImage, saliency: Reals
    ) -> dict[SaliencyScore, Faithfulness]:
        trial = trial_of(self.maker.config)
        if not trial.shares:
            return {}
        curves = faithfulness(saliency, clean.scores_of_image, trial, position)
        return {
            score: Faithfulness(**{name: list(values) for name, values in dataclasses.asdict(found).items()})
            for score, found in zip(SCORES, curves, strict=True)
        }

    def _untrained(self, position: int, trained: CleanImage, saliency: Reals) -> UntrainedMap:
        maker = dataclasses.replace(self.maker, network=self._untrained_network)
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
        return explained_network(untrained(self.trained, config.seed), config)


def trial_of(config: RunConfig) -> Trial:
    """Return how the curves of a run's maps are made; without shares where there are to be none."""
    options = config.saliency
    cell = (options.window, options.window)
    if options.method == "rise":
        cell = (-(-config.data.image_height // options.grid), -(-config.data.image_width // options.grid))
    shares = curve_shares(options.curve_steps + 1) if options.curve_steps else ()
    return Trial(shares, options.seed, cell, options.batch)


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a network with weights drawn anew, as its layers draw them; the same on any device."""
    device = next(model.parameters()).device
    other = copy.deepcopy(model).cpu()
    with torch.random.fork_rng():
        torch.manual_seed(seed + UNTRAINED_STREAM)
        for layer in other.modules():
            draw_weights = getattr(layer, "reset_parameters", None)
            if draw_weights is not None:
                draw_weights()
    return other.to(device).eval()


def _pixels(clean: CleanImage) -> NDArray[np.uint8]:
    """Return an image without its padding, [height, width, channels]."""
    return _bytes(clean.batch.cropped(clean.batch.images))


def _truth(clean: CleanImage) -> NDArray[np.uint8]:
    return _bytes(clean.batch.cropped(clean.batch.masks))


def _bytes(image: torch.Tensor) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = (image[0] * 255).round().to("cpu", torch.uint8).permute(1, 2, 0).numpy()
    return pixels
