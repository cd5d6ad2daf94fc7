"""Masks of a folder by the network of a run: those of its evaluation, whoever makes them, and never twice.

What is refused does not keep the others from their masks.
"""

import csv
import io
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from analysis.tables_of_others.csv_table import load_csv
from slurm.commands import segment as command
from tests.cluster import bring_up
from tests.disks import full, small_disk
from tests.tasks import points_config
from tests.test_cluster_doctor import HOSTS, PMI, SITE
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_RESUME, UserError
from unet_scaling.data.folder import find_pairs
from unet_scaling.data.order import split
from unet_scaling.format.record_lines import Result
from unet_scaling.inference import segment as worker
from unet_scaling.inference.masks import JOBS_FOLDER, files_to_segment, mask_path
from unet_scaling.inference.segment import open_segmenter, segment

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(images: Path, trained_run: TrainedRuns) -> TrainedRun:
    return trained_run(plain_config(images, workers=1))


def segmented(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["unet-scaling segment", *map(str, words)])
    return command.main()


def pixels(content: bytes) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(content)))


def contents_of(images: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((images / "images").iterdir())]


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
    monkeypatch.setattr(command, "LEAST_SECONDS", 0.0)
    outputs = tmp_path / "one", tmp_path / "two"
    for workers, output in enumerate(outputs, start=1):
        options = ("--output", output, "--workers", workers, "--speeds", tmp_path / "speeds.csv")
        assert segmented(monkeypatch, run.folder, test_images, *options) == 0
        assert "9 masks, 9 new masks in" in capsys.readouterr().out
    speeds = load_csv(str(tmp_path / "speeds.csv"), {}).runs
    assert speeds[speeds["images_per_second"] > 0]["workers"].tolist() == [1, 2]
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


