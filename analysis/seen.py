"""What the network sees: the outlines that runs on 1 worker and on the most workers predict, side by side."""

from collections.abc import Iterator, Mapping
from typing import Any

from analysis.study import Study
from analysis.text import Row, chart_number, count
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import read_json_with_checksum
from unet_scaling.study.record_lines import PICTURES_NAME, Pictures, SamplePicture

SeenRow = tuple[str, list[tuple[str, str, str]]]


def seen_rows(study: Study) -> list[SeenRow]:
    """Return for each chosen image its name and its pictures, (source, title, numbers) each.

    Of the first repeat whose run on 1 worker left pictures: its run, and that of each framework on the most
    workers, of the same options. The images are those on which 1 worker has the best IoU, the median and the
    worst. A picture is used where it is of the weights that the record names.
    """
    found = dict(_runs_with_pictures(study))
    runs = [row for row in study.subject.runs.to_dict("records") if row["run"] in found]
    alone = next((row for row in runs if row["workers"] == 1), None)
    if alone is None:
        return []
    same = [row for row in runs if (row["options"], row["repeat"]) == (alone["options"], alone["repeat"])]
    most = max(row["workers"] for row in same)
    shown: list[Row] = [alone, *(row for row in same if row["workers"] == most > 1)]
    by_iou = sorted((each for each in found[alone["run"]].values() if each.iou is not None), key=_iou)
    places = dict.fromkeys((len(by_iou) - 1, len(by_iou) // 2, 0)) if by_iou else ()
    names = dict(zip(places, ("best of 1 worker", "median of 1 worker", "worst of 1 worker"), strict=False))
    return [
        (
            f"test image {by_iou[place].position + 1}: {name}",
            [_shown(study, row, found[row["run"]].get(by_iou[place].position)) for row in shown],
        )
        for place, name in names.items()
    ]


def _iou(picture: SamplePicture) -> float:
    return picture.iou or 0.0


def _shown(study: Study, row: Row, picture: SamplePicture | None) -> tuple[str, str, str]:
    title = f"{count(row['workers'], 'worker')}, {study.names[row['framework']]}"
    if picture is None:
        return "", title, ""
    iou = "" if picture.iou is None else f"IoU {chart_number(picture.iou, '.2f')}"
    return f"data:image/png;base64,{picture.png}", title, iou


def _runs_with_pictures(study: Study) -> Iterator[tuple[str, Mapping[int, SamplePicture]]]:
    """Yield each run with pictures of its last weights, and these by their position."""
    subject = study.subject
    last = subject.evaluations.drop_duplicates("run", keep="last")
    weights = dict(zip(last["run"], last["weights_sha256"], strict=True))
    for run in subject.runs["run"] if study.folder else ():
        try:
            content: Any = read_json_with_checksum(study.folder / run / PICTURES_NAME)
            pictures = Pictures.model_validate(content)
        except (OSError, ValueError, UserError):  # not there, or damaged
            continue
        if pictures.weights_sha256 == weights.get(run):
            yield run, {picture.position: picture for picture in pictures.images}
