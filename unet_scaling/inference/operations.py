"""What operators of `unet-scaling serve` need: metrics, a line for each request, and a token."""

import hmac
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import accumulate
from typing import TextIO

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEALTH = "/health"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "unet_scaling"
# Seconds: from an image alone on a GPU to a large one in a queue.
_LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts values by upper bounds, as Prometheus does."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[sum(value > bound for bound in self.bounds)] += 1
        self.total += value

    @property
    def number(self) -> int:
        return sum(self.counts)

    def lines(self, name: str) -> list[str]:
        """Return its lines in the text format of Prometheus."""
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        summed = accumulate(self.counts)
        buckets = [
            f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in zip(bounds, summed, strict=True)
        ]
        return [*buckets, f"{name}_sum {self.total:g}", f"{name}_count {self.number}"]


@dataclass
class Watched:
    """Wraps the application: asks for a token, counts and times requests for masks, writes a line for each.

    /health is open to all. `log` gets JSON: time, client, path, status, bytes sent, ms, images of the batch.
    """

    application: ASGIApp
    token: bytes | None
    log: TextIO | None
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: Histogram = field(default_factory=lambda: Histogram(_LATENCIES))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        begin = time.perf_counter()
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        sent = 0

        async def counted(message: Message) -> None:
            nonlocal status, sent
            status = message.get("status", status)
            sent += len(message.get("body", b""))
            await send(message)

        application = self.application if self._is_allowed(scope) else _UNKNOWN_CLIENT
        try:
            await application(scope, receive, counted)
        finally:
            seconds = time.perf_counter() - begin
            if scope["path"] == "/" and scope["method"] == "POST":
                self.statuses[status] += 1
                if status == HTTPStatus.OK:
                    self.seconds.add(seconds)
            if self.log:
                self._write(scope, status=status, bytes=sent, ms=round(seconds * 1e3, 3))

    def _is_allowed(self, scope: Scope) -> bool:
        if self.token is None or scope["path"] == HEALTH:
            return True
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        return hmac.compare_digest(token.strip().encode(), self.token) and scheme.lower() == "bearer"

    def _write(self, scope: Scope, **facts: float) -> None:
        client, _ = scope.get("client") or ("", 0)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "client": client,
            "method": scope["method"], "path": scope["path"], **facts,
            "batch": scope.get("state", {}).get("batch", 0),
        }  # fmt: skip
        assert self.log
        # A full disk keeps nobody from masks.
        with suppress(OSError):
            self.log.write(json.dumps(line) + "\n")

    def metrics(self, batch_sizes: Histogram, gauges: Mapping[str, float], deaths: int) -> str:
        """Return all metrics in the text format of Prometheus."""
        statuses = [
            f'{_PREFIX}_requests_total{{status="{key}"}} {n}' for key, n in sorted(self.statuses.items())
        ]
        named = {
            "requests_total": ("counter", "Requests for masks by HTTP status.", statuses),
            "request_seconds": ("histogram", "Time of requests that got a mask.", self.seconds),
            "batch_images": ("histogram", "Images that passed through the network together.", batch_sizes),
            "replica_deaths_total": ("counter", "Replicas that ended and were replaced.", deaths),
            "queue_length": ("gauge", "Images that wait for a replica.", gauges["waiting"]),
            "replicas_ready": ("gauge", "Replicas that can take images.", gauges["ready"]),
        }
        lines: list[str] = []
        for name, (kind, text, values) in named.items():
            full = f"{_PREFIX}_{name}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
            if isinstance(values, Histogram):
                lines += values.lines(full)
            else:
                lines += values if isinstance(values, list) else [f"{full} {values:g}"]
        return "\n".join(lines) + "\n"


_UNKNOWN_CLIENT = JSONResponse(
    {"error": "send the server's token: Authorization: Bearer TOKEN"},
    HTTPStatus.UNAUTHORIZED,
    {"WWW-Authenticate": "Bearer", "Connection": "close"},
)
