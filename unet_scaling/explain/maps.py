"""Make the maps of a run: the same bytes whatever the number of workers and whatever they share out.

Masks pass through the network in fixed batches, since a batch's rounding may depend on its size. A number is
computed by one worker and summed with the zeros of all others, which changes no bit of it; and each sum over
the masks is one worker's, in the order of the masks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from unet_scaling.data.image_data import ImageData
from unet_scaling.explain.blackbox import CleanImage, Doubles, clean_image
from unet_scaling.explain.map_files import MapFiles
from unet_scaling.explain.masks import MaskStore
from unet_scaling.explain.phase_seconds import PhaseSeconds
from unet_scaling.explain.weighting import Weighting
from unet_scaling.group.watchdog import blocking
from unet_scaling.study.config import RunConfig
from unet_scaling.study.progress import progress
from unet_scaling.study.saliency import SCORES


@dataclass(frozen=True)
class MapMaker:
    """All that the maps of a run are made of, on one worker."""

    config: RunConfig
    model: nn.Module
    data: ImageData
    masks: MaskStore
    weighting: Weighting
    files: MapFiles

    def clean(self, position: int) -> CleanImage:
        """Return the test image at this position with the network's prediction."""
        batch = self.data.test_sample(position)
        return clean_image(self.model, batch, self.config)

    def saliency(self, clean: CleanImage) -> Doubles:
        """Return the map of an image, float64 [scores, height, width], made by this worker alone."""
        perturbed = self.scores(clean, 0, 1)
        return self.weighting.finish(self.weighting.sum_rows(iter(self.masks), clean.reference, perturbed))

    def scores(self, clean: CleanImage, first: int, apart: int) -> Doubles:
        """Return [masks, scores] with those of every `apart`-th batch of masks, and zeros elsewhere."""
        size = self.config.saliency.batch
        scores = np.zeros((self.masks.count, len(SCORES)))
        for begin in range(first * size, self.masks.count, apart * size):
            scores[begin : begin + size] = clean.scores(self.masks.read(begin, begin + size))
        return scores

    def own(self, positions: Sequence[int]) -> list[int]:
        """Return the images of this worker, which writes and checks their maps."""
        group = self.data.group
        return [position for position in positions if position % group.size == group.rank]


def make_maps(
    maker: MapMaker, positions: Sequence[int], split: str, clock: PhaseSeconds, after_each: Callable[[], None]
) -> None:
    """Make the maps of these test images; all workers call `after_each` equally often.

    Raises UserError where a prediction is not finite (70), or a map cannot be written (1).
    """
    if split == "masks":
        turns = [partial(_make_together, maker, position, clock) for position in positions]
        rounds = len(turns)
    else:
        turns = [partial(_make_alone, maker, position, clock) for position in maker.own(positions)]
        rounds = int(max(maker.data.group.gather_numbers(len(turns))))
    for number in progress(range(rounds), rounds, "saliency", maker.data.group.rank == 0):
        if number < len(turns):
            turns[number]()
        after_each()


def _make_alone(maker: MapMaker, position: int, clock: PhaseSeconds) -> None:
    with clock.phase("forward"):
        clean = maker.clean(position)
        if clean.is_empty:
            return
        perturbed = maker.scores(clean, 0, 1)
    with clock.phase("weighting"):
        sums = maker.weighting.sum_rows(iter(maker.masks), clean.reference, perturbed)
        saliency = maker.weighting.finish(sums)
    with clock.phase("files"):
        maker.files.write_map(position, saliency)


def _make_together(maker: MapMaker, position: int, clock: PhaseSeconds) -> None:
    with clock.phase("forward"):
        clean = maker.clean(position)
        own_scores = _own_scores(maker, clean)
    with clock.phase("sum"):
        # Workers on unlike devices may differ on the last pixel of a region: what one calls empty, all do.
        *perturbed, empty = _sum(maker, np.vstack([own_scores, np.full(len(SCORES), float(clean.is_empty))]))
    if empty.any():
        return
    with clock.phase("weighting"):
        own_rows = _own_rows(maker, clean.reference, np.array(perturbed))
    with clock.phase("sum"):
        sums = _sum(maker, own_rows)
    if maker.own([position]):
        with clock.phase("weighting"):
            saliency = maker.weighting.finish(sums)
        with clock.phase("files"):
            maker.files.write_map(position, saliency)


def _own_scores(maker: MapMaker, clean: CleanImage) -> Doubles:
    """Return [masks, scores] with those of this worker's batches, and zeros elsewhere."""
    if clean.is_empty:
        return np.zeros((maker.masks.count, len(SCORES)))
    return maker.scores(clean, maker.data.group.rank, maker.data.group.size)


def _own_rows(maker: MapMaker, reference: Doubles, perturbed: Doubles) -> Doubles:
    """Return the weighted sums [planes, height, width] in the rows of this worker, and zeros elsewhere."""
    group = maker.data.group
    height = maker.masks.height
    top, bottom = (height * rank // group.size for rank in (group.rank, group.rank + 1))
    own = maker.weighting.sum_rows(maker.masks.rows(top, bottom), reference, perturbed)
    sums = np.zeros((len(own), height, maker.masks.width))
    sums[:, top:bottom] = own
    return sums


def _sum(maker: MapMaker, own: Doubles) -> Doubles:
    group = maker.data.group
    with blocking:
        total: Doubles = group.sum_over_workers(torch.from_numpy(own).to(group.device)).cpu().numpy()
    return total
