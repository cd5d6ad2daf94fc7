"""Masks, and the maps that follow from their scores: xaitk's own numbers, made and kept in less memory.

xaitk holds all masks, in float64 too: 12 MiB for each of 1024 x 768 pixels. Here they lie in a file,
those of bits packed, and maps are added up one mask at a time: the same numbers in the same order, so that
every byte is the same, for any rows of the map alone.

xaitk is imported here alone, and this only where a study asks for maps.
"""

import copy
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import maxabs_scale
from xaitk_saliency import GenerateClassifierConfidenceSaliency, PerturbImage
from xaitk_saliency.impls.gen_classifier_conf_sal.occlusion_scoring import OcclusionScoring
from xaitk_saliency.impls.gen_classifier_conf_sal.rise_scoring import RISEScoring
from xaitk_saliency.impls.gen_image_classifier_blackbox_sal.occlusion_based import PerturbationOcclusion
from xaitk_saliency.impls.perturb_image.random_grid import RandomGrid
from xaitk_saliency.impls.perturb_image.rise import RISEGrid
from xaitk_saliency.impls.perturb_image.sliding_radial import SlidingRadial
from xaitk_saliency.impls.perturb_image.sliding_window import SlidingWindow

from unet_scaling.base.errors import EXIT_BUG, or_user_error
from unet_scaling.study.options import SaliencyOptions

# Masks that are made at a time take so much memory.
MADE_AT_A_TIME_BYTES = 16 * 2**20
# Masks that are read at a time to be added up take so much.
READ_BYTES = 4 * 2**20
FLOAT_BYTES = 4
# Shared out over threads, xaitk's random numbers would depend on which of them is first.
NO_THREADS = 0

# bool or float32: 1 keeps a pixel, 0 hides it.
MaskArray = NDArray[Any]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """A perturber, and the generator of xaitk that belongs to it and weighs masks.

    That is RISEScoring or OcclusionScoring.
    """

    perturber: PerturbImage
    generator: GenerateClassifierConfidenceSaliency

    def configuration(self) -> dict[str, Any]:
        """Return xaitk's configuration of both, from which its PerturbationOcclusion is built again."""
        configuration: dict[str, Any] = PerturbationOcclusion(self.perturber, self.generator).get_config()
        return configuration

    @property
    def _counts_hidden(self) -> bool:
        return isinstance(self.generator, OcclusionScoring)

    def sum_rows(self, rows: Iterable[MaskArray], reference: Doubles, perturbed: Doubles) -> Doubles:
        """Return the weighted sum over the masks, [planes, height, width], of some rows of all masks.

        `reference` [scores] is of the image, `perturbed` [masks, scores] of the masked ones. There is a plane
        for each score; with OcclusionScoring a last one counts how often each pixel was hidden.
        """
        weights = perturbed
        if self._counts_hidden:
            weights = np.column_stack([reference - perturbed, np.ones(len(perturbed))])
        sums: Doubles | None = None
        for mask, of_mask in zip(rows, weights, strict=True):
            if self._counts_hidden:
                part = 1 - mask.astype(np.float64)
            else:
                # Subtract in float32, as xaitk does, before the change to the scores' type.
                part = (mask - self.generator.p1).astype(np.float64)
            if sums is None:
                sums = np.zeros((len(of_mask), *mask.shape))
                product = np.empty(mask.shape)
            for plane, weight in zip(sums, of_mask, strict=True):
                np.multiply(part, weight, out=product)
                plane += product
        assert sums is not None, "a map of no masks"
        return sums

    def finish(self, sums: Doubles) -> Doubles:
        """Return the map [scores, height, width] in -1..1 of the sums over all its rows."""
        saliency = sums
        if self._counts_hidden:
            saliency = sums[:-1] / np.where(sums[-1] == 0, 1.0, sums[-1])
        flat: Doubles = maxabs_scale(saliency.reshape(len(saliency), -1), axis=1)
        return np.clip(flat.reshape(saliency.shape), -1, 1)


