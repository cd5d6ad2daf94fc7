"""Masks of a folder by the network of a run: those of its evaluation, whoever makes them, and never twice."""

import csv
import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from slurm.commands import segment as command
from tests.tasks import points_config
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.data.folder import find_pairs
from unet_scaling.data.order import split
from unet_scaling.inference.masks import files_to_segment, mask_path
from unet_scaling.inference.segment import open_segmenter, segment
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_lines import Result


@pytest.fixture(scope="module")
def run(images: Path, trained_run: TrainedRuns) -> TrainedRun:
    return trained_run(plain_config(images, workers=1))


def segmented(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["unet-scaling segment", *map(str, words)])
    return command.main()


@pytest.fixture
def test_images(images: Path, run: TrainedRun, tmp_path: Path) -> Path:
    """A data folder of the test images of the run alone."""
    data = plain_config(images, workers=1).data
    pairs, _ = find_pairs(images)
    folder = tmp_path / "test"
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
        for index in split(len(pairs), data.test_share, data.split_seed).test:
            name = pairs[index].image
            shutil.copy(images / kind / name, folder / kind / name)
    return folder


@pytest.mark.slow
def test_the_test_images_have_the_score_of_the_record_at_any_number_of_workers(
    run: TrainedRun,
    test_images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A second call makes what is missing, and nothing else."""
    result = run.record.results[-1]
    assert isinstance(result, Result)
    outputs = tmp_path / "one", tmp_path / "two"
    for workers, output in enumerate(outputs, start=1):
        assert segmented(monkeypatch, run.folder, test_images, "--output", output, "--workers", workers) == 0
        assert "9 masks, 9 new masks in" in capsys.readouterr().out
    contents = [{path.name: path.read_bytes() for path in output.iterdir()} for output in outputs]
    assert len(contents[0]) == 10
    assert contents[0] == contents[1]
    rows = [*csv.DictReader(io.StringIO(contents[0]["segments.csv"].decode()))]
    assert float(np.mean([float(row["iou"]) for row in rows])) == pytest.approx(result.image_iou, rel=1e-15)
    missing = next(path for path in outputs[0].iterdir() if path.suffix == ".png")
    missing.unlink()
    kept = {path: path.stat().st_mtime_ns for path in outputs[0].glob("*.png")}
    assert segmented(monkeypatch, run.folder, test_images, "--output", outputs[0]) == 0
    printed = capsys.readouterr().out
    assert "9 masks, 1 new mask in" in printed
    assert f"IoU of these 9 images {result.iou!r};" in printed
    assert missing.read_bytes() == contents[1][missing.name]
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())


def test_images_of_any_size_have_masks_of_their_own(run: TrainedRun, tmp_path: Path) -> None:
    """Of foreground and background alone; another network makes them anew."""
    sizes = [(32, 32), (7, 90), (65, 33)]
    folder, output = tmp_path / "images", tmp_path / "masks"
    folder.mkdir()
    output.mkdir()
    for number, (height, width) in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    segmenter = open_segmenter(run.folder, torch.device("cpu"), any_depth=False)
    pairs = files_to_segment(folder)
    assert [segment(segmenter, folder, pair, output) for pair in pairs] == [True] * 3
    assert [segment(segmenter, folder, pair, output) for pair in pairs] == [False] * 3
    for pair, size in zip(pairs, sizes, strict=True):
        mask = np.asarray(Image.open(mask_path(output, pair)))
        assert mask.shape == size
        assert set(np.unique(mask)) <= {0, 255}
    of_another = replace(segmenter, weights_sha256="0" * 64)
    assert segment(of_another, folder, pairs[0], output)


def test_what_is_not_what_the_run_was_trained_on_is_refused(
    run: TrainedRun, tmp_path: Path, images: Path
) -> None:
    folder, output = tmp_path / "images", tmp_path / "masks"
    folder.mkdir()
    output.mkdir()
    cpu = torch.device("cpu")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(folder / "deep.tif")
    segmenter = open_segmenter(run.folder, cpu, any_depth=False)
    (deep,) = files_to_segment(folder)
    with pytest.raises(
        UserError, match=r"deep\.tif: is grey 16 bit, the run was trained on grey 8 bit; conv"
    ):
        segment(segmenter, folder, deep, output)
    assert segment(open_segmenter(run.folder, cpu, any_depth=True), folder, deep, output)
    (output / "deep.png").write_bytes(b"of somebody")
    with pytest.raises(UserError, match="was not made by segment; name another --output"):
        segment(segmenter, folder, deep, output)
    (folder / "notes.txt").write_text("no image")
    with pytest.raises(UserError, match=r"notes\.txt'?: is none of \.png"):
        files_to_segment(folder)


def test_a_run_without_a_network_of_images_is_refused(run: TrainedRun, tmp_path: Path) -> None:
    own = points_config(tmp_path / "task")
    (tmp_path / "config.json").write_text(own.model_dump_json())
    with pytest.raises(UserError, match="is of a task of its own; masks are made by the built-in U-Net"):
        open_segmenter(tmp_path, torch.device("cpu"), any_depth=False)
    copied = Path(shutil.copytree(run.folder, tmp_path / "run"))
    lines = (copied / "run.jsonl").read_text().splitlines(keepends=True)
    (copied / "run.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match="is not complete"):
        open_segmenter(copied, torch.device("cpu"), any_depth=False)


def test_masks_come_into_a_folder_of_their_own(
    run: TrainedRun, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would be images of the next study, or its true masks; nothing is written or removed."""
    data = Path(shutil.copytree(images, tmp_path / "data"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "segment.log").write_text("mine")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for source, output in (
        (data, data), (data, data / "masks"), (data, data / "new"), (data / "images", data / "masks"),
        (data / "images", data / "images" / "new"), (data, mine),
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"--output .*; name"):
            segmented(monkeypatch, run.folder, source, "--output", output)
    assert before == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))


def test_a_mask_is_of_its_truth_as_well(run: TrainedRun, test_images: Path, tmp_path: Path) -> None:
    """And of how the run brings images to its size: else a score would stay that of another truth."""
    output = tmp_path / "masks"
    output.mkdir()
    pair = files_to_segment(test_images)[0]
    segmenter = open_segmenter(run.folder, torch.device("cpu"), any_depth=False)
    assert segment(segmenter, test_images, pair, output)
    data = segmenter.config.data.model_copy(update={"image_height": 48})
    larger = replace(segmenter, config=segmenter.config.model_copy(update={"data": data}))
    assert segment(larger, test_images, pair, output)
    assert segment(segmenter, test_images, pair, output)
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(test_images / "masks" / pair.mask)
    assert segment(segmenter, test_images, pair, output)
    assert not segment(segmenter, test_images, pair, output)
