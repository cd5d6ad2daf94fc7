"""`unet-scaling serve --measure`: latency and throughput of a server under requests at random moments.

Requests arrive as a Poisson process, and a latency counts from the moment at which the request was to be
sent: a server that falls behind is seen to. One that is refused is late without end. Each setting meets ever
higher rates until it no longer answers 99 % within the goal; larger batches, then longer waits are tried
while they hold more.
"""

import http.client
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from scipy.stats import binom  # type: ignore[import-untyped]

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.base.files import READABLE, write_atomically
from unet_scaling.data.pixels import read_bytes
from unet_scaling.inference.masks import files_to_segment, image_path, or_resumable, require_own_folder

GOAL_MS = 100.0
REQUESTS = 1000
# Of what batches of 1 give to clients that never wait: the first rate, and from each rate to the next.
_LOWEST_SHARE = 0.5
_STEP = 1.25
_LARGEST_BATCH = 64
# Larger batches that hold no more, until none is tried: one step of rates may hide what they bring.
_VAIN_BATCHES = 2
_WAIT_SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4)
_CONFIDENCE = 0.95
# Of the rate of requests: with fewer answers a second, server or clients fall behind.
_KEPT_SHARE = 0.9
SECONDS = 10.0
# So many ask at a time: more than the server holds, so that it refuses where it falls far behind.
CLIENTS = 256
_IMAGES = 32
_TABLE = "serving.csv"
Setting = tuple[int, int]


@dataclass(frozen=True)
class Load:
    """What one setting of the server gave at one rate; latencies in ms, each with its 95 % interval.

    A fresh one holds the advice against a new server and other moments.
    """

    batch: int
    wait_ms: int
    requests_per_s: float
    requests: int
    answered: int
    images_per_s: float
    median_ms: float
    median_low_ms: float
    median_high_ms: float
    p99_ms: float
    p99_low_ms: float
    p99_high_ms: float
    is_fresh: bool

    def is_within(self, goal_ms: float) -> bool:
        """Tell whether all were answered at this rate, 99 % of them within the goal by the whole interval."""
        is_kept = self.answered == self.requests and self.images_per_s >= _KEPT_SHARE * self.requests_per_s
        return is_kept and self.p99_high_ms <= goal_ms


@dataclass
class Measurement:
    """Measures settings of servers of a run, and appends each load to the table."""

    run: Path
    contents: Sequence[bytes]
    table: Path
    options: Sequence[str]
    requests: int
    goal_ms: float
    rate: float
    one_by_one: float
    loads: list[Load] = field(default_factory=list)

    def held(self, setting: Setting) -> float:
        """Return the highest rate that a setting answers within the goal; 0 for not even the lowest."""
        highest = 0.0
        with self._served(setting) as address:
            for rate in self._rates():
                if not self.load(address, setting, rate).is_within(self.goal_ms):
                    break
                highest = rate
        print(f"--batch {setting[0]} --wait {setting[1]} holds {highest:.1f} requests/s", flush=True)
        return highest

    @contextmanager
    def _served(self, setting: Setting) -> Iterator[str]:
        """Start a new server of a setting; yield its address."""
        with served(self.run, "--batch", setting[0], "--wait", setting[1], *self.options) as (address, _):
            yield address

    def _rates(self) -> Iterator[float]:
        """Yield ever higher rates, and the one that is asked for among them."""
        rate = min(self.rate, _LOWEST_SHARE * self.one_by_one)
        while True:
            yield rate
            rate = self.rate if rate < self.rate < rate * _STEP else rate * _STEP

    def load(self, address: str, setting: Setting, rate: float, *, is_fresh: bool = False) -> Load:
        """Measure a setting at a rate, print it and write the table."""
        load = poisson(address, self.contents, setting, rate, self.requests, is_fresh=is_fresh)
        self.loads.append(load)
        print(_row(load), flush=True)
        rows = [[column.name for column in fields(Load)], *map(astuple, self.loads)]
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        write_atomically(self.table, text, READABLE)
        return load

    def best(self) -> tuple[Setting, float]:
        """Return the setting that holds most, and how many requests a second that are.

        Of equals it is the one with the lower 99th percentile at the rate that is asked for.
        """
        held = {(1, 0): self.held((1, 0))}
        batch, vain = 2, 0
        while batch <= _LARGEST_BATCH and vain < _VAIN_BATCHES:
            most = max(held.values())
            held[batch, 0] = self.held((batch, 0))
            vain = vain + 1 if held[batch, 0] <= most else 0
            batch *= 2
        batch, _ = self._best_of(held)
        for size in (batch, 2 * batch) if batch > 1 else (2,):
            for wait_ms in sorted({max(1, round(share * self.goal_ms)) for share in _WAIT_SHARES}):
                most = max(held.values())
                held[size, wait_ms] = self.held((size, wait_ms))
                if held[size, wait_ms] < most:
                    break
        best = self._best_of(held)
        return best, held[best]

    def _best_of(self, held: Mapping[Setting, float]) -> Setting:
        return max(held, key=lambda setting: (held[setting], -self._late(setting)))

    def _late(self, setting: Setting) -> float:
        """Return the 99th percentile of a setting at the rate that is asked for; infinite where unknown."""
        found = [
            load.p99_ms
            for load in self.loads
            if (load.batch, load.wait_ms) == setting and load.requests_per_s == self.rate
        ]
        return found[-1] if found else math.inf

    def advice(self) -> str:
        """Return the setting for goal and rate, and whether a fresh run of it agrees."""
        setting, highest = self.best()
        goal = f"99 % of the requests within {self.goal_ms:g} ms"
        if not highest:
            lowest = next(self._rates())
            return f"{goal}: no setting, not even at {lowest:.1f} requests/s; raise --goal or lower --rate"
        rate = min(self.rate, highest)
        print("a fresh run of the best:", flush=True)
        with self._served(setting) as address:
            fresh = self.load(address, setting, rate, is_fresh=True)
        says = f"{fresh.p99_ms:.0f} ms, interval {fresh.p99_low_ms:.0f} to {fresh.p99_high_ms:.0f}"
        agrees = (
            "a fresh run agrees" if fresh.is_within(self.goal_ms) else "NOT CONFIRMED: a fresh run disagrees"
        )
        words = f"{goal}: --batch {setting[0]} --wait {setting[1]}, up to {highest:.1f} requests/s"
        if highest < self.rate:
            words += f", less than the {self.rate:.1f} that are asked for"
        says += f"; {fresh.answered} of {fresh.requests} answered"
        return f"{words}; at {rate:.1f} requests/s {agrees} ({says})"


