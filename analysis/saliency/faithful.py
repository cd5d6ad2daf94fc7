"""How faithful saliency maps are: on how many images deleting in the map's order beats random order.

An image counts where the area under its deletion curve is smaller by LEAST_GAIN than that under the mean of
random orders; for insertion, larger. Without a least difference, maps of freshly drawn weights would count
too: they are faithful to a network whose score hardly changes, by some 0.0001.

Intervals of a share of images are exact (Clopper and Pearson, 1934): the images are the sample of one trained
network. What other trainings give, only other runs can tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.stats import share_interval
from analysis.study import NAN, POINT, Explained, Study
from unet_scaling.study.saliency import ExplainedImage, Faithfulness, SaliencyScore

AREAS = ("deletion_area", "random_deletion_area", "insertion_area", "random_insertion_area")
_KINDS = ("deletion", "insertion")
# Of an area; scores and areas are at most 1. A difference that is smaller cannot be seen in a curve.
LEAST_GAIN = 0.01
FAITHFUL_COLUMNS = (
    "run", *POINT, "repeat", "score", "images", *AREAS,
    *(f"{kind}_{name}" for kind in _KINDS for name in ("better", "share", "share_low", "share_high")),
    "untrained_images", "untrained_maps", "untrained_better", "untrained_share", "untrained_share_low",
    "untrained_share_high", "untrained_correlation", "weights_sha256",
)  # fmt: skip
IMAGE_COLUMNS = ("run", "image", "position", "score", "map_sha256", "no_map", *AREAS)


@dataclass(frozen=True)
class Areas:
    """The areas under the curves of one image and score."""

    deletion_area: float
    random_deletion_area: float
    insertion_area: float
    random_insertion_area: float

    @classmethod
    def under(cls, curves: Faithfulness, shares: Sequence[float]) -> "Areas":
        """Return the areas under curves that have a score at each of these shares of the pixels."""
        return cls(**{name: _area(getattr(curves, name.removesuffix("_area")), shares) for name in AREAS})

    @property
    def deletion_gain(self) -> float:
        """Return by how much the map's order deletes better than random order."""
        return self.random_deletion_area - self.deletion_area

    @property
    def insertion_gain(self) -> float:
        """Return by how much the map's order inserts better than random order."""
        return self.insertion_area - self.random_insertion_area


def _area(scores: Sequence[float], shares: Sequence[float]) -> float:
    return float(np.trapezoid(scores, shares))


def areas_of(explained: Explained, score: SaliencyScore) -> dict[int, Areas]:
    """Return the areas of each image that has curves of this score, by its position."""
    shares = explained.manifest.shares
    return {
        image.position: Areas.under(image.faithfulness[score], shares)
        for image in explained.manifest.images
        if score in image.faithfulness
    }


def faithful_table(study: Study) -> pd.DataFrame:
    """Return one row per run and score whose manifest has curves: FAITHFUL_COLUMNS."""
    rows = [
        {
            **{name: run[name] for name in (*POINT, "run", "repeat")},
            "weights_sha256": explained.manifest.weights_sha256,
            **_columns(explained, score),
        }
        for run in study.runs.to_dict("records")
        if (explained := study.explained.get(str(run["run"])))
        for score in explained.manifest.scores
        if areas_of(explained, score)
    ]
    return pd.DataFrame(rows, columns=list(FAITHFUL_COLUMNS))


def _columns(explained: Explained, score: SaliencyScore) -> Mapping[str, object]:
    areas = list(areas_of(explained, score).values())
    return {
        "score": score,
        "images": len(areas),
        **{name: float(np.mean([getattr(each, name) for each in areas])) for name in AREAS},
        **_better("deletion", [each.deletion_gain for each in areas]),
        **_better("insertion", [each.insertion_gain for each in areas]),
        **_untrained(explained, score),
    }


def _better(kind: str, gains: Sequence[float]) -> Mapping[str, float]:
    """Return on how many images the map's order is better, their share, and its exact interval."""
    better = sum(gain >= LEAST_GAIN for gain in gains)
    share = better / len(gains) if gains else NAN
    low, high = share_interval(better, len(gains))
    return {
        f"{kind}_better": better, f"{kind}_share": share, f"{kind}_share_low": low, f"{kind}_share_high": high
    }  # fmt: skip


def _untrained(explained: Explained, score: SaliencyScore) -> Mapping[str, float]:
    """Return the same of the network with freshly drawn weights, and how its maps rank pixels."""
    checked = [image.untrained for image in explained.manifest.images if image.untrained]
    shares = explained.manifest.shares
    gains = [
        Areas.under(image.faithfulness[score], shares).deletion_gain
        for image in checked
        if score in image.faithfulness
    ]
    correlations = [image.correlation.get(score) for image in checked]
    known = [abs(each) for each in correlations if each is not None]
    return {
        "untrained_images": len(checked),
        "untrained_maps": sum(image.no_map is None for image in checked),
        "untrained_correlation": float(np.median(known)) if known else NAN,
        **_better("untrained", gains),
    }


def image_table(study: Study) -> pd.DataFrame:
    """Return one row per run, image and score: its map's digest, or why there is none, and its areas."""
    rows = [
        {"run": run, "score": score, **_of_image(image, score, explained.manifest.shares)}
        for run, explained in study.explained.items()
        for image in explained.manifest.images
        for score in explained.manifest.scores
    ]
    return pd.DataFrame(rows, columns=list(IMAGE_COLUMNS))


def _of_image(image: ExplainedImage, score: SaliencyScore, shares: Sequence[float]) -> Mapping[str, object]:
    curves = image.faithfulness.get(score)
    areas = vars(Areas.under(curves, shares)) if curves else dict.fromkeys(AREAS, NAN)
    digest = image.map.sha256 if image.map else ""
    return {
        "image": image.image,
        "position": image.position,
        "map_sha256": digest,
        "no_map": image.no_map or "",
    } | areas
