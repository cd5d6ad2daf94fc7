"""The interface that the three kinds of images share: cached, decoded at every access, on the device."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

Indices = npt.NDArray[np.int64]
PackedBatch = tuple[Tensor, Tensor]


class ImageSource(Protocol):
    """Images and masks of a data set, by their row in its manifest."""

    @property
    def boxes(self) -> npt.NDArray[np.int32]:
        """Return int32 [n, 4]: top, left, height, width of each picture within its padding, in pixels."""

    def gather(self, indices: Indices) -> PackedBatch:
        """Return uint8 images [b, channels, height, width], stored channels-last, and packed masks.

        Masks are [b, height, ceil(width / 8)], a bit for each pixel. Raises UserError (65) where a file
        cannot be decoded.
        """
