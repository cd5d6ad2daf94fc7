"""The interfaces of what batches are gathered from: samples of any kind, and images wherever they are."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

Indices = npt.NDArray[np.int64]
PackedBatch = tuple[Tensor, Tensor]
# Tensors, alone or nested as the task's functions take them.
Batch = Any


class Source(Protocol):
    """Samples of a data set, by their number."""

    def gather(self, indices: Indices) -> Batch:
        """Return the samples of these numbers as one batch in memory."""


class ImageSource(Source, Protocol):
    """Images and masks of a data set, by their row in its manifest: cached, decoded, or on the device."""

    @property
    def boxes(self) -> npt.NDArray[np.int32]:
        """Return int32 [n, 4]: top, left, height, width of each picture within its padding, in pixels."""

    def gather(self, indices: Indices) -> PackedBatch:
        """Return uint8 images [b, channels, height, width], stored channels-last, and packed masks.

        Masks are [b, height, ceil(width / 8)], a bit for each pixel. Raises UserError (65) where a file
        cannot be decoded.
        """
