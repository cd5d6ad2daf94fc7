"""Meeting by TCP: where the workers of a job find each other, and who did not come."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

from unet_scaling.group.identity import Identity, rendezvous_address
from unet_scaling.study.config import FALLBACK_SECONDS
from unet_scaling.study.errors import UserError

ANSWER = "answer"
BACKEND_TIMEOUT_MARGIN = timedelta(seconds=FALLBACK_SECONDS)
# Worker 0 keeps the store; it leaves after the others had the time to read why.
ERROR_DRAIN_SECONDS = 2


class Store(Protocol):
    """What is used of torch's key-value store, which only the native twin may import."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...
    def check(self, keys: list[str]) -> bool: ...


@contextmanager
def rendezvous(identity: Identity) -> Iterator[tuple[str, int]]:
    """Host and port to meet at; a meeting that fails says where it was and what to look at."""
    host, port = rendezvous_address(os.environ) if identity.size > 1 else ("localhost", 0)
    try:
        yield host, port
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"worker {identity.rank} of {identity.size} on {socket.gethostname()} could not meet the "
            f"others at {host}:{port}: {str(error).splitlines()[0]}. "
            f"Is the port taken, a host missing, a worker not started?"
        ) from error


def wait_for_peers(store: Store, identity: Identity, patience: timedelta) -> None:
    """Return when every worker has come to the store; RuntimeError, on all that came, names those missing."""
    store.set(_key(identity.rank), socket.gethostname())
    if identity.rank == 0:
        store.set(ANSWER, _missing(store, identity.size, patience))
    store.wait([ANSWER], 2 * patience)
    answer = store.get(ANSWER).decode()
    if answer:
        time.sleep(ERROR_DRAIN_SECONDS if identity.rank == 0 else 0)
        raise RuntimeError(answer)


def _missing(store: Store, size: int, patience: timedelta) -> str:
    """Who is not there after so much time, and who is; empty where all are."""
    deadline = time.monotonic() + patience.total_seconds()
    for rank in range(size):
        left = max(deadline - time.monotonic(), 0.001)
        try:
            store.wait([_key(rank)], timedelta(seconds=left))
        except RuntimeError:
            continue
    arrived = [rank for rank in range(size) if store.check([_key(rank)])]
    missing = [str(rank) for rank in range(size) if rank not in arrived]
    hosts = dict.fromkeys(store.get(_key(rank)).decode() for rank in arrived)
    waited = f"after {patience.total_seconds():.0f} s (training.timeout_seconds)"
    return f"no worker {', '.join(missing)} {waited}; the others are on {', '.join(hosts)}" if missing else ""


def _key(rank: int) -> str:
    return f"host of worker {rank}"
