"""The network of a run over HTTP: the masks of `segment`, whatever clients send and whichever replicas die.

Nothing piles up, no request that was accepted is lost, and operators see what happens.
"""

import asyncio
import csv
import http.client
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from analysis.figures.serving import draw_latencies
from tests.cluster import wait_until
from tests.test_segment import contents_of, pixels
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.base.errors import UserError
from unet_scaling.inference import load, serve
from unet_scaling.inference.masks import files_to_segment
from unet_scaling.inference.replicas import Replicas
from unet_scaling.inference.segment import open_segmenter, segment
from unet_scaling.inference.server import LARGEST_BODY, SHUTDOWN_SECONDS
from unet_scaling.study.config import PROJECT

# Longer than a pass of the small network takes on a busy machine.
PATIENCE_SECONDS = 10
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")


@pytest.fixture(scope="module")
def run(images: Path, trained_run: TrainedRuns) -> TrainedRun:
    return trained_run(plain_config(images, workers=1))


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
    assert sent < 6 * LARGEST_BODY
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
        # Bodies that arrive keep their 30 s, and none lasts until the server cuts all off.
        assert process.wait(timeout=SHUTDOWN_SECONDS - 10) in (0, -signal.SIGTERM)


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


@pytest.mark.slow
def test_a_replica_that_dies_or_hangs_is_replaced_and_no_request_is_lost(
    run: TrainedRun, images: Path, tmp_path: Path
) -> None:
    """Under the load of many clients, one killed and one stopped, and to the byte."""
    segmenter = open_segmenter(run.folder, torch.device("cpu"), any_depth=False)
    pairs, _ = files_to_segment(images / "images")
    made = []
    for pair in pairs:
        segment(segmenter, images / "images", pair, tmp_path)
        made.append((tmp_path / f"{pair.stem}.png").read_bytes())
    contents = contents_of(images)
    hang = ("--timeout", PATIENCE_SECONDS)
    with load.served(run.folder, "--replicas", 2, "--batch", 1, *hang) as (address, process):
        replicas = psutil.Process(process.pid).children()
        cores = [set(each.cpu_affinity()) for each in replicas]
        assert len(cores) == 2
        assert not cores[0] & cores[1] or len(os.sched_getaffinity(0)) < 2
        with ThreadPoolExecutor(8) as clients:
            for lost, fault in zip(replicas, (signal.SIGKILL, signal.SIGSTOP), strict=True):
                begun = [clients.submit(ask, address, content) for content in contents * 4]
                wait_until(partial(some_are_done, begun), "some answers", 30)
                lost.send_signal(fault)
                answers = [each.result() for each in begun]
                assert answers == [(200, mask) for mask in made * 4]
                wait_until(lambda: health(address) == (200, 2), "a replacement", 60)
        assert metrics(address)["unet_scaling_replica_deaths_total"] == 2
        # Whoever is killed while nothing is asked is replaced as well.
        for each in psutil.Process(process.pid).children():
            each.kill()
        wait_until(lambda: health(address) == (503, 0), "no replica", 10)
        assert ask(address, contents[0]) == (200, made[0])
    assert not any(each.is_running() for each in replicas)


def some_are_done(begun: Sequence[Future[tuple[int, bytes]]]) -> bool:
    return sum(future.done() for future in begun) > len(begun) // 16


def health(address: str) -> tuple[int, int]:
    status, said = get(address, "/health")
    return status, json.loads(said)["replicas"]


def get(address: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path, headers=dict(headers or {}))
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


SAMPLE = re.compile(r'([a-z_]+)(?:\{([a-z]+)="([^"\\\n]*)"\})? (\+Inf|[0-9.e+-]+)')


