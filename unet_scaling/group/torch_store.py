"""torch's key-value store: every worker reports to it, so that one which is missing can be named."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from unet_scaling.group.identity import Identity
from unet_scaling.study.config import FALLBACK_SECONDS
from unet_scaling.study.dilation import dilated, dilation

ANSWER = "answer"
# Worker 0 serves the store; it leaves after the others had the time to read the answer.
STORE_LINGER_SECONDS = 2


class Store(Protocol):
    """The part of TCPStore that is used here; only a twin may import it."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...
    def check(self, keys: list[str]) -> bool: ...
    def set_timeout(self, timeout: timedelta) -> None: ...


def open_store(
    store_class: Callable[..., Store], identity: Identity, host: str, port: int, timeout_seconds: int
) -> Store:
    """Return the store once all workers have reached it; worker 0 serves it.

    Its `timeout` is then the one for the group: it comes after the watchdog's, which names the option.
    Raises RuntimeError, on every worker that arrived, naming those that did not.
    """
    timeout = timedelta(seconds=timeout_seconds)
    store = store_class(host, port, None, identity.rank == 0, timeout, wait_for_workers=False)
    _wait_for_peers(store, identity, timeout)
    store.set_timeout(timeout + timedelta(seconds=dilated(FALLBACK_SECONDS)))
    return store


def _wait_for_peers(store: Store, identity: Identity, timeout: timedelta) -> None:
    store.set(_key(identity.rank), socket.gethostname())
    if identity.rank == 0:
        store.set(ANSWER, _missing_peers(store, identity.size, timeout))
    store.wait([ANSWER], 2 * timeout)
    answer = store.get(ANSWER).decode()
    if answer:
        time.sleep(STORE_LINGER_SECONDS if identity.rank == 0 else 0)
        raise RuntimeError(answer)


def _missing_peers(store: Store, size: int, timeout: timedelta) -> str:
    """Return a sentence that names the workers which have not arrived in time; empty where all have."""
    deadline = time.monotonic() + timeout.total_seconds()
    missing = [rank for rank in range(size) if not _has_arrived(store, rank, deadline)]
    if not missing:
        return ""
    hosts = dict.fromkeys(store.get(_key(rank)).decode() for rank in range(size) if rank not in missing)
    return (
        f"no worker {', '.join(map(str, missing))} after {timeout.total_seconds() / dilation():.0f} s "
        f"(training.timeout_seconds); the others are on {', '.join(hosts)}"
    )


def _has_arrived(store: Store, rank: int, deadline: float) -> bool:
    left = max(deadline - time.monotonic(), 0.001)
    with suppress(RuntimeError):
        store.wait([_key(rank)], timedelta(seconds=left))
    return store.check([_key(rank)])


def _key(rank: int) -> str:
    return f"host of worker {rank}"