def method_of(options: SaliencyOptions) -> Method:
    """Return xaitk's classes with these options, paired as its own RISEStack and SlidingWindowStack do."""
    window = (options.window, options.window)
    stride = (options.stride, options.stride)
    scoring = RISEScoring(p1=options.p1 if options.debiased else 0.0)
    if options.method == "rise":
        return Method(RISEGrid(options.masks, options.grid, options.p1, options.seed, NO_THREADS), scoring)
    if options.method == "random_grid":
        return Method(RandomGrid(options.masks, window, options.p1, options.seed, NO_THREADS), scoring)
    sliding = SlidingWindow if options.method == "sliding_window" else SlidingRadial
    return Method(sliding(window, stride), OcclusionScoring())


def mask_chunks(perturber: PerturbImage, height: int, width: int) -> Iterator[MaskArray]:
    """Yield all masks of images of this size in their order, [some, height, width] at a time.

    They are xaitk's own, byte for byte. Those of `random_grid` and `sliding_radial` it makes all at once.
    """
    # Perturbers read nothing but the shape of an image.
    image = np.zeros((height, width), np.uint8)
    if isinstance(perturber, RISEGrid):
        # A generator in place of the seed goes on where the chunk before has left it.
        shifts = np.random.default_rng(perturber.seed)
        at_a_time = max(1, MADE_AT_A_TIME_BYTES // (image.size * perturber.grid.itemsize))
        for first in range(0, perturber.n, at_a_time):
            chunk = copy.copy(perturber)
            chunk.grid = perturber.grid[first : first + at_a_time]
            chunk.n = len(chunk.grid)
            chunk.seed = shifts
            yield chunk.perturb(image)
    elif isinstance(perturber, SlidingWindow):
        # One row of windows after the other: a window hides where its row and column meet.
        window_height, window_width = perturber.window_size
        step_down, step_across = perturber.stride
        of_rows = SlidingWindow((window_height, 1), (step_down, 1)).perturb(image[:, :1])
        of_columns = SlidingWindow((1, window_width), (1, step_across)).perturb(image[:1])
        for row in of_rows:
            yield row | of_columns
    else:
        yield perturber.perturb(image)


class MaskStore:
    """Masks [count, height, width] of bool or float32, made once for all images, in a temporary file."""

    def __init__(self, chunks: Iterable[MaskArray]) -> None:
        """Keep all masks of these chunks. Raises UserError (1) where no temporary file can hold them."""
        self.count = 0
        place = tempfile.gettempdir()
        cure = "set TMPDIR to a folder with more room"
        with or_user_error(f"saliency: {place} cannot hold the masks", cure, EXIT_BUG):
            self._file = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the masks
            for chunk in chunks:
                self.is_packed = chunk.dtype == np.bool_
                kept = np.packbits(chunk, axis=-1) if self.is_packed else np.ascontiguousarray(chunk)
                self._file.write(kept.data)
                self.count += len(chunk)
                self.height, self.width = chunk.shape[1:]
                self._layout = (kept.dtype, kept.shape[1:])
            self._file.flush()

    def rows(self, top: int, bottom: int) -> Iterator[MaskArray]:
        """Yield these rows of every mask, [bottom - top, width], in the order of the masks."""
        some = max(1, READ_BYTES // max(1, (bottom - top) * self.width * FLOAT_BYTES))
        for first in range(0, self.count, some):
            yield from self.read(first, first + some, top, bottom)

    def read(self, first: int, last: int, top: int = 0, bottom: int | None = None) -> MaskArray:
        """Return the masks from `first` to before `last`, and of these the rows from `top` to `bottom`."""
        dtype, shape = self._layout
        # Mapped for this reading alone: pages that stay mapped count as memory of the worker.
        mapped = np.memmap(self._file, dtype, "r", shape=(self.count, *shape))
        kept = np.array(mapped[first:last, top:bottom])
        return np.unpackbits(kept, axis=-1, count=self.width).view(np.bool_) if self.is_packed else kept