def metrics(address: str, headers: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return the samples of /metrics by name and label, as the text format 0.0.4 of Prometheus has them."""
    status, text = get(address, "/metrics", headers)
    assert status == 200
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    samples: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        name, _, label, value = found.groups()
        family = re.sub("_(bucket|sum|count)$", "", name) if name not in kinds else name
        assert family == list(kinds)[-1], "samples follow the type of their metric"
        key = name if label is None else f"{name} {label}"
        assert key not in samples
        samples[key] = float(value)
    for name in (name for name, kind in kinds.items() if kind == "histogram"):
        buckets = [value for key, value in samples.items() if key.startswith(f"{name}_bucket ")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == samples[f"{name}_bucket +Inf"] == samples[f"{name}_count"]
    return samples


@pytest.mark.slow
def test_operators_see_what_happens_and_clients_without_the_token_nothing(
    run: TrainedRun, images: Path, tmp_path: Path
) -> None:
    log, secret = tmp_path / "log", tmp_path / "token"
    secret.write_text("opensesame\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--host", "0.0.0.0", "--port", port, "--token-file", secret, "--access-log", log, "--batch", 4]
    command = [sys.executable, "-m", "unet_scaling", "serve", run.folder, *words]
    address = f"http://127.0.0.1:{port}"
    token = {"Authorization": "Bearer opensesame"}
    with subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            wait_until(lambda: not is_refused(address), "the server", 60)
            assert json.loads(get(address, "/health")[1]) == {"status": "loading", "replicas": 0}
            wait_until(lambda: health(address) == (200, 1), "a replica", 60)
            for wrong in ({}, {"Authorization": "Bearer opensesam"}, {"Authorization": "Basic opensesame"}):
                assert get(address, "/metrics", wrong)[0] == 401
            assert ask(address, contents_of(images)[0])[0] == 401
            posted = [
                asked_by_curl(address, "-H", f"Authorization: {token['Authorization']}", *words)
                for words in (
                    ["--data-binary", f"@{first_of(images)}"],
                    ["-F", f"image=@{first_of(images)}"],
                    ["-F", "other=1", "-F", f"image=@{first_of(images)};type=image/png"],
                    ["-F", f"picture=@{first_of(images)}"],
                )
            ]
            assert [status for status, _ in posted] == [200, 200, 200, 400]
            assert posted[0][1] == posted[1][1] == posted[2][1]
            assert "no field of this name" in json.loads(posted[3][1])["error"]
            found = metrics(address, token)
            described = json.loads(get(address, "/openapi.json", token)[1])
        finally:
            server.terminate()
        assert server.stderr
        assert "warning: --host 0.0.0.0 serves all who has the token" in server.stderr.read()
    for status, number in ((200, 3), (400, 1), (401, 1)):
        assert found[f"unet_scaling_requests_total {status}"] == number
    assert found["unet_scaling_batch_images_sum"] == found["unet_scaling_batch_images_bucket 1"] == 3
    assert found["unet_scaling_request_seconds_count"] == 3
    assert found["unet_scaling_queue_length"] == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    of_masks = [line for line in lines if (line["method"], line["path"]) == ("POST", "/")]
    assert [(line["status"], line["batch"]) for line in of_masks] == [(401, 0), *[(200, 1)] * 3, (400, 0)]
    assert all(line["client"] == "127.0.0.1" and line["bytes"] and line["ms"] > 0 for line in of_masks)
    assert described["openapi"].startswith("3.")
    assert set(described["paths"]) == {"/", "/health", "/metrics", "/openapi.json"}
    assert {"200", "400", "401", "413", "429"} <= set(described["paths"]["/"]["post"]["responses"])
    assert set(described["paths"]["/"]["post"]["requestBody"]["content"]) >= {"multipart/form-data"}


def first_of(images: Path) -> Path:
    return min((images / "images").iterdir())


def asked_by_curl(address: str, *words: str) -> tuple[int, bytes]:
    """Return status and body of what curl prints, which has to end well."""
    command = ["curl", "--silent", "--show-error", "--max-time", "60", "--write-out", "%{http_code}", *words]
    said = subprocess.run([*command, address], capture_output=True, check=False)
    assert said.returncode == 0, said.stderr
    return int(said.stdout[-3:]), said.stdout[:-3]


@needs_curl
@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [[], ["-H", "Expect: 100-continue"], ["-H", "Expect:"], ["-H", "Transfer-Encoding: chunked"]]
)
def test_a_client_sees_that_its_image_is_too_large(words: list[str], address: str, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(LARGEST_BODY + 2**20)
    for way in (["--data-binary", f"@{large}"], ["-F", f"image=@{large}"]):
        status, said = asked_by_curl(address, *words, *way)
        assert status == 413
        assert "has more than" in json.loads(said)["error"]
    # One that sends all before it reads.
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("POST", "/", large.read_bytes())
    assert connection.getresponse().status == 413


@pytest.mark.parametrize(
    "words",
    [
        ["--token-file", "missing"],
        ["--token-file", "empty"],
        ["--access-log", "."],
        ["--device", "cuda", "--replicas", "1"],
    ],
    ids=" ".join,
)
def test_options_that_cannot_be_kept_are_named(
    words: list[str], run: TrainedRun, tmp_path: Path, told: Callable[..., None]
) -> None:
    (tmp_path / "empty").touch()
    command = [sys.executable, "-m", "unet_scaling", "serve", str(run.folder), "--port", "0", *words]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    told(ended.stderr)


# Speaks as a replica does: each batch takes a moment, is noted, and one of "deadly" is its last.
STAND_IN = """
import os, pickle, sys, time
from pathlib import Path
from unet_scaling.inference.replicas import LENGTH_BYTES, Answered, packed

output = sys.stdout.buffer
output.write(packed({"weights_sha256": "none"}))
output.flush()
while length := sys.stdin.buffer.read(LENGTH_BYTES):
    batch = pickle.loads(sys.stdin.buffer.read(int.from_bytes(length)))
    with Path(sys.argv[1]).open("a") as noted:
        print(len(batch), file=noted)
    time.sleep(0.05)
    if any(body == b"deadly" for _, body in batch):
        os._exit(3)
    output.write(packed([Answered(place, 200, body) for place, (_, body) in enumerate(batch)]))
    output.flush()
"""


def answers_of(
    noted: Path, bodies: list[bytes], largest: int, seconds: float, *, first_alone: bool = False
) -> tuple[list[tuple[int, bytes | str]], list[int]]:
    """Return status and content for each body by one stand-in, and the sizes of its batches."""

    async def asked() -> list[tuple[int, bytes | str]]:
        replicas = Replicas(
            [sys.executable, "-c", STAND_IN, str(noted)], 1, largest, seconds, PATIENCE_SECONDS
        )
        keeping = asyncio.create_task(replicas.keep(0))
        await replicas.all_ready.wait()
        asking = []
        for body in bodies:
            asking.append(asyncio.create_task(replicas.answer("", body)))
            if first_alone and len(asking) == 1:
                await asyncio.sleep(0.02)
        found = await asyncio.gather(*asking)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return [(status, content) for status, content, _ in found]

    found = asyncio.run(asked())
    return found, [int(line) for line in noted.read_text().split()]


@pytest.mark.parametrize(
    ("largest", "seconds", "batches"), [(1, 0.0, [1] * 6), (4, 0.0, [1, 4, 1]), (4, 0.5, [4, 2])]
)
def test_batches_are_full_or_have_waited(
    largest: int, seconds: float, batches: list[int], tmp_path: Path
) -> None:
    bodies = [str(number).encode() for number in range(6)]
    found, made = answers_of(tmp_path / "noted", bodies, largest, seconds, first_alone=not seconds)
    assert made == batches
    assert found == [(200, body) for body in bodies]


def test_what_kills_two_replicas_is_refused_and_its_batch_is_answered(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bodies = [b"one", b"deadly", b"two", b"three"]
    found, made = answers_of(tmp_path / "noted", bodies, 3, 0.5)
    assert [status for status, _ in found] == [200, 500, 200, 200]
    assert "2 replicas ended while they made its mask" in str(found[1][1])
    # Together once, then each alone: the deadly one ends another replica.
    assert made == [3, 1, 1, 1, 1]
    assert capfd.readouterr().err.count("ended with code 3; another one takes its place") == 2


def test_the_interval_of_a_quantile_holds_it_as_often_as_it_says() -> None:
    """Whatever the distribution, here a skewed one whose quantiles are known."""
    random = np.random.default_rng(7)
    for share, number in ((0.5, 400), (0.99, 400), (0.99, 1000)):
        true = -np.log(1 - share)
        found = [load.quantile(np.sort(random.exponential(size=number)), share) for _ in range(2000)]
        held = np.mean([low <= true <= high for _, low, high in found])
        assert 0.945 < held < 0.99
        assert all(low <= value <= high < np.inf for value, low, high in found)
    # Requests that were refused are late without end, and so may be an end of the interval.
    value, low, high = load.quantile(np.array([1.0] * 395 + [np.inf] * 5), 0.99)
    assert (value, low, high) == (np.inf, 1.0, np.inf)
    assert load.quantile(np.ones(50), 0.99) == (1.0, 1.0, np.inf)


@pytest.mark.slow
@pytest.mark.verify
def test_batch_and_wait_are_searched_for_a_goal_and_the_advice_is_held_against_a_fresh_run(
    run: TrainedRun,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = psutil.Process().children()
    # One by one, and the sizes after it that hold no more: fewer servers.
    monkeypatch.setattr(load, "_LARGEST_BATCH", 2)
    monkeypatch.setattr(load, "_WAIT_SHARES", (1 / 400,))
    # Threads that wait for each other take very long where others use the cores.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(load, "SECONDS", 3.0)
    monkeypatch.setattr(load, "_STEP", 3.0)
    # From the rate that is asked for, however busy the machine was before.
    monkeypatch.setattr(load, "_LOWEST_SHARE", 1e3)
    table = load.measure_latency(
        run.folder, images, tmp_path / "out", [], goal_ms=2000, rate=20, requests=400
    )
    said = capsys.readouterr().out
    rows = list(csv.DictReader(table.open()))
    fresh = rows[-1]
    assert [row["is_fresh"] for row in rows] == ["False"] * (len(rows) - 1) + ["True"]
    assert {(row["batch"], row["wait_ms"]) for row in rows} >= {("1", "0"), ("2", "0"), ("2", "5")}
    assert f"99 % of the requests within 2000 ms: --batch {fresh['batch']} --wait {fresh['wait_ms']}" in said
    assert ("a fresh run agrees" in said) != ("a fresh run disagrees" in said)
    for row in rows:
        values = {name: float(value) for name, value in row.items() if name != "is_fresh"}
        assert values["requests"] == 400
        assert 0 <= values["median_low_ms"] <= values["median_ms"] <= values["median_high_ms"]
        assert values["median_ms"] <= values["p99_ms"] <= values["p99_high_ms"]
    for setting in {(row["batch"], row["wait_ms"]) for row in rows[:-1]}:
        of_it = [row for row in rows[:-1] if (row["batch"], row["wait_ms"]) == setting]
        assert [float(row["requests_per_s"]) for row in of_it] == sorted(
            float(row["requests_per_s"]) for row in of_it
        )
        # Up to a rate that it does not hold, and no further.
        within = [
            row["answered"] == "400"
            and float(row["p99_high_ms"]) <= 2000
            and float(row["images_per_s"]) >= 0.9 * float(row["requests_per_s"])
            for row in of_it
        ]
        assert within == [True] * (len(of_it) - 1) + [False]
        assert "--batch {} --wait {} holds".format(*setting) in said
    assert psutil.Process().children() == before
    assert draw_latencies(table).read_text().count("batches of up to 2, wait 5 ms") == 1


@pytest.mark.slow
def test_a_goal_that_no_setting_reaches_is_said(
    run: TrainedRun,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--rate", 1000, "--goal", 0.01, "--requests", 400, "--replicas", 1]
    monkeypatch.setattr(load, "SECONDS", 1.0)
    monkeypatch.setattr(load, "_WAIT_SHARES", ())
    monkeypatch.setattr(load, "_LARGEST_BATCH", 1)
    monkeypatch.setattr(load, "_LOWEST_SHARE", 20)
    places = [run.folder, "--measure", images, "--output", tmp_path / "out"]
    monkeypatch.setattr("sys.argv", ["unet-scaling serve", *map(str, [*places, *words])])
    serve.main()
    said = capsys.readouterr().out
    assert "--batch 1 --wait 0 holds 0.0 requests/s" in said
    assert "99 % of the requests within 0.01 ms: no setting, not even at" in said
    assert len((tmp_path / "out" / "serving.csv").read_text().splitlines()) == 2
    assert (tmp_path / "out" / "serving.svg").read_text().count("batches of up to 1, wait 0 ms") == 1
