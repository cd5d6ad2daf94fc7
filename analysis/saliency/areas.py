"""The areas under the deletion and insertion curves of a map: how much better than random its order is."""

from collections.abc import Mapping, Sequence

import numpy as np

from analysis.study import Explained
from unet_scaling.format.saliency import Faithfulness, SaliencyScore

AREAS = ("deletion_area", "random_deletion_area", "insertion_area", "random_insertion_area")
# The areas under the curves of one image and score: AREAS.
Areas = Mapping[str, float]


def areas_under(curves: Faithfulness, shares: Sequence[float]) -> Areas:
    """Return the areas under curves that have a score at each of these shares of the pixels."""
    return {name: float(np.trapezoid(getattr(curves, name.removesuffix("_area")), shares)) for name in AREAS}


def gain(areas: Areas, kind: str) -> float:
    """Return by how much the map's order deletes, or inserts, better than random order."""
    better = areas[f"random_{kind}_area"] - areas[f"{kind}_area"]
    return better if kind == "deletion" else -better


def areas_of(explained: Explained, score: SaliencyScore) -> dict[int, Areas]:
    """Return the areas of each image that has curves of this score, by its position."""
    shares = explained.manifest.shares
    return {
        image.position: areas_under(image.faithfulness[score], shares)
        for image in explained.manifest.images
        if score in image.faithfulness
    }
