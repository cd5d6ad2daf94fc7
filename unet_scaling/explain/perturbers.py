"""xaitk's classes for the options of a study: what hides parts of an image, and what weighs their scores.

xaitk is imported here and in weighting.py, and these only where a study asks for maps.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xaitk_saliency import GenerateClassifierConfidenceSaliency, PerturbImage
from xaitk_saliency.impls.gen_classifier_conf_sal.occlusion_scoring import OcclusionScoring
from xaitk_saliency.impls.gen_classifier_conf_sal.rise_scoring import RISEScoring
from xaitk_saliency.impls.gen_image_classifier_blackbox_sal.occlusion_based import PerturbationOcclusion
from xaitk_saliency.impls.perturb_image.random_grid import RandomGrid
from xaitk_saliency.impls.perturb_image.rise import RISEGrid
from xaitk_saliency.impls.perturb_image.sliding_radial import SlidingRadial
from xaitk_saliency.impls.perturb_image.sliding_window import SlidingWindow

from unet_scaling.study.options import SaliencyOptions

# Of masks that are made at a time.
MADE_AT_A_TIME_BYTES = 16 * 2**20
# Shared out over threads, xaitk's random numbers would depend on which of them is first.
NO_THREADS = 0

# Of bool or float32: 1 keeps a pixel, 0 hides it.
MaskArray = NDArray[Any]


@dataclass(frozen=True)
class Method:
    """A perturber, and the generator of xaitk that belongs to it."""

    perturber: PerturbImage
    generator: GenerateClassifierConfidenceSaliency

    def configuration(self) -> dict[str, Any]:
        """Return xaitk's configuration of both, from which its PerturbationOcclusion is built again."""
        configuration: dict[str, Any] = PerturbationOcclusion(self.perturber, self.generator).get_config()
        return configuration


def method_of(options: SaliencyOptions) -> Method:
    """Return xaitk's classes with these options, paired as its own RISEStack and SlidingWindowStack do."""
    perturber = PERTURBERS[options.method](options)
    if options.method in ("rise", "random_grid"):
        return Method(perturber, RISEScoring(p1=options.p1 if options.debiased else 0.0))
    return Method(perturber, OcclusionScoring())


def mask_chunks(perturber: PerturbImage, height: int, width: int) -> Iterator[MaskArray]:
    """Yield all masks of images of this size in their order, [some, height, width] at a time.

    They are xaitk's own, byte for byte. Those of `random_grid` and `sliding_radial` it makes all at once.
    """
    # Of an image, perturbers read the shape alone.
    image = np.zeros((height, width), np.uint8)
    if isinstance(perturber, RISEGrid):
        yield from _chunks_of_grid(perturber, image)
    elif isinstance(perturber, SlidingWindow):
        yield from _rows_of_windows(perturber, image)
    else:
        yield perturber.perturb(image)


def _chunks_of_grid(perturber: RISEGrid, image: NDArray[np.uint8]) -> Iterator[MaskArray]:
    # A generator in place of the seed goes on where the chunk before has left it.
    shifts = np.random.default_rng(perturber.seed)
    masks_at_a_time = max(1, MADE_AT_A_TIME_BYTES // (image.size * perturber.grid.itemsize))
    for first in range(0, perturber.n, masks_at_a_time):
        chunk = copy.copy(perturber)
        chunk.grid = perturber.grid[first : first + masks_at_a_time]
        chunk.n = len(chunk.grid)
        chunk.seed = shifts
        yield chunk.perturb(image)


def _rows_of_windows(perturber: SlidingWindow, image: NDArray[np.uint8]) -> Iterator[MaskArray]:
    """Yield the masks of one row of windows after the other: a window hides where its row and column meet."""
    window_height, window_width = perturber.window_size
    step_down, step_across = perturber.stride
    of_rows = SlidingWindow((window_height, 1), (step_down, 1)).perturb(image[:, :1])
    of_columns = SlidingWindow((1, window_width), (1, step_across)).perturb(image[:1])
    for row in of_rows:
        yield row | of_columns


def _rise(options: SaliencyOptions) -> PerturbImage:
    return RISEGrid(options.masks, options.grid, options.p1, options.seed, NO_THREADS)


def _random_grid(options: SaliencyOptions) -> PerturbImage:
    cell = (options.window, options.window)
    return RandomGrid(options.masks, cell, options.p1, options.seed, NO_THREADS)


def _sliding_window(options: SaliencyOptions) -> PerturbImage:
    return SlidingWindow((options.window, options.window), (options.stride, options.stride))


def _sliding_radial(options: SaliencyOptions) -> PerturbImage:
    return SlidingRadial((options.window, options.window), (options.stride, options.stride))


PERTURBERS = {
    "rise": _rise,
    "random_grid": _random_grid,
    "sliding_window": _sliding_window,
    "sliding_radial": _sliding_radial,
}
