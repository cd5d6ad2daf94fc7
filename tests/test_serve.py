"""The server of a run's network: the masks of `segment`, whatever clients send, and nothing that piles up."""

import asyncio
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch
from PIL import Image

from tests.cluster import wait_until
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.inference import load
from unet_scaling.inference.masks import files_to_segment
from unet_scaling.inference.segment import FittedImage, Region, Segmenter, open_segmenter, segment
from unet_scaling.inference.server import LARGEST_BODY, Batcher
from unet_scaling.study.errors import UserError


@pytest.fixture(scope="module")
def run(images: Path, trained_run: TrainedRuns) -> TrainedRun:
    return trained_run(plain_config(images, workers=1))


@contextmanager
def serving(run: Path, *options: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    words = [str(run), "--port", "0", *map(str, options)]
    command = [sys.executable, "-m", "unet_scaling", "serve", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            said = process.stdout.readline()
            yield next(word.rstrip(":") for word in said.split() if "http://" in word), process
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def address(run: TrainedRun) -> Iterator[str]:
    with serving(run.folder, "--batch", 4, "--queue", 8) as (found, _):
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
    pairs = files_to_segment(folder)
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
    after = facts(address)
    made, batches = (after[name] - before[name] for name in ("images", "batches"))
    assert made == len(pairs) + 3 > batches >= len(pairs) / 4 + 3
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
    with serving(run.folder, "--queue", 1) as (address, process):
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
        pytest.raises(UserError, match=r"config\.json"),
        load.served(tmp_path, 1, 0, any_depth=False),
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


POISONED = FittedImage(Path("poisoned"), (np.zeros(0, np.uint8),) * 2, (0, 0, 0, 0), 1, 1)


def image() -> FittedImage:
    return FittedImage(Path("image"), (np.zeros(0, np.uint8),) * 2, (0, 0, 0, 0), 1, 1)


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
        beside = asyncio.create_task(batcher.region(images[0]))
        with pytest.raises(UserError, match="poisoned"):
            await batcher.region(POISONED)
        await beside
        running.cancel()
        return found

    images = [image() for _ in range(6)]
    found = asyncio.run(asked())
    assert network.batches[: len(batches)] == batches
    assert [int(mask[0][0, 0]) for mask in cast(list[Region], found)] == [id(each) % 256 for each in images]


@pytest.mark.slow
def test_measured_latencies_are_written_and_answer_a_goal(
    run: TrainedRun,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = psutil.Process().children()
    monkeypatch.setattr(load, "SERVER_SETTINGS", ((2, 5),))
    monkeypatch.setattr(load, "SHARES", (0.3,))
    assert load.measure_latency(run.folder, images, tmp_path / "out", 1e6, any_depth=False, seconds=1.0) == 0
    said = capsys.readouterr().out
    assert "99 % of the requests within 1e+06 ms: --batch 2 --wait 5, up to" in said
    header, row = (tmp_path / "out" / "serving.csv").read_text().splitlines()
    values = dict(zip(header.split(","), map(float, row.split(",")), strict=True))
    assert values["answered"] == values["requests"] > 1
    assert 0 < values["median_ms"] <= values["p99_ms"]
    assert psutil.Process().children() == before
