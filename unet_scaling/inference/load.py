"""`unet-scaling serve --measure`: latency and throughput of a server under requests at random moments.

Requests arrive as a Poisson process, whether or not earlier ones were answered, and a latency counts from the
moment at which the request was to be sent: a server that falls behind is seen to.
"""

import csv
import http.client
import io
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from unet_scaling.data.folder import IMAGES_FOLDER
from unet_scaling.data.pixels import read_bytes
from unet_scaling.inference.masks import files_to_segment
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError
from unet_scaling.study.files import READABLE, write_atomically

# Largest batch, and milliseconds that a request waits for others.
SERVER_SETTINGS = ((1, 0), (4, 0), (4, 20), (16, 0), (16, 50))
# Of the images per second that a server of batches of 1 gives to clients that never wait.
SHARES = (0.25, 0.5, 0.75, 1.0)
SECONDS = 10.0
CLIENTS = 64
_IMAGES = 32
_OK = 200
_TABLE = "serving.csv"


@dataclass(frozen=True)
class Load:
    """What one setting of the server gave at one rate; latencies in ms, with 95 % intervals."""

    batch: int
    wait_ms: int
    requests_per_s: float
    requests: int
    answered: int
    images_per_s: float
    median_ms: float
    p99_ms: float
    p99_low_ms: float
    p99_high_ms: float


def measure_latency(
    run: Path, images: Path, output: Path, goal_ms: float | None, seconds: float = SECONDS
) -> int:
    """Measure all settings at all rates; write the table, and name the setting for a goal."""
    contents = [read_bytes(path) for path in _paths(images)[:_IMAGES]]
    output.mkdir(parents=True, exist_ok=True)
    with served(run, *SERVER_SETTINGS[0]) as address:
        capacity = saturated(address, contents, seconds)
    print(f"batches of 1, clients that never wait: {capacity:.1f} images/s; rates are shares of it")
    print("batch  wait ms  requests/s  answered  images/s  median ms  99th percentile ms [95 %]")
    loads = []
    for batch, wait_ms in SERVER_SETTINGS:
        with served(run, batch, wait_ms) as address:
            for share in SHARES:
                loads.append(poisson(address, contents, batch, wait_ms, share * capacity, seconds))
                print(_row(loads[-1]), flush=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in fields(Load)])
    writer.writerows(map(astuple, loads))
    write_atomically(output / _TABLE, text.getvalue(), READABLE)
    if goal_ms is not None:
        print(_answer(loads, goal_ms))
    print(output / _TABLE)
    return EXIT_OK


def _paths(images: Path) -> list[Path]:
    pairs = files_to_segment(images)
    return [(images / IMAGES_FOLDER if pair.mask else images) / pair.image for pair in pairs]


@contextmanager
def served(run: Path, batch: int, wait_ms: int) -> Iterator[str]:
    """Start a server on a free port, as a user would, and yield its address; end it afterwards."""
    options = ["--port", "0", "--batch", str(batch), "--wait", str(wait_ms)]
    command = [sys.executable, "-m", "unet_scaling", "serve", str(run), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stderr
        try:
            said = server.stdout.readline()
            if not said:
                error = server.stderr.read().strip().removeprefix("error: ")
                raise UserError(error or f"the server of {run} did not start", EXIT_BAD_DATA)
            yield next(word.rstrip(":") for word in said.split() if word.startswith("http://"))
        finally:
            server.terminate()
            server.wait()


class Client(threading.local):
    """A connection of each thread to one address."""

    def __init__(self, address: str) -> None:
        place = urlsplit(address)
        self.connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)

    def post(self, content: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer; status 0 where the server closed the connection."""
        try:
            self.connection.request("POST", "/", content)
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return 0, b""


def saturated(address: str, contents: Sequence[bytes], seconds: float) -> float:
    """Return the images per second that a few clients get who send the next as soon as one is answered."""
    client = Client(address)
    # The first requests allocate memory.
    for content in contents[:3]:
        client.post(content)
    end = time.perf_counter() + seconds

    def ask(first: int) -> int:
        answered = 0
        while time.perf_counter() < end:
            answered += client.post(contents[(first + answered) % len(contents)])[0] == _OK
        return answered

    with ThreadPoolExecutor(4) as clients:
        return sum(clients.map(ask, range(4))) / seconds


def poisson(
    address: str, contents: Sequence[bytes], batch: int, wait_ms: int, rate: float, seconds: float
) -> Load:
    """Send requests at random moments, `rate` a second, and return what came back."""
    generator = np.random.default_rng(0)
    moments = np.cumsum(generator.exponential(1 / rate, max(2, round(rate * seconds))))
    client = Client(address)
    client.post(contents[0])
    begin = time.perf_counter()

    def ask(number: int, moment: float) -> float:
        status, _ = client.post(contents[number % len(contents)])
        return time.perf_counter() - begin - moment if status == _OK else np.nan

    with ThreadPoolExecutor(CLIENTS) as clients:
        asked = []
        for number, moment in enumerate(moments):
            time.sleep(max(0.0, begin + moment - time.perf_counter()))
            asked.append(clients.submit(ask, number, float(moment)))
        latencies = np.array([each.result() for each in asked]) * 1e3
    spent = time.perf_counter() - begin
    answered = latencies[np.isfinite(latencies)]
    median, high = np.quantile(answered, [0.5, 0.99]) if answered.size else (np.nan, np.nan)
    interval = (np.nan, np.nan)
    if answered.size:
        interval = stats.quantile_test(answered, p=0.99).confidence_interval(0.95)
    low, top = map(float, interval)
    speed = answered.size / spent
    return Load(batch, wait_ms, rate, len(asked), answered.size, speed, float(median), float(high), low, top)


def _row(load: Load) -> str:
    share = load.answered / load.requests
    # Of a few hundred requests none is known to be slower than the 99th percentile.
    top = "?" if np.isnan(load.p99_high_ms) else f"{load.p99_high_ms:.1f}"
    return (
        f"{load.batch:5}  {load.wait_ms:7}  {load.requests_per_s:10.1f}  {share:8.0%}  "
        f"{load.images_per_s:8.1f}  {load.median_ms:9.1f}  {load.p99_ms:.1f} "
        f"[{load.p99_low_ms:.1f}, {top}]"
    )


def _answer(loads: Sequence[Load], goal_ms: float) -> str:
    """Return the setting that keeps the 99th percentile within the goal up to the highest rate."""
    good = [load for load in loads if load.answered == load.requests and load.p99_ms <= goal_ms]
    if not good:
        return f"no setting answers 99 % of the requests within {goal_ms:g} ms at any of these rates"
    best = max(good, key=lambda load: (load.requests_per_s, -load.p99_ms))
    return (
        f"99 % of the requests within {goal_ms:g} ms: --batch {best.batch} --wait {best.wait_ms}, "
        f"up to {best.requests_per_s:.1f} requests/s ({best.p99_ms:.0f} ms)"
    )
