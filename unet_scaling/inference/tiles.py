"""Tiles of an image that is too large to pass through the network at once: overlapping, without a seam.

A logit of the U-Net depends on a limited part of the image. Each tile takes what the logits kept of it depend
on, and begins where pooling of the whole image has a window begin: so it gives the logits of the whole image,
but for rounding. At the borders of the image it ends with it, as the whole does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import isqrt

# In multiples m = 2^(depth-1) of a pixel, of which pooling makes one: how far the logits of a square of m x m
# see beyond it. Two 3x3 convolutions on each level reach 2 of its pixels, on the way down and up:
# 4 (1 + 2 + ... + m/2) + 2 m = 6 m - 4, and with the windows of pooling at most 6 m - 2.
MARGIN = 6
Part = tuple[slice, slice]


@dataclass(frozen=True)
class Tile:
    """Rows and columns that pass through the network, and those whose logits are kept, of the image."""

    taken: Part
    kept: Part

    @property
    def kept_of_taken(self) -> Part:
        """Return the place of the kept logits within those of the tile."""
        rows, columns = (
            slice(kept.start - taken.start, kept.stop - taken.start)
            for kept, taken in zip(self.kept, self.taken, strict=True)
        )
        return rows, columns


def tiles(height: int, width: int, depth: int, most_pixels: int) -> Iterator[Tile]:
    """Yield tiles whose kept parts cover an image once; one alone where it has at most so many pixels.

    Height and width of a larger image are multiples of 2^(depth-1). A tile has at most `most_pixels`, or four
    margins on each side where that is more.
    """
    multiple = 2 ** (depth - 1)
    margin = MARGIN * multiple
    side = max(isqrt(most_pixels) // multiple * multiple, 4 * margin)
    if height * width <= most_pixels:
        side = max(height, width)
    rows, columns = (_spans(length, side, margin, multiple) for length in (height, width))
    for (taken_rows, kept_rows), (taken_columns, kept_columns) in product(rows, columns):
        yield Tile((taken_rows, taken_columns), (kept_rows, kept_columns))


def _spans(length: int, side: int, margin: int, multiple: int) -> list[tuple[slice, slice]]:
    """Return what each tile takes and keeps of one direction, all of nearly the same length."""
    if length <= side:
        return [(slice(0, length), slice(0, length))]
    number = -(-length // (side - 2 * margin))
    step = -(-length // (number * multiple)) * multiple
    kept = [slice(first, min(first + step, length)) for first in range(0, length, step)]
    return [(slice(max(0, each.start - margin), min(length, each.stop + margin)), each) for each in kept]
