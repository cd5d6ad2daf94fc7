"""Pictures of saliency maps: of the images with the best and the worst maps of a run."""

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

from analysis.saliency.areas import Areas, areas_of, gain
from analysis.study import Explained, Study
from analysis.text import chart_number, clean
from unet_scaling.base.files import read_regular
from unet_scaling.base.texts import score_title
from unet_scaling.format.saliency import SaliencyFile, SaliencyScore

# Images shown of the best, and as many of the worst.
MOST_IMAGES = 3
# By which an image is the best or the worst: that of the two on which both prediction and region count.
RANKED_BY: SaliencyScore = "iou"


def gallery_of(study: Study) -> dict[str, Any] | None:
    """Return the pictures of the first run that has some of images with curves; None where no run has."""
    for run in study.runs["run"]:
        explained = study.explained.get(run)
        rows = list(_pictures(explained)) if explained else []
        if explained and any(source for _, pictures in rows for source, *_ in pictures):
            images = len(areas_of(explained, RANKED_BY))
            return {"run": run, "images": images, "rows": rows, "score": score_title(RANKED_BY)}
    return None


def _pictures(explained: Explained) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the best and the worst images, the best first, each with (source, title, numbers) of pictures."""
    areas = {score: areas_of(explained, score) for score in explained.manifest.scores}
    ranked = areas.get(RANKED_BY, {})
    order = sorted(ranked, key=lambda position: -gain(ranked[position], "deletion"))
    kept = order if len(order) <= 2 * MOST_IMAGES else [*order[:MOST_IMAGES], *order[-MOST_IMAGES:]]
    for position in kept:
        image = explained.manifest.images[position]
        pictures = [(_source(explained, image.pictures.get(name)), name, "") for name in ("image", "truth")]
        for score in (score for score, found in areas.items() if position in found):
            source = _source(explained, image.overlays.get(score))
            pictures.append((source, f"map of {score_title(score)}", _numbers(areas[score][position])))
        yield clean(image.image), pictures


def _numbers(areas: Areas) -> str:
    deletion, random_deletion, insertion, random_insertion = (
        chart_number(area, ".2f") for area in areas.values()
    )
    return f"deletion {deletion} ({random_deletion}), insertion {insertion} ({random_insertion})"


def _source(explained: Explained, file: SaliencyFile | None) -> str:
    """Return a picture as a data URL; empty where it is not there, or not the one of the manifest."""
    try:
        content = read_regular(explained.folder / file.file) if file else b""
    except OSError:
        return ""
    if not file or hashlib.sha256(content).hexdigest() != file.sha256:
        return ""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
