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

from unet_scaling.data.image_data import ImageData
from unet_scaling.data.manifest import read_manifest
from unet_scaling.explain.blackbox import CleanImage, Doubles, NotFiniteError, clean_image
from unet_scaling.explain.map_files import MapFiles
from unet_scaling.explain.masks import MaskStore
from unet_scaling.explain.network import ExplainedNetwork
from unet_scaling.explain.phase_seconds import PhaseSeconds
from unet_scaling.explain.weighting import Weighting
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import blocking
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.progress import progress
from unet_scaling.study.saliency import SCORES

# Takes how many images all workers are done with.
AfterEach = Callable[[int], None]


@dataclass(frozen=True)
class MapMaker:
    """All that the maps of a run are made of, on one worker."""

    config: RunConfig
    network: ExplainedNetwork
    data: ImageData
    masks: MaskStore
    weighting: Weighting
    files: MapFiles

    def clean(self, position: int) -> CleanImage:
        """Return the test image at this position with the network's prediction.

        Raises NotFiniteError (70) where that is not finite.
        """
        batch = self.data.test_sample(position)
        try:
            return clean_image(self.network, batch, self.config)
        except NotFiniteError:
            raise self.not_finite(position) from None

    def not_finite(self, position: int) -> NotFiniteError:
        """Return the error that names the image."""
        return NotFiniteError(f"the test image {image_names(self.config, self.data)[position]}")

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


def image_names(config: RunConfig, data: ImageData) -> list[str]:
    """Return the names of the test images, by position."""
    pairs = read_manifest(config.data.manifest_path).pairs
    return [pairs[number].stem for number in data.split.test]


def make_maps(
    maker: MapMaker, positions: Sequence[int], split: str, clock: PhaseSeconds, after_each: AfterEach
) -> None:
    """Make the maps of these test images; all workers call `after_each` equally often.

    Raises UserError where a prediction is not finite (70), or a map cannot be written (1).
    """
    group = maker.data.group
    if split == "images":
        turns = [partial(_make_alone, maker, position, clock) for position in maker.own(positions)]
        take_turns(group, turns, "saliency", after_each)
    else:
        images = progress(positions, len(positions), "saliency", group.rank == 0)
        for done, position in enumerate(images, 1):
            _make_together(maker, position, clock)
            after_each(done)


def take_turns(group: Group, turns: Sequence[Callable[[], None]], title: str, after_each: AfterEach) -> None:
    """Take this worker's turns; all workers call `after_each` equally often, with the turns of all so far.

    A worker on which one raises UserError takes no more of them, since the others may wait for it. After
    the last round all raise alike.
    """
    counts = group.gather_numbers(len(turns))
    rounds = int(max(counts))
    problem: UserError | None = None
    for number in progress(range(rounds), rounds, title, group.rank == 0):
        try:
            if problem is None and number < len(turns):
                turns[number]()
        except UserError as error:
            problem = error
        after_each(int(sum(min(count, number + 1) for count in counts)))
    group.run_on_all(partial(_raise, problem))


def _raise(problem: UserError | None) -> None:
    if problem is not None:
        raise problem


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
        clean = _clean_if_finite(maker, position)
        own_scores = _own_scores(maker, clean)
        flags = np.repeat([[clean is None], [clean is not None and clean.is_empty]], len(SCORES), axis=1)
    with clock.phase("sum"):
        # Workers on unlike devices may differ: what one calls empty or not finite, all do.
        *perturbed, not_finite, empty = _sum(maker, np.vstack([own_scores, flags]))
    if clean is None or not_finite.any():
        raise maker.not_finite(position)
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


def _clean_if_finite(maker: MapMaker, position: int) -> CleanImage | None:
    try:
        return maker.clean(position)
    except NotFiniteError:
        return None


def _own_scores(maker: MapMaker, clean: CleanImage | None) -> Doubles:
    """Return [masks, scores] with those of this worker's batches, and zeros elsewhere."""
    if clean is None or clean.is_empty:
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
