"""The masks of all images of a run: made once, for they depend on the images' size alone.

Masks of bits are packed. What is more than KEPT_BYTES lies in a temporary file instead of memory.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unet_scaling.explain.perturbers import MaskArray
from unet_scaling.study.errors import EXIT_BUG, UserError

# 1,000 masks of 96 x 128 pixels take 47 MiB.
KEPT_BYTES = 64 * 2**20
# Of masks that are read at a time to be added up.
READ_BYTES = 4 * 2**20
PIXELS_PER_BYTE = 8
FLOAT_BYTES = 4
# Of uint8, eight pixels in one, or float32.
PackedArray = NDArray[Any]


class MaskStore:
    """Masks [count, height, width] of bool or float32, in the order in which they are weighed."""

    def __init__(self, chunks: Iterable[MaskArray]) -> None:
        """Keep all masks of these chunks. Raises UserError (1) where no temporary file can hold them."""
        self.count = 0
        self.height = 0
        self.width = 0
        self._kept: list[PackedArray] = []
        self._file: IO[bytes] | None = None
        for chunk in chunks:
            self.dtype: np.dtype[Any] = chunk.dtype
            self.height, self.width = chunk.shape[1:]
            self._keep(_packed(chunk))
            self.count += len(chunk)
        self._join()

    def __iter__(self) -> Iterator[MaskArray]:
        return self.rows(0, self.height)

    def rows(self, top: int, bottom: int) -> Iterator[MaskArray]:
        """Yield these rows of every mask, [bottom - top, width], in the order of the masks."""
        some = max(1, READ_BYTES // max(1, (bottom - top) * self.width * FLOAT_BYTES))
        for first in range(0, self.count, some):
            yield from self.read(first, first + some, top, bottom)

    def read(self, first: int, last: int, top: int = 0, bottom: int | None = None) -> MaskArray:
        """Return the masks from `first` to before `last`, and of these the rows from `top` to `bottom`."""
        last = min(last, self.count)
        bottom = self.height if bottom is None else bottom
        if self._file is None:
            packed = self._kept[0][first:last, top:bottom]
        else:
            packed = self._read_file(first, last, top, bottom)
        if self.dtype != np.bool_:
            return packed
        return np.unpackbits(packed, axis=-1, count=self.width).view(np.bool_)

    @property
    def _row_bytes(self) -> int:
        return -(-self.width // PIXELS_PER_BYTE) if self.dtype == np.bool_ else self.width * FLOAT_BYTES

    def _keep(self, packed: PackedArray) -> None:
        self._kept.append(packed)
        if self._file is None and sum(chunk.nbytes for chunk in self._kept) <= KEPT_BYTES:
            return
        try:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115, open as long as the masks
            for chunk in self._kept:
                self._file.write(chunk.data)
        except OSError as error:
            raise UserError(
                f"the saliency masks need a temporary file, but {tempfile.gettempdir()} cannot hold it: "
                f"{error.strerror}; set TMPDIR to a folder with more room, or ask for fewer masks: "
                "a smaller saliency.masks, or with a sliding method a larger saliency.stride",
                EXIT_BUG,
            ) from None
        self._kept.clear()

    def _join(self) -> None:
        if self._file is None:
            # One chunk at a time, so that no more than one is there twice.
            kept = np.empty((self.count, *self._kept[0].shape[1:]), self._kept[0].dtype)
            first = 0
            while self._kept:
                chunk = self._kept.pop(0)
                kept[first : first + len(chunk)] = chunk
                first += len(chunk)
            self._kept.append(kept)
        else:
            self._file.flush()

    def _read_file(self, first: int, last: int, top: int, bottom: int) -> PackedArray:
        assert self._file is not None
        row = np.empty((last - first, bottom - top, self._row_bytes), np.uint8)
        for place, number in enumerate(range(first, last)):
            begin = (number * self.height + top) * self._row_bytes
            count = os.preadv(self._file.fileno(), [row[place].data], begin)
            assert count == row[place].nbytes, f"mask {number}: {count} bytes of {row[place].nbytes}"
        return row if self.dtype == np.bool_ else row.view(np.float32)


def _packed(chunk: MaskArray) -> PackedArray:
    if chunk.dtype == np.bool_:
        return np.packbits(chunk, axis=-1)
    assert chunk.dtype == np.float32, f"masks of {chunk.dtype}"
    return np.ascontiguousarray(chunk)
