"""The images whose maps are most and least faithful, as pictures side by side for the page."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Literal

from analysis.report.assemble import Report
from analysis.report.view import Gallery, GalleryPicture
from analysis.saliency import Areas, areas_of
from analysis.study import Explained
from analysis.text import chart_number, clean, count
from unet_scaling.study.files import read_regular
from unet_scaling.study.saliency import ExplainedImage, SaliencyFile, SaliencyScore
from unet_scaling.study.texts import score_title

PICTURES: tuple[Literal["image"], Literal["truth"]] = ("image", "truth")
# Images shown of the best, and as many of the worst.
MOST_IMAGES = 3
# By which an image is the best or the worst: that of the two on which both prediction and region count.
RANKED_BY: SaliencyScore = "iou"
_CAPTION = (
    "{run}: {which} of {images} with a map, the best first: by how much less lies under the deletion curve "
    "of the {score} in the map's order than in random order. The numbers are areas under the deletion curve, "
    "where smaller is better, and under the insertion curve, where larger is; those of random order in "
    "brackets. Maps run from dark, the least salient, to light; where there is no colour, hiding pixels "
    "lowers no score."
)


def gallery(report: Report) -> Gallery | None:
    """Return the pictures of the first run that has some of images with curves; None where no run has."""
    study = report.saliency.study
    for run in study.runs["run"]:
        explained = study.explained.get(run)
        made = _gallery(str(run), explained) if explained else None
        if made and any(picture.source for _, pictures in made.rows for picture in pictures):
            return made
    return None


def _gallery(run: str, explained: Explained) -> Gallery | None:
    chosen = _chosen(explained)
    if not chosen:
        return None
    known = len(areas_of(explained, RANKED_BY))
    half = len(chosen) // 2
    which = "all" if len(chosen) == known else f"the {half} best and the {half} worst"
    caption = _CAPTION.format(
        run=run, which=which, images=count(known, "image"), score=score_title(RANKED_BY)
    )
    return Gallery(caption, tuple(_row(explained, image, areas) for image, areas in chosen))


def _chosen(explained: Explained) -> list[tuple[ExplainedImage, Mapping[SaliencyScore, Areas]]]:
    """Return the best and the worst images, best first, with their areas by score."""
    areas = {score: areas_of(explained, score) for score in explained.manifest.scores}
    ranked = areas.get(RANKED_BY, {})
    order = sorted(ranked, key=lambda position: -ranked[position].deletion_gain)
    kept = order if len(order) <= 2 * MOST_IMAGES else [*order[:MOST_IMAGES], *order[-MOST_IMAGES:]]
    images = explained.manifest.images
    return [
        (images[position], {score: found[position] for score, found in areas.items() if position in found})
        for position in kept
    ]


def _row(
    explained: Explained, image: ExplainedImage, areas: Mapping[SaliencyScore, Areas]
) -> tuple[str, tuple[GalleryPicture, ...]]:
    pictures = [GalleryPicture(_source(explained, image.pictures.get(name)), name) for name in PICTURES] + [
        GalleryPicture(
            _source(explained, image.overlays.get(score)), f"map of {score_title(score)}", _numbers(of_score)
        )
        for score, of_score in areas.items()
    ]
    return clean(image.image), tuple(pictures)


def _numbers(areas: Areas) -> str:
    deletion = f"deletion {_area(areas.deletion_area)} ({_area(areas.random_deletion_area)})"
    return f"{deletion}, insertion {_area(areas.insertion_area)} ({_area(areas.random_insertion_area)})"


def _area(area: float) -> str:
    return chart_number(area, ".2f")


def _source(explained: Explained, file: SaliencyFile | None) -> str:
    """Return a picture as a data URL; empty where it is not there, or not the one of the manifest."""
    if file is None:
        return ""
    try:
        content = read_regular(explained.folder / file.file)
    except OSError:
        return ""
    if hashlib.sha256(content).hexdigest() != file.sha256:
        return ""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
