"""The HTTP server of `unet-scaling serve`: the bytes of an image come in, the PNG of its mask goes out.

Memory is bounded: bodies of at most `queue` requests are held, images wait at the size of the study, and one
at a time is larger.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from unet_scaling.base.errors import UserError
from unet_scaling.data.pixels import decode
from unet_scaling.inference.connections import LimitedProtocol
from unet_scaling.inference.masks import packed_mask
from unet_scaling.inference.segment import FittedImage, Region, Segmenter, open_segmenter

LARGEST_BODY = 64 * 2**20
BODY_SECONDS = 30.0
# A body that has taken so long makes room for another request where the queue is full.
PATIENT_SECONDS = 1.0
# A client that does not take its answer does not keep the server from ending.
SHUTDOWN_SECONDS = 60
# Messages call an image so that has no file.
_NAME = Path("image")
_BAD_REQUEST = 400
_TIMED_OUT = 408
_TOO_LARGE = 413
_TOO_MANY = 429


@dataclass
class Batcher:
    """Lets images that wait pass through the network together, at most `largest` at once.

    A batch starts as soon as the network is free and either full or its first image has waited `seconds`. Its
    images have the size of the study: one of another size passes alone.
    """

    segmenter: Segmenter
    largest: int
    seconds: float
    images: int = 0
    batches: int = 0
    _waiting: deque[tuple[FittedImage, float, asyncio.Future[Region]]] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _network: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    async def region(self, image: FittedImage) -> Region:
        """Return what the network makes of an image in the next batch that has room for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Region] = loop.create_future()
        self._waiting.append((image, loop.time(), future))
        self._arrived.set()
        return await future

    async def run(self) -> None:
        """Answer batch after batch, until cancelled."""
        while True:
            await self._filled()
            batch = [self._waiting.popleft()]
            while self._waiting and len(batch) < self.largest:
                if batch[0][0].is_alone or self._waiting[0][0].is_alone:
                    break
                batch.append(self._waiting.popleft())
            regions = await self._regions([image for image, _, _ in batch])
            self.images += len(batch)
            for (_, _, future), region in zip(batch, regions, strict=True):
                if future.cancelled():  # nobody waits for it any more
                    continue
                if isinstance(region, Exception):
                    future.set_exception(region)
                else:
                    future.set_result(region)

    async def _regions(self, images: list[FittedImage]) -> list[Region | Exception]:
        """Return the region of each image, or its error: where a batch fails, each image is tried alone."""
        loop = asyncio.get_running_loop()
        self.batches += 1
        try:
            return [*await loop.run_in_executor(self._network, self.segmenter.regions, images)]
        except Exception as error:
            if len(images) == 1:
                return [error]
            return [alone for image in images for alone in await self._regions([image])]

    async def _filled(self) -> None:
        """Wait for a full batch, or until its first image has waited long enough."""
        loop = asyncio.get_running_loop()
        while len(self._waiting) < self.largest:
            self._arrived.clear()
            left = self._waiting[0][1] + self.seconds - loop.time() if self._waiting else None
            if left is not None and left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._arrived.wait()


@dataclass
class Service:
    """Answers requests: POST / makes a mask, GET / tells the network and the number of requests."""

    run: Path
    batcher: Batcher
    queue: int
    refused: int = 0
    _held: int = 0
    # Of the requests whose body is arriving, the first one first: when it began.
    _arriving: dict[asyncio.Timeout, float] = field(default_factory=dict)
    _decoder: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    # One at a time of the images that are larger than those of the study.
    _one_large: asyncio.Lock = field(default_factory=asyncio.Lock)

    def application(self) -> Starlette:
        """Return the application, which batches while it runs."""
        return Starlette(
            routes=[Route("/", self.facts, methods=["GET"]), Route("/", self.answer, methods=["POST"])],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        batches = asyncio.create_task(self.batcher.run())
        yield
        batches.cancel()
        self._decoder.shutdown()

    async def facts(self, _: Request) -> JSONResponse:
        batcher = self.batcher
        segmenter = batcher.segmenter
        return JSONResponse(
            {
                "run": str(self.run),
                "weights_sha256": segmenter.weights_sha256,
                "trained_on": sorted(segmenter.modes),
                "resize": segmenter.scales is None,
                "device": str(segmenter.device),
                "batch": batcher.largest,
                "wait_ms": batcher.seconds * 1e3,
                "queue": self.queue,
                "images": batcher.images,
                "batches": batcher.batches,
                "refused": self.refused,
            }
        )

    async def answer(self, request: Request) -> Response:
        """Return the PNG of the mask; a mistake becomes a 4xx status with one sentence as JSON."""
        if self._held >= self.queue and not self._make_room():
            text = f"{self.queue} requests are being answered (--queue); try again later"
            return self._refusal(_TOO_MANY, text, {"Retry-After": "1"})
        self._held += 1
        try:
            content = await self._body(request)
            if content is None:
                return self._refusal(_TOO_LARGE, f"image: has more than {LARGEST_BODY} bytes")
            return Response(await self._mask(content), media_type="image/png")
        except UserError as error:
            return self._refusal(_BAD_REQUEST, str(error))
        except TimeoutError:
            limits = f"{BODY_SECONDS:g} s, {PATIENT_SECONDS:g} s where the queue is full"
            return self._refusal(_TIMED_OUT, f"image: did not arrive in time ({limits})")
        except ClientDisconnect:
            return self._refusal(_BAD_REQUEST, "image: did not arrive whole")
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

    async def _mask(self, content: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        segmenter = self.batcher.segmenter

        def fitted() -> FittedImage:
            return segmenter.fit(_NAME, decode(_NAME, content))

        async def answered(image: FittedImage) -> bytes:
            region, _ = await self.batcher.region(image)
            origin = segmenter.origin(content, b"")
            return await loop.run_in_executor(
                self._decoder, lambda: packed_mask(image.at_own_size(region), origin, [])
            )

        image = await loop.run_in_executor(self._decoder, fitted)
        if not image.is_alone:
            return await answered(image)
        # It is decoded again when it is its turn: many that wait would fill the memory.
        del image
        async with self._one_large:
            return await answered(await loop.run_in_executor(self._decoder, fitted))

    def _refusal(self, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
        self.refused += 1
        return JSONResponse({"error": text}, status, {"Connection": "close", **(headers or {})})


def serve(
    run: Path, host: str, port: int, *, batch: int, wait_ms: float, queue: int, any_depth: bool, resize: bool
) -> None:
    """Serve the network of a run until SIGTERM or Ctrl-C; what was accepted by then is answered.

    Raises UserError where the run has no network that can be served, or the port cannot be had.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    segmenter = open_segmenter(run, device, any_depth=any_depth, resize=resize)
    batcher = Batcher(segmenter, batch, wait_ms / 1e3)
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    print(f"{run} is served at {address}: POST an image, get the PNG of its mask", flush=True)
    application = Service(run, batcher, queue).application()
    config = uvicorn.Config(
        application, loop="asyncio", http=LimitedProtocol, ws="none", log_level="warning", access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        cure = "; name another --port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        raise UserError(f"--host {host} --port {port}: {error.strerror}{cure}") from None
