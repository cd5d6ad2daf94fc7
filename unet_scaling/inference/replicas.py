"""The replicas of `unet-scaling serve`: processes that make masks, and are replaced where they die or hang.

A request that such a replica has not answered is given to another one, alone: what kills two is refused.
"""

import asyncio
import os
import pickle
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

from unet_scaling.base.errors import EXIT_BUG, UserError
from unet_scaling.inference.operations import Histogram

# Of a replica that has died while it loaded.
RESTART_SECONDS = 1.0
_MOST_DEATHS = 2
# Before a message, in network byte order.
LENGTH_BYTES = 8


class Answered(NamedTuple):
    """What became of the request at this place of a batch: a PNG with status 200, or one sentence."""

    place: int
    status: int
    content: bytes | str


@dataclass(eq=False)
class Waiting:
    """A request that waits for a batch: its content type and body, and how many replicas died with it."""

    request: tuple[str, bytes]
    since: float
    # Status, the mask or one sentence, and the images that passed through the network together.
    answer: asyncio.Future[tuple[int, bytes | str, int]]
    deaths: int = 0


@dataclass
class Replicas:
    """Feeds so many replicas with the requests that wait, at most `largest` at once.

    A batch starts as soon as a replica is free and either it is full or its first image has waited `seconds`.
    A replica that answers nothing for `most_seconds` while it has a batch is ended.
    `command` starts one, with its number and how many there are in the place of {}.
    """

    command: Sequence[str]
    number: int
    largest: int
    seconds: float
    most_seconds: float
    facts: dict[str, Any] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    all_ready: asyncio.Event = field(default_factory=asyncio.Event)
    deaths: int = 0
    batch_sizes: Histogram = field(default_factory=lambda: Histogram((1, 2, 4, 8, 16, 32, 64)))
    waiting: deque[Waiting] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, content_type: str, body: bytes) -> tuple[int, bytes | str, int]:
        """Return status and content of the answer to an image, and how many images passed with it."""
        loop = asyncio.get_running_loop()
        waiting = Waiting((content_type, body), loop.time(), loop.create_future())
        self.waiting.append(waiting)
        self._arrived.set()
        return await waiting.answer

    async def keep(self, index: int) -> None:
        """Start a replica, feed it, and replace it whenever it ends, until cancelled.

        Raises UserError where it does not start, and no replica did before.
        """
        while True:
            process = await asyncio.create_subprocess_exec(
                *self.command, str(index), str(self.number), stdin=PIPE, stdout=PIPE, start_new_session=True
            )
            batch: list[Waiting] = []
            feeding = asyncio.create_task(self._feed(process, batch))
            ending = asyncio.create_task(process.wait())
            try:
                await asyncio.wait((feeding, ending), return_when=asyncio.FIRST_COMPLETED)
            finally:
                feeding.cancel()
                if not ending.done():
                    # Process.kill may take the exit code from whoever waits for it.
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
                code = await ending
                (error,) = await asyncio.gather(feeding, return_exceptions=True)
            was_ready = process.pid in self.alive
            self.alive.discard(process.pid)
            self._try_again(batch)
            if isinstance(error, UserError) and not self.facts:
                raise error
            if not self.facts:
                raise UserError(f"a replica ended with code {code} while it loaded the network", EXIT_BUG)
            if error and not isinstance(error, UserError | EOFError | OSError | asyncio.CancelledError):
                raise error
            self.deaths += 1
            said: object = f"ended with code {code}"
            if isinstance(error, TimeoutError):
                said = f"answered nothing for {self.most_seconds:g} s (--timeout)"
            elif isinstance(error, UserError):
                said = error
            text = f"warning: replica {index} (process {process.pid}): {said}; another one takes its place"
            print(text, file=sys.stderr, flush=True)
            if not was_ready:
                await asyncio.sleep(RESTART_SECONDS)

    async def _feed(self, process: Process, batch: list[Waiting]) -> None:
        """Give batch after batch to a replica; `batch` holds the one that it has.

        Raises EOFError where the replica ended, TimeoutError where it hangs.
        """
        assert process.stdin
        facts = await _received(process)
        if isinstance(facts, UserError):
            raise facts
        self.facts = facts
        self.alive.add(process.pid)
        if len(self.alive) == self.number:
            self.all_ready.set()
        while True:
            await self._filled()
            batch[:] = [self.waiting.popleft()]
            while self.waiting and len(batch) < self.largest:
                if batch[0].deaths or self.waiting[0].deaths:
                    break
                batch.append(self.waiting.popleft())
            process.stdin.write(packed([waiting.request for waiting in batch]))
            await process.stdin.drain()
            left = len(batch)
            while left:
                async with asyncio.timeout(self.most_seconds):
                    found = await _received(process)
                masks = sum(isinstance(content, bytes) for _, _, content in found)
                if masks:
                    self.batch_sizes.add(masks)
                for place, status, content in found:
                    _set(batch[place], status, content, masks)
                left -= len(found)

    async def _filled(self) -> None:
        """Wait for a full batch, or until its first image has waited long enough."""
        loop = asyncio.get_running_loop()
        while len(self.waiting) < self.largest:
            self._arrived.clear()
            left = self.waiting[0].since + self.seconds - loop.time() if self.waiting else None
            if left is not None and left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._arrived.wait()

    def give_up(self) -> None:
        """Refuse all that wait: no replica will take them."""
        while self.waiting:
            _set(
                self.waiting.popleft(),
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "image: no replica could be started",
                0,
            )

    def _try_again(self, batch: Sequence[Waiting]) -> None:
        """Let what a dead replica has not answered be the next; refuse what has killed two."""
        for waiting in reversed(batch):
            waiting.deaths += 1
            if waiting.deaths >= _MOST_DEATHS:
                text = f"image: {_MOST_DEATHS} replicas ended while they made its mask; it is not tried again"
                _set(waiting, HTTPStatus.INTERNAL_SERVER_ERROR, text, 0)
            elif not waiting.answer.done():
                self.waiting.appendleft(waiting)
        self._arrived.set()


def _set(waiting: Waiting, status: int, content: bytes | str, masks: int) -> None:
    """Answer a request, unless nobody waits for it any more."""
    if not waiting.answer.done():
        waiting.answer.set_result((status, content, masks))


def packed(message: object) -> bytes:
    """Return a message between server and replica: its length and a pickle."""
    pickled = pickle.dumps(message)
    return len(pickled).to_bytes(LENGTH_BYTES) + pickled


async def _received(process: Process) -> Any:  # noqa: ANN401  (what a replica sends)
    """Return the next message of a replica; EOFError where it ended."""
    assert process.stdout
    length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES))
    return pickle.loads(await process.stdout.readexactly(length))  # noqa: S301, of a process of ours
