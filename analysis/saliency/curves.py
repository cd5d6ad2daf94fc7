"""Deletion and insertion curves of a study: the mean over images, each the mean over trainings."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.arrays import Array
from analysis.stats import CONFIDENCE
from analysis.study import Explained, Study
from unet_scaling.study.saliency import SaliencyScore

_KINDS = ("deletion", "insertion")
SALIENCY_CURVE_COLUMNS = (
    "options", "score", "kind", "pixel_share", "images", "trainings", "own", "own_low", "own_high", "random",
    "random_low", "random_high",
)  # fmt: skip
# A single image has no spread.
_FEWEST_IMAGES = 2

# The curves of one image, by its name.
ImageCurves = Mapping[str, Array]


def curve_table(study: Study) -> pd.DataFrame:
    """Return SALIENCY_CURVE_COLUMNS, a row per set of options, score, kind of curve and share of the pixels.

    `own` is in the map's order. The images are those that every training explains; runs of equal weights
    count once. Intervals are Student's over the images, unknown for a single one.
    """
    rows: list[Mapping[str, object]] = []
    for options, runs in study.runs.groupby("options", sort=False):
        explained = _trainings([study.explained[run] for run in runs["run"] if run in study.explained])
        for score in _scores(explained):
            for kind in _KINDS:
                columns: dict[str, object] = {"options": options, "score": score, "kind": kind}
                rows += [columns | dict(row) for row in _rows(explained, score, kind)]
    return pd.DataFrame(rows, columns=list(SALIENCY_CURVE_COLUMNS))


def _trainings(explained: Sequence[Explained]) -> list[Explained]:
    """Return one run of each set of weights that has curves, as long as the first one's."""
    known = {each.manifest.weights_sha256: each for each in reversed(explained) if _has_curves(each)}
    trainings = list(reversed(known.values()))
    return [each for each in trainings if each.manifest.shares == trainings[0].manifest.shares]


def _has_curves(explained: Explained) -> bool:
    return any(image.faithfulness for image in explained.manifest.images)


def _scores(explained: Sequence[Explained]) -> Sequence[SaliencyScore]:
    return explained[0].manifest.scores if explained else ()


def _rows(explained: Sequence[Explained], score: SaliencyScore, kind: str) -> Iterator[Mapping[str, object]]:
    curves = {order: _mean_of_trainings(explained, score, name) for order, name in _orders(kind).items()}
    for place, share in enumerate(explained[0].manifest.shares):
        columns = {"pixel_share": share, "trainings": len(explained), "images": len(curves["own"])}
        for order, of_images in curves.items():
            columns |= _mean(order, of_images[:, place])
        yield columns


def _orders(kind: str) -> Mapping[str, str]:
    return {"own": kind, "random": f"random_{kind}"}


def _mean_of_trainings(explained: Sequence[Explained], score: SaliencyScore, name: str) -> Array:
    """Return the curve of each image that every training has one of, [images, shares]."""
    curves = [_of_images(each, score, name) for each in explained]
    common = [image for image in curves[0] if all(image in others for others in curves)]
    means = [np.mean([of_training[image] for of_training in curves], axis=0) for image in common]
    return np.array(means).reshape(len(common), len(explained[0].manifest.shares))


def _of_images(explained: Explained, score: SaliencyScore, name: str) -> ImageCurves:
    return {
        image.image: np.array(getattr(image.faithfulness[score], name))
        for image in explained.manifest.images
        if score in image.faithfulness
    }


def _mean(order: str, scores: Array) -> Mapping[str, float]:
    """Return the mean of scores, which lie from 0 to 1, with its interval."""
    mean = float(np.mean(scores)) if len(scores) else float("nan")
    reach = float("nan")
    if len(scores) >= _FEWEST_IMAGES:
        error = np.std(scores, ddof=1) / np.sqrt(len(scores))
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(scores) - 1) * error)
    low, high = np.clip([mean - reach, mean + reach], 0, 1)
    return {order: mean, f"{order}_low": float(low), f"{order}_high": float(high)}
