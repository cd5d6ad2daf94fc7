"""Masks, and the maps that follow from their scores: xaitk's own numbers, made and kept in less memory.

xaitk holds all masks, in float64 too: 12 MiB for each of 1024 x 768 pixels. Here masks of bits are packed,
more than KEPT_BYTES lie in a temporary file, and maps are added up one mask at a time: the same numbers in
the same order, so that every byte is the same, for any rows of the map alone.

xaitk is imported here alone, and this only where a study asks for maps.
"""

import copy
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

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

from unet_scaling.explain.network import Doubles
from unet_scaling.study.errors import EXIT_BUG, UserError
from unet_scaling.study.options import SaliencyOptions

# Of masks that are made at a time.
MADE_AT_A_TIME_BYTES = 16 * 2**20
# 1,000 masks of 96 x 128 pixels take 47 MiB.
KEPT_BYTES = 64 * 2**20
# Of masks that are read at a time to be added up.
READ_BYTES = 4 * 2**20
FLOAT_BYTES = 4
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
    # Of an image, perturbers read the shape alone.
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
    """Masks [count, height, width] of bool or float32, made once for all images, in their order."""

    def __init__(self, chunks: Iterable[MaskArray]) -> None:
        """Keep all masks of these chunks. Raises UserError (1) where no temporary file can hold them."""
        self.count = 0
        self._file: IO[bytes] | None = None
        kept: list[MaskArray] = []
        for chunk in chunks:
            self.dtype: np.dtype[Any] = chunk.dtype
            self.height, self.width = chunk.shape[1:]
            self.count += len(chunk)
            is_packed = chunk.dtype == np.bool_
            kept.append(np.packbits(chunk, axis=-1) if is_packed else np.ascontiguousarray(chunk))
            if self._file or sum(each.nbytes for each in kept) > KEPT_BYTES:
                self._append(kept)
                kept.clear()
        row_bytes = -(-self.width // 8) if self.dtype == np.bool_ else self.width
        self._stored_type = np.dtype(np.uint8) if self.dtype == np.bool_ else self.dtype
        self._shape = (self.count, self.height, row_bytes)
        if self._file:
            return
        # One chunk at a time, so that no more than one is there twice.
        self._kept = np.empty(self._shape, self._stored_type)
        first = 0
        while kept:
            chunk = kept.pop(0)
            self._kept[first : first + len(chunk)] = chunk
            first += len(chunk)

    def _append(self, chunks: list[MaskArray]) -> None:
        try:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115, open as long as the masks
            for chunk in chunks:
                self._file.write(chunk.data)
            self._file.flush()
        except OSError as error:
            raise UserError(
                f"the saliency masks need a temporary file, but {tempfile.gettempdir()} cannot hold it: "
                f"{error.strerror}; set TMPDIR to a folder with more room, or ask for fewer masks: "
                "a smaller saliency.masks, or with a sliding method a larger saliency.stride",
                EXIT_BUG,
            ) from None

    def __iter__(self) -> Iterator[MaskArray]:
        return self.rows(0, self.height)

    def rows(self, top: int, bottom: int) -> Iterator[MaskArray]:
        """Yield these rows of every mask, [bottom - top, width], in the order of the masks."""
        some = max(1, READ_BYTES // max(1, (bottom - top) * self.width * FLOAT_BYTES))
        for first in range(0, self.count, some):
            yield from self.read(first, first + some, top, bottom)

    def read(self, first: int, last: int, top: int = 0, bottom: int | None = None) -> MaskArray:
        """Return the masks from `first` to before `last`, and of these the rows from `top` to `bottom`."""
        if self._file is None:
            packed: MaskArray = self._kept[first:last, top:bottom]
        else:
            # Mapped for this reading alone: pages that stay mapped count as memory of the worker.
            mapped = np.memmap(self._file, self._stored_type, "r", shape=self._shape)
            packed = np.array(mapped[first:last, top:bottom])
        if self.dtype != np.bool_:
            return packed
        return np.unpackbits(packed, axis=-1, count=self.width).view(np.bool_)


@dataclass(frozen=True)
class Weighting:
    """How a generator of xaitk weighs masks: RISEScoring or OcclusionScoring."""

    generator: GenerateClassifierConfidenceSaliency

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
                # In float32, as xaitk does, before it goes over to the scores' type.
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