@pytest.mark.slow
def test_workers_take_the_cores_that_are_asked_for(
    run: TrainedRun, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def launched(_program: object, _workers: int, log: Path, cores: int, _look: object) -> int:
        log.touch()
        taken.append(cores)
        return 0

    monkeypatch.setattr(command, "launch", launched)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    words = (run.folder, images, "--output", tmp_path / "masks", "--workers", 2)
    for options in ((), ("--cores", 1), ("--cores", 4)):
        with pytest.raises(UserError, match="the same command goes on"):
            segmented(monkeypatch, *words, *options)
    assert taken == [4, 1, 4]
    with pytest.raises(UserError, match="--cores 5: allowed with --workers 2: at most 4, "):
        segmented(monkeypatch, *words, "--cores", 5)
    site = tmp_path / "site.toml"
    site.write_text(SITE.format(arguments=PMI))
    with pytest.raises(UserError, match="leave it out; cores_per_worker of"):
        segmented(monkeypatch, *words, "--cores", 2, "--cluster", site)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("free_bytes", [pytest.param(0, marks=pytest.mark.verify), 20_000])
def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(
    free_bytes: int,
    run: TrainedRun,
    test_images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Full before the first mask, or while they are made."""
    (tmp_path / "disk").mkdir()
    words = (run.folder, test_images, "--output", tmp_path / "disk" / "masks")
    with small_disk(tmp_path / "disk", mebibytes=4) as disk, full(disk):
        filling = disk / "filling"
        os.truncate(filling, filling.stat().st_size - free_bytes)
        with pytest.raises(UserError, match="cannot be written: No space left on device") as failed:
            segmented(monkeypatch, *words)
        assert failed.value.exit_code == EXIT_RESUME
        assert "\n" not in str(failed.value)
        assert str(failed.value).endswith("; make room, or name another --output; the same command goes on")
        filling.write_bytes(b"")
        assert segmented(monkeypatch, *words) == 0
    assert "9 masks" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.verify
def test_a_job_of_slurm_makes_the_same_masks_and_says_what_it_cannot_read(
    run: TrainedRun,
    test_images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here, there, table = tmp_path / "here", tmp_path / "there", tmp_path / "speeds.csv"
    assert segmented(monkeypatch, run.folder, test_images, "--output", here) == 0
    site = tmp_path / "site.toml"
    site.write_text(SITE.format(arguments=PMI))
    monkeypatch.setattr(command, "LEAST_SECONDS", 0.0)
    with bring_up("segment", *HOSTS) as cluster:
        for name in set(os.environ) - set(cluster.environment):
            monkeypatch.delenv(name)
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        options = ("--cluster", site, "--workers", 3, "--speeds", table)
        assert segmented(monkeypatch, run.folder, test_images, "--output", there, *options) == 0
        assert f"{table}: " in capsys.readouterr().out
        assert [row["workers"] for row in csv.DictReader(table.open())] == ["3"]
        assert all((there / path.name).read_bytes() == path.read_bytes() for path in here.iterdir())
        deep = tmp_path / "deep"
        deep.mkdir()
        Image.fromarray(np.zeros((8, 8), np.uint16)).save(deep / "deep.tif")
        with pytest.raises(UserError, match="1 file refused") as failed:
            segmented(monkeypatch, run.folder, deep, "--output", tmp_path / "no", *options)
        assert failed.value.exit_code == EXIT_BAD_DATA
        assert "deep.tif: is grey 16 bit, the run was trained on" in capsys.readouterr().err
        token = "segment.running"
        (there / JOBS_FOLDER / "running").mkdir(parents=True)
        cluster.submit("sleep 60", tmp_path, f"--job-name={token}")
        with pytest.raises(UserError, match=f"job {token} of an earlier call is (pending|running); wait"):
            segmented(monkeypatch, run.folder, test_images, "--output", there, *options)
        cluster.run("scancel", f"--name={token}")


def test_images_of_any_size_have_masks_of_their_own(run: TrainedRun, tmp_path: Path) -> None:
    """Of foreground and background alone; another network makes them anew."""
    sizes = [(32, 32), (7, 90), (65, 33), (1, 300), (300, 1), (1, 1)]
    folder, output = tmp_path / "images", tmp_path / "masks"
    folder.mkdir()
    output.mkdir()
    for number, (height, width) in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    segmenter = open_segmenter(run.folder, torch.device("cpu"), any_depth=False)
    pairs, _ = files_to_segment(folder)
    assert all(segment(segmenter, folder, pair, output) for pair in pairs)
    assert not any(segment(segmenter, folder, pair, output) for pair in pairs)
    for pair, size in zip(pairs, sizes, strict=True):
        mask = np.asarray(Image.open(mask_path(output, pair)))
        assert mask.shape == size
        assert set(np.unique(mask)) <= {0, 255}
    of_another = replace(segmenter, weights_sha256="0" * 64)
    assert segment(of_another, folder, pairs[0], output)
    assert segment(replace(segmenter, scales=None), folder, pairs[0], output)


@pytest.mark.slow
def test_a_refused_file_does_not_end_its_folder(
    run: TrainedRun,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is named, with no earlier mask in its place; the bytes are equal at 1 and 2 workers."""
    folder, outputs = tmp_path / "images", [tmp_path / "1", tmp_path / "2"]
    shutil.copytree(images / "images", folder)
    large = np.tile(pixels(contents_of(images)[0]), (9, 31))
    Image.fromarray(large).save(folder / "large.png")
    options = ("--output", outputs[0])
    assert segmented(monkeypatch, run.folder, folder, *options) == 0
    whole = (folder / "000.png").read_bytes()
    (folder / "000.png").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(folder / "deep.tif")
    (folder / "notes.txt").write_text("no image")
    capsys.readouterr()
    for workers, output in enumerate(outputs, start=1):
        with pytest.raises(UserError, match="3 files refused, 47 masks made") as refused:
            segmented(monkeypatch, run.folder, folder, "--output", output, "--workers", workers)
        assert refused.value.exit_code == EXIT_BAD_DATA
        said = sorted(capsys.readouterr().err.splitlines())
        assert all(line.startswith(f"refused: {folder}") for line in said)
        for cure, line in zip(("convert it", "copy or export it again", "--any-depth"), said, strict=True):
            assert cure in line
    made = [{path.name: path.read_bytes() for path in output.glob("*.png")} for output in outputs]
    assert made[0] == made[1]
    assert "000.png" not in made[0]
    rows = [*csv.DictReader((outputs[1] / "segments.csv").open())]
    assert [row["image"] for row in rows if not row["mask"]] == ["000.png", "deep.tif"]
    assert len(rows) == len(made[0]) + 2
    (size,) = ((row["width"], row["height"]) for row in rows if row["image"] == "large.png")
    assert size == ("992", "288")


def test_what_is_not_what_the_run_was_trained_on_is_refused(
    run: TrainedRun, tmp_path: Path, images: Path
) -> None:
    folder, output = tmp_path / "images", tmp_path / "masks"
    folder.mkdir()
    output.mkdir()
    cpu = torch.device("cpu")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(folder / "deep.tif")
    segmenter = open_segmenter(run.folder, cpu, any_depth=False)
    (deep,), _ = files_to_segment(folder)
    with pytest.raises(
        UserError, match=r"deep\.tif: is grey 16 bit, the run was trained on grey 8 bit; conv"
    ):
        segment(segmenter, folder, deep, output)
    assert segment(open_segmenter(run.folder, cpu, any_depth=True), folder, deep, output)
    (output / "deep.png").write_bytes(b"of somebody")
    with pytest.raises(UserError, match="was not made by segment; name another --output"):
        segment(segmenter, folder, deep, output)
    (folder / "deep.tif").rename(folder / "notes.txt")
    with pytest.raises(UserError, match=r"notes\.txt'?: is none of \.png"):
        files_to_segment(folder)


def test_a_run_without_a_network_of_images_is_refused(run: TrainedRun, tmp_path: Path) -> None:
    own = points_config(tmp_path / "task")
    (tmp_path / "config.json").write_text(own.model_dump_json())
    with pytest.raises(UserError, match="is of a task of its own; masks are made by the built-in U-Net"):
        open_segmenter(tmp_path, torch.device("cpu"), any_depth=False)
    copied = Path(shutil.copytree(run.folder, tmp_path / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "read_manifest", not_there)
        with pytest.raises(UserError, match="gone, or say --any-depth: what"):
            open_segmenter(copied, CPU, any_depth=False)
        assert open_segmenter(copied, CPU, any_depth=True).scales is not None
    lines = (copied / "run.jsonl").read_text().splitlines(keepends=True)
    (copied / "run.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match="is not complete"):
        open_segmenter(copied, torch.device("cpu"), any_depth=False)


def not_there(path: Path) -> None:
    raise UserError(f"{path} is gone")


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
    for speeds in (mine, mine / "segment.log", tmp_path / "no" / "speeds.csv"):
        with pytest.raises(UserError, match="--speeds"):
            segmented(monkeypatch, run.folder, data, "--output", tmp_path / "out", "--speeds", speeds)
    assert before == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))


def test_a_mask_is_of_its_truth_as_well(run: TrainedRun, test_images: Path, tmp_path: Path) -> None:
    """And of how the run brings images to its size: else a score would stay that of another truth."""
    output = tmp_path / "masks"
    output.mkdir()
    pair = files_to_segment(test_images)[0][0]
    segmenter = open_segmenter(run.folder, torch.device("cpu"), any_depth=False)
    assert segment(segmenter, test_images, pair, output)
    data = segmenter.config.data.model_copy(update={"image_height": 48})
    larger = replace(segmenter, config=segmenter.config.model_copy(update={"data": data}))
    assert segment(larger, test_images, pair, output)
    assert segment(segmenter, test_images, pair, output)
    Image.fromarray(np.zeros((32, 32), np.uint8)).save(test_images / "masks" / pair.mask)
    assert segment(segmenter, test_images, pair, output)
    assert not segment(segmenter, test_images, pair, output)
