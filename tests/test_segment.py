"""Masks of a folder by the network of a run: those of its evaluation, whoever makes them, and never twice.

What is refused does not keep the others from their masks. The server gives the same masks, whatever clients
send, and nothing piles up.
"""

import asyncio
import csv
import http.client
import io
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch
from PIL import Image

from analysis.figures.serving import draw_latencies
from analysis.tables_of_others.csv_table import load_csv
from slurm.commands import segment as command
from tests.cluster import bring_up, wait_until
from tests.disks import full, small_disk
from tests.tasks import points_config
from tests.test_cluster_doctor import HOSTS, PMI, SITE
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_RESUME, UserError
from unet_scaling.data.folder import find_pairs
from unet_scaling.data.order import split
from unet_scaling.data.pixels import Box
from unet_scaling.format.record_lines import Result
from unet_scaling.inference import load
from unet_scaling.inference import segment as worker
from unet_scaling.inference.masks import JOBS_FOLDER, files_to_segment, mask_path
from unet_scaling.inference.segment import FittedImage, Region, Segmenter, open_segmenter, segment
from unet_scaling.inference.server import LARGEST_BODY, SHUTDOWN_SECONDS, Batcher

CPU = torch.device("cpu")


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


@pytest.fixture(scope="module")
def address(run: TrainedRun) -> Iterator[str]:
    with load.served(run.folder, "--batch", 4, "--queue", 8) as (found, _):
        yield found


def ask(address: str, body: bytes | None, method: str = "POST") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request(method, "/", body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def facts(address: str) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(ask(address, None, "GET")[1]))


def sent_by_hand(address: str, *parts: bytes) -> socket.socket:
    place = urlsplit(address)
    connection = socket.create_connection((place.hostname, place.port or 0), timeout=60)
    for part in parts:
        connection.sendall(part)
    return connection


def head(length: int) -> bytes:
    return f"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n".encode()


def pixels(content: bytes) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(content)))


def contents_of(images: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((images / "images").iterdir())]


@pytest.mark.slow
def test_the_masks_are_those_of_segment_to_the_byte(
    run: TrainedRun, images: Path, address: str, tmp_path: Path
) -> None:
    """Of many clients at once, whose images share batches, and of one alone."""
    segmenter = open_segmenter(run.folder, torch.device("cpu"), any_depth=False)
    folder = images / "images"
    pairs, _ = files_to_segment(folder)
    for pair in pairs:
        assert segment(segmenter, folder, pair, tmp_path)
    before = facts(address)
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda content: ask(address, content), contents_of(images)))
    assert [status for status, _ in answers] == [200] * len(pairs)
    for pair, content, (_, mask) in zip(pairs, contents_of(images), answers, strict=True):
        made = (tmp_path / f"{pair.stem}.png").read_bytes()
        # In a batch, by rounding, a pixel at the border may differ.
        assert np.mean(pixels(mask) != pixels(made)) < 1e-3
        if pair in pairs[:3]:
            assert ask(address, content)[1] == made
    large = np.tile(pixels(contents_of(images)[0]), (5, 7))
    packed = io.BytesIO()
    Image.fromarray(large).save(packed, "PNG")
    image = segmenter.fit(Path("large"), large[:, :, None])
    expected = image.at_own_size(segmenter.regions([image])[0][0])
    with ThreadPoolExecutor(4) as clients:
        for status, mask in clients.map(lambda content: ask(address, content), [packed.getvalue()] * 4):
            assert status == 200
            assert np.array_equal(pixels(mask), expected)
    after = facts(address)
    made, batches = (after[name] - before[name] for name in ("images", "batches"))
    assert made == len(pairs) + 7 > batches >= len(pairs) / 4 + 7
    assert after["resize"] is False
    assert after["weights_sha256"] == segmenter.weights_sha256


@pytest.mark.slow
def test_what_is_no_image_of_the_run_gets_one_sentence(address: str, images: Path) -> None:
    """And the server goes on; a body that is too large is not kept, one that is cut off answers nobody."""
    deep = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(deep, "TIFF")
    whole = contents_of(images)[0]
    for body, said in (
        (b"", "is no PNG, JPEG or TIFF"),
        (b"import os", "is no PNG, JPEG or TIFF"),
        (whole[: len(whole) // 2], "cut off or damaged"),
        (deep.getvalue(), "is grey 16 bit, the run was trained on grey 8 bit"),
    ):
        status, answer = ask(address, body)
        assert status == 400
        error = json.loads(answer)["error"]
        assert said in error
        assert "\n" not in error
    assert ask(address, None, "DELETE")[0] == 405
    with sent_by_hand(address, head(2**30)) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    # One that does not say its length is cut off at the limit.
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    chunked = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
    with sent_by_hand(address, chunked) as connection:
        sent = 0
        with suppress(ConnectionError):
            while sent < 2**30:
                connection.sendall(chunk)
                sent += 2**20
    assert sent < 2 * LARGEST_BODY
    sent_by_hand(address, head(len(whole)), whole[:20]).close()
    assert ask(address, whole)[0] == 200


@pytest.mark.slow
def test_a_flood_is_refused_and_what_was_accepted_is_answered_after_sigterm(
    run: TrainedRun, images: Path
) -> None:
    whole = contents_of(images)[0]
    with load.served(run.folder, "--queue", 1) as (address, process):
        accepted = sent_by_hand(address, head(len(whole)), whole[:20])
        wait_until(lambda: ask(address, whole)[0] == 429, "a full queue", 30)
        os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: is_refused(address), "the end of new requests", 30)
        accepted.sendall(whole[20:])
        answer = http.client.HTTPResponse(accepted)
        answer.begin()
        assert answer.status == 200
        assert Image.open(io.BytesIO(answer.read())).format == "PNG"
        assert process.wait() in (0, -signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        "",
        "GET / HT",
        pytest.param(head(1000).decode(), marks=pytest.mark.verify),
        pytest.param(head(1000).decode() + "half an image", marks=pytest.mark.verify),
    ],
)
def test_slow_clients_keep_nobody_from_an_answer_nor_the_server_from_its_end(
    sent: str, run: TrainedRun, images: Path
) -> None:
    """300 of them, where a process may have 256 open files."""
    whole = contents_of(images)[0]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        server = load.served(run.folder, "--queue", 16)
        address, process = server.__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 512), limits[1]))
    with ExitStack() as stack:
        stack.push(server.__exit__)
        assert ask(address, whole)[0] == 200
        slow = [stack.enter_context(sent_by_hand(address, sent.encode())) for _ in range(300)]
        assert len(slow) == 300
        # The server may need a moment for all of them; whose body arrives slowly may take one second.
        wait_until(lambda: ask(address, whole)[0] == 200, "an answer", 5)
        begin = time.monotonic()
        assert ask(address, whole)[0] == 200
        assert time.monotonic() - begin < 5
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=SHUTDOWN_SECONDS / 2) in (0, -signal.SIGTERM)