def measure_latency(
    run: Path,
    images: Path,
    output: Path,
    options: Sequence[str],
    *,
    goal_ms: float = GOAL_MS,
    rate: float | None = None,
    requests: int = REQUESTS,
) -> Path:
    """Search batch and wait for a goal at a rate, and print the advice; return the table.

    Without a rate it is what batches of 1 give to clients that never wait. `options` are those of every
    server, as `unet-scaling serve` takes them.
    """
    pairs, _ = files_to_segment(images)
    contents = [read_bytes(image_path(images, pair)) for pair in pairs[:_IMAGES]]
    require_own_folder(output, images, _TABLE)
    with or_resumable(output):
        output.mkdir(parents=True, exist_ok=True)
    with served(run, "--batch", 1, *options) as (address, _):
        one_by_one = saturated(address, contents, SECONDS)
    table = output / _TABLE
    measurement = Measurement(
        run, contents, table, options, requests, goal_ms, rate or one_by_one, one_by_one
    )
    print(f"batches of 1, clients that never wait: {one_by_one:.1f} images/s")
    print("batch  wait ms  requests/s  answered  images/s  median ms (95 % interval)  99th percentile ms")
    print(measurement.advice())
    return table


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
        if status != HTTPStatus.OK:
            raise UserError(f"an image was answered with {status}: {said.decode()}", EXIT_BAD_DATA)
    begin = time.perf_counter()

    def ask(first: int) -> int:
        answered = 0
        while time.perf_counter() < begin + seconds:
            answered += post(address, contents[(first + answered) % len(contents)])[0] == HTTPStatus.OK
        return answered

    with ThreadPoolExecutor(4) as clients:
        answered = sum(clients.map(ask, range(4)))
    return answered / (time.perf_counter() - begin)


def poisson(
    address: str, contents: Sequence[bytes], setting: Setting, rate: float, requests: int, *, is_fresh: bool
) -> Load:
    """Send requests at random moments, `rate` a second, and return what came back."""
    # Of a Poisson process with this number of arrivals.
    moments = np.sort(np.random.default_rng(int(is_fresh)).uniform(0, requests / rate, requests))
    post(address, contents[0])
    begin = time.perf_counter()

    def ask(number: int, moment: float) -> float:
        status, _ = post(address, contents[number % len(contents)])
        return time.perf_counter() - begin - moment if status == HTTPStatus.OK else math.inf

    with ThreadPoolExecutor(CLIENTS) as clients:
        asked = []
        for number, moment in enumerate(moments):
            time.sleep(max(0.0, begin + moment - time.perf_counter()))
            asked.append(clients.submit(ask, number, float(moment)))
        latencies = np.sort([each.result() for each in asked]) * 1e3
    spent = time.perf_counter() - begin
    answered = int(np.isfinite(latencies).sum())
    median, high = (quantile(latencies, share) for share in (0.5, 0.99))
    return Load(*setting, rate, requests, answered, answered / spent, *median, *high, is_fresh)


def quantile(ordered: npt.NDArray[np.float64], share: float) -> tuple[float, float, float]:
    """Return a quantile of sorted latencies, and the ends of its 95 % interval, whatever their distribution.

    The ends are order statistics (Hahn and Meeker, Statistical Intervals, 1991, section 5.2), for independent
    values: those of a queue resemble their neighbours, and would need a wider one. Where there are too few
    values for an end, it is 0 or infinite.
    """
    number = len(ordered)
    low, high = (
        int(binom.ppf(tail, number, share)) for tail in ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2)
    )
    values = [0.0, *map(float, ordered), math.inf]
    return values[max(1, math.ceil(share * number))], values[low], values[high + 1]


def _row(load: Load) -> str:
    share = load.answered / load.requests
    median = f"{load.median_ms:.1f} ({load.median_low_ms:.1f} to {load.median_high_ms:.1f})"
    high = f"{load.p99_ms:.1f} ({load.p99_low_ms:.1f} to {load.p99_high_ms:.1f})"
    return (
        f"{load.batch:5}  {load.wait_ms:7}  {load.requests_per_s:10.1f}  {share:8.0%}  "
        f"{load.images_per_s:8.1f}  {median:>25}  {high}"
    )
