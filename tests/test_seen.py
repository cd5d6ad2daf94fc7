"""Pictures of what a network predicts: what a run leaves of its test images, and what a report shows."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.records import digest, write_run
from tests.reports import reported
from tests.trained import TrainedRuns, plain_config
from unet_scaling.base.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.data.batches import ImageBatch
from unet_scaling.format.record import RECORD_NAME, read_record
from unet_scaling.format.record_lines import PICTURES_NAME, Pictures, PixelCounts, Result, SamplePicture
from unet_scaling.task.task import UNetTask

PNG = base64.b64encode(b"a picture").decode()


def colours(png: bytes) -> NDArray[Any]:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_outlines_tell_true_masks_predicted_ones_and_both_apart() -> None:
    """Of an image with padding, which is no part of the picture."""
    logits, masks = torch.full((1, 1, 12, 20), -1.0), torch.zeros(1, 1, 12, 20)
    masks[..., 2:7, 2:7] = 1
    logits[..., 2:7, 4:9] = 1
    batch = ImageBatch(torch.full((1, 1, 12, 20), 0.5), masks, (0, 0, 10, 20))
    task = UNetTask(plain_config(Path("/images")))
    png, iou = task.picture(lambda _: logits, batch)  # type: ignore[arg-type]
    assert iou == PixelCounts(15, 10, 10, 0).iou
    picture = colours(png)
    assert picture.shape == (10, 20, 3)
    assert tuple(picture[4, 2]) == (86, 180, 233)
    assert tuple(picture[4, 8]) == (230, 159, 0)
    assert tuple(picture[2, 5]) == (255, 255, 255)
    assert len({tuple(pixel) for pixel in (picture[9, 19], picture[4, 3], picture[5, 7])}) == 1
    large = ImageBatch(torch.zeros(1, 3, 400, 900), torch.zeros(1, 1, 400, 900), (0, 0, 400, 900))
    png, iou = task.picture(lambda _: torch.zeros(1, 1, 400, 900), large)  # type: ignore[arg-type]
    assert iou is None
    assert colours(png).shape == (67, 150, 3)


@pytest.mark.slow
def test_a_run_leaves_pictures_of_its_first_test_images(images: Path, trained_run: TrainedRuns) -> None:
    for workers in (1, 2):
        run = trained_run(plain_config(images, workers=workers))
        result = run.record.results[-1]
        assert isinstance(result, Result)
        pictures = Pictures.model_validate(read_json_with_checksum(run.folder / PICTURES_NAME))
        assert pictures.weights_sha256 == result.weights_sha256
        assert [picture.position for picture in pictures.images] == [*range(6)]
        assert all(colours(base64.b64decode(each.png)).shape == (32, 32, 3) for each in pictures.images)


def left_by(run: Path, ious: list[float], weights: str = "") -> None:
    """Let a run have left pictures of test images with these IoU."""
    result = read_record(run / RECORD_NAME).results[-1]
    drawn = [SamplePicture(position=place, iou=iou, png=PNG) for place, iou in enumerate(ious)]
    pictures = Pictures(weights_sha256=weights or result.weights_sha256, images=drawn)
    write_json_with_checksum(run / PICTURES_NAME, pictures.model_dump(mode="json"))


def test_a_report_shows_the_best_median_and_worst_image_of_1_worker(tmp_path: Path) -> None:
    """Of weights that the record names, in files that are whole; on 1 worker and on the most."""
    runs = {
        (framework, workers): write_run(tmp_path / "study", framework, workers)
        for framework in ("pytorch_native", "horovod")
        for workers in (1, 2, 4)
    }  # fmt: skip
    page = tmp_path / "study" / "report" / "report.html"
    reported(tmp_path / "study")
    assert "What the network sees" not in page.read_text()
    left_by(runs["pytorch_native", 1], [0.5, 0.9, 0.1])
    left_by(runs["pytorch_native", 4], [0.4, 0.61, 0.2])
    left_by(runs["pytorch_native", 2], [0.33, 0.33, 0.33])
    left_by(runs["horovod", 4], [0.77] * 3, digest("other weights"))
    (runs["horovod", 1] / PICTURES_NAME).write_text("damaged")
    reported(tmp_path / "study")
    text = page.read_text()
    assert text.count(PNG) == 6
    order = [text.index(f"test image {number}: {which} of 1 worker") for number, which in
             ((2, "best"), (1, "median"), (3, "worst"))]  # fmt: skip
    assert order == sorted(order)
    assert "4 workers, native DDP<br>IoU 0.61" in text
    assert "0.33" not in text
    assert "0.77" not in text
