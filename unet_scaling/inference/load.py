"""`unet-scaling serve --measure`: latency and throughput of a server under requests at random moments.

Requests arrive as a Poisson process, and a latency counts from the moment at which the request was to be
sent: a server that falls behind is seen to. Each setting and rate is measured once; repeat it before you rely
on it.
"""

import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.base.files import READABLE, write_atomically
from unet_scaling.data.pixels import read_bytes
from unet_scaling.inference.masks import files_to_segment, image_path, or_resumable, require_own_folder

# Largest batch, and milliseconds that a request waits for others.
SERVER_SETTINGS = ((1, 0), (4, 0), (4, 20), (16, 0), (16, 50))
# The load is this share of the images per second that batches of 1 give to clients that never wait.
SHARES = (0.25, 0.5, 0.75, 1.0)
SECONDS = 10.0
# So many ask at a time: more than the server holds, so that it refuses where it falls far behind.
CLIENTS = 256
_IMAGES = 32
_OK = 200
_TABLE = "serving.csv"


@dataclass(frozen=True)
class Load:
    """What one setting of the server gave at one rate; latencies in ms."""

    batch: int
    wait_ms: int
    requests_per_s: float
    requests: int
    answered: int
    images_per_s: float
    median_ms: float
    p99_ms: float


def measure_latency(
    run: Path, images: Path, output: Path, goal_ms: float | None, *options: str, seconds: float = SECONDS
) -> Path:
    """Measure all settings at all rates, and name the setting for a goal; return the table, which grows.

    `options` are those of every server, as `unet-scaling serve` takes them.
    """
    pairs, _ = files_to_segment(images)
    contents = [read_bytes(image_path(images, pair)) for pair in pairs[:_IMAGES]]
    require_own_folder(output, images, _TABLE)
    with or_resumable(output):
        output.mkdir(parents=True, exist_ok=True)
    with served(run, "--batch", 1, *options) as (address, _):
        capacity = saturated(address, contents, seconds)
    print(f"batches of 1, clients that never wait: {capacity:.1f} images/s; rates are shares of it")
    print("batch  wait ms  requests/s  answered  images/s  median ms  99th percentile ms")
    loads: list[Load] = []
    for batch, wait_ms in SERVER_SETTINGS:
        with served(run, "--batch", batch, "--wait", wait_ms, *options) as (address, _):
            for share in SHARES:
                loads.append(poisson(address, contents, batch, wait_ms, share * capacity, seconds))
                print(_row(loads[-1]), flush=True)
                rows = [[column.name for column in fields(Load)], *map(astuple, loads)]
                table = "".join(",".join(map(str, row)) + "\n" for row in rows)
                write_atomically(output / _TABLE, table, READABLE)
    if goal_ms is not None:
        print(_answer(loads, goal_ms))
    return output / _TABLE


@contextmanager
def served(run: Path, *options: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server on a free port, as a user would; yield its address and process, and end it afterwards.

    Raises UserError, with the server's words and exit code, where it does not start.
    """
    words = [str(run), "--port", "0", *map(str, options)]
    command = [sys.executable, "-m", "unet_scaling", "serve", *words]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        assert server.stdout
        try:
            said = server.stdout.readline()
            if not said:
                code = server.wait()
                log.seek(0)
                raise UserError(log.read().strip().removeprefix("error: "), code)
            yield next(word.rstrip(":") for word in said.split() if word.startswith("http://")), server
        finally:
            server.terminate()
            server.wait()


def post(address: str, content: bytes) -> tuple[int, bytes]:
    """Return status and body of the answer to an image; status 0 where there was none."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        connection.request("POST", "/", content)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def saturated(address: str, contents: Sequence[bytes], seconds: float) -> float:
    """Return the images per second that a few clients get who send the next as soon as one is answered.

    Raises UserError (65) where an image has no mask.
    """
    # The first requests allocate memory.
    for content in contents[:3]:
        status, said = post(address, content)
        if status != _OK:
            raise UserError(f"an image was answered with {status}: {said.decode()}", EXIT_BAD_DATA)
    begin = time.perf_counter()

    def ask(first: int) -> int:
        answered = 0
        while time.perf_counter() < begin + seconds:
            answered += post(address, contents[(first + answered) % len(contents)])[0] == _OK
        return answered

    with ThreadPoolExecutor(4) as clients:
        answered = sum(clients.map(ask, range(4)))
    return answered / (time.perf_counter() - begin)


def poisson(
    address: str, contents: Sequence[bytes], batch: int, wait_ms: int, rate: float, seconds: float
) -> Load:
    """Send requests at random moments, `rate` a second, and return what came back."""
    moments = np.cumsum(np.random.default_rng(0).exponential(1 / rate, max(2, round(rate * seconds))))
    post(address, contents[0])
    begin = time.perf_counter()

    def ask(number: int, moment: float) -> float:
        status, _ = post(address, contents[number % len(contents)])
        return time.perf_counter() - begin - moment if status == _OK else np.nan

    with ThreadPoolExecutor(CLIENTS) as clients:
        asked = []
        for number, moment in enumerate(moments):
            time.sleep(max(0.0, begin + moment - time.perf_counter()))
            asked.append(clients.submit(ask, number, float(moment)))
        latencies = np.array([each.result() for each in asked]) * 1e3
    spent = time.perf_counter() - begin
    answered = latencies[np.isfinite(latencies)]
    median, high = map(float, np.quantile(answered, [0.5, 0.99])) if answered.size else (np.nan, np.nan)
    return Load(batch, wait_ms, rate, len(asked), answered.size, answered.size / spent, median, high)


def _row(load: Load) -> str:
    share = load.answered / load.requests
    return (
        f"{load.batch:5}  {load.wait_ms:7}  {load.requests_per_s:10.1f}  {share:8.0%}  "
        f"{load.images_per_s:8.1f}  {load.median_ms:9.1f}  {load.p99_ms:18.1f}"
    )


def _answer(loads: Sequence[Load], goal_ms: float) -> str:
    """Return the setting that keeps 99 % within the goal up to the highest rate, and at all lower ones."""
    best: Load | None = None
    for setting in SERVER_SETTINGS:
        for load in (each for each in loads if (each.batch, each.wait_ms) == setting):
            if load.answered < load.requests or load.p99_ms > goal_ms:
                break
            if best is None or (load.requests_per_s, -load.p99_ms) > (best.requests_per_s, -best.p99_ms):
                best = load
    if best is None:
        return f"no setting answers 99 % of the requests within {goal_ms:g} ms at the lowest of these rates"
    return (
        f"99 % of the requests within {goal_ms:g} ms: --batch {best.batch} --wait {best.wait_ms}, "
        f"up to {best.requests_per_s:.1f} requests/s ({best.p99_ms:.0f} ms)"
    )
