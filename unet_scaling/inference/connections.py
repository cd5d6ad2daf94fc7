"""The HTTP connections of `unet-scaling serve`: as many as the process may have open, none of which idles."""

import asyncio
import resource
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
# Files that a process has open besides its connections.
_OTHER_FILES = 64
_MOST = 1024
# Of a request that is refused, read and dropped so that its client comes to read the answer.
_MOST_DROPPED_BYTES = 256 * 2**20


def most_connections() -> int:
    """Return how many connections leave room for the other files of the process."""
    return max(1, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES))


class _LingeringTransport:
    """The transport of a connection whose close, while a request arrives, ends only what the server sends.

    Were it closed at once, the system would reset the connection, and the client might not see its answer.
    """

    def __init__(self, transport: asyncio.Transport, protocol: "LimitedProtocol") -> None:
        self._transport = transport
        self._protocol = protocol
        self.is_lingering = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        arrives = self._protocol.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if not arrives or self.is_closing() or self._protocol.is_ending:
            self._transport.close()
            return
        self.is_lingering = True
        self._transport.write_eof()
        self._protocol.flow.resume_reading()


class LimitedProtocol(H11Protocol):
    """Closes a connection whose request has not begun within HEADER_SECONDS of its start or the last answer.

    So long, too, it reads on where it refuses a request that still arrives.

    Where there are as many as there may be, a new one takes the place of the one that has waited longest for
    its request, and is closed itself where all are being answered.
    """

    most: ClassVar[int] = most_connections()
    _idle: ClassVar[dict["LimitedProtocol", asyncio.TimerHandle]] = {}
    # The server ends.
    is_ending = False
    _dropped_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _LingeringTransport(transport, self)))
        if len(self.connections) > self.most:
            next(iter(self._idle), self)._close()
        if not transport.is_closing():
            self._begin_to_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_to_idle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not cast(_LingeringTransport, self.transport).is_lingering:
            super().data_received(data)
            return
        self._dropped_bytes += len(data)
        if self._dropped_bytes > _MOST_DROPPED_BYTES:
            self._close()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_to_idle()

    def on_response_complete(self) -> None:
        self._begin_to_idle()
        super().on_response_complete()

    def shutdown(self) -> None:
        self.is_ending = True
        if self in self._idle:
            self._close()
        else:
            super().shutdown()

    def _begin_to_idle(self) -> None:
        self._end_to_idle()
        self._idle[self] = self.loop.call_later(HEADER_SECONDS, self._close)

    def _end_to_idle(self) -> None:
        if timer := self._idle.pop(self, None):
            timer.cancel()

    def _close(self) -> None:
        self._end_to_idle()
        # Counted no more from now on, and closed without waiting for what the client does not read.
        self.connections.discard(self)
        self.transport.abort()
