"""The HTTP server of `unet-scaling serve`: the bytes of an image come in, the PNG of its mask goes out.

This process holds connections and the queue; replicas make the masks. Memory is bounded: bodies of at most
`queue` requests are held.
"""

import asyncio
import errno
import ipaddress
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from unet_scaling.base.errors import UserError, or_user_error
from unet_scaling.base.files import read_given
from unet_scaling.inference.connections import LimitedProtocol
from unet_scaling.inference.masks import trained_network
from unet_scaling.inference.operations import HEALTH, METRICS_TYPE, Watched
from unet_scaling.inference.replicas import Replicas

LARGEST_BODY = 64 * 2**20
BODY_SECONDS = 30.0
# A body that has taken so long makes room for another request where the queue is full.
PATIENT_SECONDS = 1.0
# A client that does not take its answer does not keep the server from ending.
SHUTDOWN_SECONDS = 60
_OPENAPI = Path(__file__).with_name("openapi.json")


@dataclass
class Service:
    """Answers requests: POST / makes a mask, GET tells the network, health, metrics and a description."""

    run: Path
    replicas: Replicas
    queue: int
    address: str
    token: bytes | None
    server: uvicorn.Server | None = None
    failure: BaseException | None = None
    refused: int = 0
    _watched: Watched = field(init=False)
    _held: int = 0
    # Of the requests whose body is arriving, the first one first: when it began.
    _arriving: dict[asyncio.Timeout, float] = field(default_factory=dict)

    def application(self, log: Path | None) -> Watched:
        """Return the application, which keeps the replicas while it runs."""
        routes = [Route("/", self.facts, methods=["GET"]), Route("/", self.answer, methods=["POST"])]
        routes += [
            Route(path, each, methods=["GET"])
            for path, each in (
                (HEALTH, self.health), ("/metrics", self.metrics), ("/openapi.json", self.description),
            )
        ]  # fmt: skip
        lines = None
        if log:
            with or_user_error(f"--access-log {log} cannot be written", "name another file"):
                lines = log.open("a", buffering=1)
        self._watched = Watched(Starlette(routes=routes, lifespan=self._lifespan), self.token, lines)
        return self._watched

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        keeping = [asyncio.create_task(self.replicas.keep(each)) for each in range(self.replicas.number)]
        for task in keeping:
            task.add_done_callback(self._end)
        announcing = asyncio.create_task(self._announce())
        yield
        for task in (announcing, *keeping):
            task.cancel()
        await asyncio.gather(announcing, *keeping, return_exceptions=True)

    async def _announce(self) -> None:
        await self.replicas.all_ready.wait()
        print(f"{self.run} is served at {self.address}: POST an image, get the PNG of its mask", flush=True)

    def _end(self, keeping: asyncio.Task[None]) -> None:
        """End the server where a replica cannot be kept."""
        if not keeping.cancelled() and self.server:
            self.failure = keeping.exception()
            self.server.should_exit = True
            self.replicas.give_up()

    async def facts(self, _: Request) -> JSONResponse:
        replicas = self.replicas
        sizes = replicas.batch_sizes
        return JSONResponse(
            {
                "run": str(self.run),
                **replicas.facts,
                "replicas": replicas.number,
                "batch": replicas.largest,
                "wait_ms": replicas.seconds * 1e3,
                "queue": self.queue,
                "images": int(sizes.total),
                "batches": sizes.number,
                "refused": self.refused,
            }
        )

    async def health(self, _: Request) -> JSONResponse:
        ready = len(self.replicas.alive)
        status = "ready" if ready else "no replica is alive" if self.replicas.facts else "loading"
        return JSONResponse(
            {"status": status, "replicas": ready}, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        )

    async def metrics(self, _: Request) -> Response:
        replicas = self.replicas
        gauges = {"waiting": len(replicas.waiting), "ready": len(replicas.alive)}
        text = self._watched.metrics(replicas.batch_sizes, gauges, replicas.deaths)
        return Response(text, media_type=METRICS_TYPE)

    async def description(self, _: Request) -> Response:
        return Response(_OPENAPI.read_bytes(), media_type="application/json")

    async def answer(self, request: Request) -> Response:
        """Return the PNG of the mask; a mistake becomes a 4xx status with one sentence as JSON."""
        if self._held >= self.queue and not self._make_room():
            text = f"{self.queue} requests are being answered (--queue); try again later"
            return self._refusal(HTTPStatus.TOO_MANY_REQUESTS, text, {"Retry-After": "1"})
        self._held += 1
        try:
            body = await self._body(request)
            if body is None:
                return self._refusal(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"image: has more than {LARGEST_BODY} bytes"
                )
            kind = request.headers.get("content-type", "")
            status, content, request.state.batch = await self.replicas.answer(kind, body)
            if isinstance(content, str):
                return self._refusal(status, content)
            return Response(content, media_type="image/png")
        except TimeoutError:
            limits = f"{BODY_SECONDS:g} s, {PATIENT_SECONDS:g} s where the queue is full"
            return self._refusal(HTTPStatus.REQUEST_TIMEOUT, f"image: did not arrive in time ({limits})")
        except ClientDisconnect:
            return self._refusal(HTTPStatus.BAD_REQUEST, "image: did not arrive whole")
        finally:
            self._held -= 1

    def _make_room(self) -> bool:
        """End the request whose body has been arriving longest, if that is long."""
        now = asyncio.get_running_loop().time()
        timeout, began = next(iter(self._arriving.items()), (None, now))
        if timeout is None or now - began < PATIENT_SECONDS:
            return False
        del self._arriving[timeout]
        timeout.reschedule(now)
        return True

    async def _body(self, request: Request) -> bytes | None:
        """Return the body; None where it is too large. Raises TimeoutError and ClientDisconnect."""
        if int(request.headers.get("content-length", 0)) > LARGEST_BODY:
            return None
        parts = bytearray()
        async with asyncio.timeout(BODY_SECONDS) as timeout:
            self._arriving[timeout] = asyncio.get_running_loop().time()
            try:
                async for part in request.stream():
                    parts += part
                    if len(parts) > LARGEST_BODY:
                        return None
            finally:
                self._arriving.pop(timeout, None)
        return bytes(parts)

    def _refusal(self, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
        self.refused += 1
        return JSONResponse({"error": text}, status, {"Connection": "close", **(headers or {})})


def serve(
    run: Path,
    host: str,
    port: int,
    options: Sequence[str],
    *,
    replicas: int,
    batch: int,
    wait_ms: float,
    queue: int,
    most_seconds: float,
    token_file: Path | None,
    access_log: Path | None,
) -> None:
    """Serve the network of a run until SIGTERM or Ctrl-C; what was accepted by then is answered.

    `options` are those of every replica. Raises UserError where the run has no network that can be served, or
    the port cannot be had.
    """
    trained_network(run)
    token = _token(token_file) if token_file else None
    listener = _listen(host, port)
    _warn_of_others(host, token)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    command = [sys.executable, "-m", "unet_scaling.inference.replica", str(run), *options]
    kept = Replicas(command, replicas, batch, wait_ms / 1e3, most_seconds)
    service = Service(run, kept, queue, address, token)
    config = uvicorn.Config(
        service.application(access_log), loop="asyncio", http=LimitedProtocol, ws="none",
        log_level="warning", access_log=False, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )  # fmt: skip
    service.server = uvicorn.Server(config)
    service.server.run(sockets=[listener])
    if service.failure:
        raise service.failure


def _token(path: Path) -> bytes:
    """Return the token in a file; UserError where it cannot be read or is none."""
    with or_user_error(f"--token-file {path} cannot be read", "name a file that holds one token"):
        token = read_given(path).strip()
    if not token or len(token.split()) > 1:
        raise UserError(
            f"--token-file {path} holds no single word; write one, as `openssl rand -hex 32` makes it"
        )
    return token


def _warn_of_others(host: str, token: bytes | None) -> None:
    """Say on standard error who is served by an address that is not this machine's own."""
    with suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return
    who = (
        "who has the token" if token else "who reaches this machine; --token-file FILE asks them for a token"
    )
    print(f"warning: --host {host} serves all {who}; nothing is encrypted", file=sys.stderr, flush=True)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        cure = "; name another --port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        raise UserError(f"--host {host} --port {port}: {error.strerror}{cure}") from None