def is_refused(address: str) -> bool:
    try:
        sent_by_hand(address).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_run_or_port_that_cannot_be_served_is_named(
    run: TrainedRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "unet_scaling", "serve", str(run.folder), "--port", str(port)]
        assert subprocess.run(command, check=False).returncode == 2
    said = capfd.readouterr().err
    assert said.startswith(f"error: --host 127.0.0.1 --port {port}: Address already in use")
    assert "; name another --port" in said
    with (
        pytest.raises(UserError, match="is no run"),
        load.served(tmp_path),
    ):
        pass


class Network:
    """In place of a network: each batch takes a moment; a batch of a poisoned image fails."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def regions(self, images: list[FittedImage]) -> list[Region]:
        self.batches.append(len(images))
        time.sleep(0.05)
        if any(image is POISONED for image in images):
            raise UserError("poisoned")
        return [(np.full((1, 1), id(image) % 256, np.uint8), []) for image in images]


POISONED = FittedImage(Path("poisoned"), (np.zeros(0, np.uint8),) * 2, Box(0, 0, 0, 0), 1, 1)


def image() -> FittedImage:
    return replace(POISONED, path=Path("image"))


@pytest.mark.parametrize(
    ("largest", "seconds", "batches"), [(1, 0.0, [1] * 6), (4, 0.0, [1, 4, 1]), (4, 0.5, [4, 2])]
)
def test_batches_are_full_or_have_waited(largest: int, seconds: float, batches: list[int]) -> None:
    network = Network()

    async def asked() -> list[Region | BaseException]:
        batcher = Batcher(cast(Segmenter, network), largest, seconds)
        running = asyncio.create_task(batcher.run())
        if not seconds:
            first = asyncio.create_task(batcher.region(images[0]))
            await asyncio.sleep(0.02)
            others = [asyncio.create_task(batcher.region(each)) for each in images[1:]]
        else:
            first, *others = (asyncio.create_task(batcher.region(each)) for each in images)
        found = await asyncio.gather(first, *others, return_exceptions=True)
        gone, beside = (asyncio.create_task(batcher.region(image)) for image in images[:2])
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(UserError, match="poisoned"):
            await batcher.region(POISONED)
        await beside
        running.cancel()
        return found

    images = [image() for _ in range(6)]
    # In a thread of its own: where the browser of test_pages.py is open, this one's loop runs already.
    found = ThreadPoolExecutor(1).submit(asyncio.run, asked()).result()
    assert network.batches[: len(batches)] == batches
    assert [int(mask[0][0, 0]) for mask in cast(list[Region], found)] == [id(each) % 256 for each in images]


def test_an_image_of_another_size_passes_alone_and_in_its_turn() -> None:
    network = Network()
    kinds = [False, True, True, False, False]

    async def asked() -> None:
        batcher = Batcher(cast(Segmenter, network), 4, 0.0)
        waiting = [replace(image(), is_alone=kind) for kind in kinds]
        answers = [asyncio.create_task(batcher.region(each)) for each in waiting]
        await asyncio.sleep(0)
        running = asyncio.create_task(batcher.run())
        await asyncio.gather(*answers)
        running.cancel()

    ThreadPoolExecutor(1).submit(asyncio.run, asked()).result()
    assert network.batches == [1, 1, 1, 2]


@pytest.mark.slow
@pytest.mark.verify
def test_measured_latencies_are_written_and_answer_a_goal(
    run: TrainedRun,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = psutil.Process().children()
    monkeypatch.setattr(load, "SERVER_SETTINGS", ((2, 5),))
    # So few that even beside other work the server holds them all.
    monkeypatch.setattr(load, "SHARES", (0.05,))
    table = load.measure_latency(run.folder, images, tmp_path / "out", 1e6, seconds=1.0)
    said = capsys.readouterr().out
    assert "99 % of the requests within 1e+06 ms: --batch 2 --wait 5, up to" in said
    header, row = table.read_text().splitlines()
    values = dict(zip(header.split(","), map(float, row.split(",")), strict=True))
    assert values["answered"] == values["requests"] > 1
    assert 0 < values["median_ms"] <= values["p99_ms"]
    assert psutil.Process().children() == before
    assert draw_latencies(table).read_text().count("batches of up to 2, wait 5 ms") == 1
