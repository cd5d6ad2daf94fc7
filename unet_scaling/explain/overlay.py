"""A saliency map as a picture: colour over the grey image, none where hiding pixels lowers no score."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unet_scaling.explain.faithfulness import Reals

# Of least to most salient: lighter and lighter, so that the order shows without colours, too. After the
# colour map "plasma" of Smith and van der Walt, whose darkest part would be lost on a dark image.
COLOURS = np.array(
    [[126, 3, 168], [170, 35, 149], [204, 71, 120], [230, 108, 92], [248, 149, 64], [253, 197, 39],
     [240, 249, 33]]
)  # fmt: skip
# Of a pixel as bright as can be.
WHITE = 255
# The noise of a nearly black image is not worth more.
MOST_BRIGHTER_FACTOR = 4.0
# Of the most salient pixel: what the image has there still shows.
MOST_OPAQUE_SHARE = 0.8


def overlay_png(image: NDArray[np.uint8], saliency: Reals) -> bytes:
    """Return a PNG of an image [height, width, 1 or 3] with its map [height, width] over it.

    Colours are of shares of the map's own maximum: two pictures tell nothing of which map is stronger.
    """
    opacity = MOST_OPAQUE_SHARE * _shares_of_maximum(saliency)[..., None]
    blended = (1 - opacity) * _grey(image) + opacity * _colours(_shares_of_maximum(saliency))
    return picture_png(np.rint(blended).astype(np.uint8))


def brighter(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image so bright that a dark one can be made out beside the colours of a map."""
    factor = min(WHITE / max(int(image.max()), 1), MOST_BRIGHTER_FACTOR)
    bright: NDArray[np.uint8] = np.rint(image * factor).astype(np.uint8)
    return bright


def picture_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG of pixels [height, width, 1 or 3]."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "png")
    return file.getvalue()


def _shares_of_maximum(saliency: Reals) -> Reals:
    """Return the map as shares of its maximum; pixels whose hiding raises the score have none."""
    positive = np.clip(saliency.astype(np.float64), 0, None)
    return positive / (positive.max() or 1.0)


def _colours(shares: Reals) -> Reals:
    places = np.linspace(0, 1, len(COLOURS))
    return np.stack([np.interp(shares, places, channel) for channel in COLOURS.T], axis=-1)


def _grey(image: NDArray[np.uint8]) -> Reals:
    """Return the brightness of an image, [height, width, 1]: its own colours would be taken for the map's."""
    grey: Reals = brighter(image).mean(axis=-1, keepdims=True)
    return grey
