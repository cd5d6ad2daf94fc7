"""Tiles of an image that is too large to pass through the network at once: overlapping, without a seam.

A tile takes all that the logits kept of it depend on, begins where a window of pooling of the whole begins,
and ends with the image at its borders: so it gives the logits of the whole, but for rounding.
"""

from collections.abc import Iterator
from itertools import product
from math import isqrt
from typing import NamedTuple

# In multiples m = 2^(depth-1) of a pixel, of which pooling makes one: how far the logits of a square of m x m
# see beyond it. Two 3x3 convolutions on each level reach 2 of its pixels, on the way down and up:
# 4 (1 + 2 + ... + m/2) + 2 m = 6 m - 4, and with the windows of pooling at most 6 m - 2.
MARGIN = 6
Part = tuple[slice, slice]


class ImageTile(NamedTuple):
    """Rows and columns of an image that are taken, what of it is kept, and this within the taken ones."""

    taken: Part
    kept: Part
    kept_of_taken: Part


def tiles(height: int, width: int, depth: int, most_pixels: int) -> Iterator[ImageTile]:
    """Yield tiles whose kept parts cover an image once; one alone where it has at most so many pixels.

    Height and width of a larger image are multiples of 2^(depth-1). A tile has at most `most_pixels`, or four
    margins on each side where that is more.
    """
    multiple = 2 ** (depth - 1)
    margin = MARGIN * multiple
    side = max(isqrt(most_pixels) // multiple * multiple, 4 * margin)
    if height * width <= most_pixels:
        side = max(height, width)
    for parts in product(_spans(height, side, margin, multiple), _spans(width, side, margin, multiple)):
        yield ImageTile(*zip(*parts, strict=True))


def _spans(length: int, side: int, margin: int, multiple: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield what each tile takes and keeps of one direction, all of nearly the same length."""
    number = 1 if length <= side else -(-length // (side - 2 * margin))
    step = -(-length // (number * multiple)) * multiple
    for first in range(0, length, step):
        end = min(first + step, length)
        begin = max(0, first - margin)
        taken = slice(begin, min(length, end + margin))
        yield taken, slice(first, end), slice(first - begin, end - begin)
