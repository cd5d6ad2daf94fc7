"""Rendezvous: the workers of a run find each other at one TCP address, where worker 0 serves.

It serves with what the framework itself brings: torch's TCPStore, or Horovod's HTTP server for Gloo. Where
MPI controls Horovod, the launcher has connected the workers, and nothing is served.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unet_scaling.group.horovod_controller import is_mpi, serve_gloo
from unet_scaling.group.identity import Identity, rendezvous_address
from unet_scaling.group.shared_memory import prepare_shared_memory_for_mpi
from unet_scaling.group.torch_store import open_store
from unet_scaling.group.watchdog import blocking
from unet_scaling.study.config import RunConfig, horovod_environment
from unet_scaling.study.dilation import dilated
from unet_scaling.study.errors import UserError


@contextmanager
def rendezvous(
    identity: Identity,
    config: RunConfig,
    server: Any,  # noqa: ANN401, only a twin may import the classes of its framework
    handler: type | None = None,
) -> Iterator[Any]:
    """Inside, this worker can join the framework's group; yields torch's store, where there is one.

    `server` is torch's TCPStore, or Horovod's RendezvousHTTPServer with its request `handler`. Raises
    UserError where the address is unknown or taken, where a worker does not arrive within
    training.timeout_seconds, and where MPI lacks shared memory.
    """
    if handler is not None:
        os.environ.update(horovod_environment(config))
        if is_mpi(config):
            prepare_shared_memory_for_mpi()
            with blocking:
                yield None
            return
    limit_seconds = round(dilated(config.training.timeout_seconds))
    with _address(identity) as (host, port):
        store = None
        if handler is None:
            store = open_store(server, identity, host, port, limit_seconds)
        else:
            serve_gloo(server, handler, identity, host, port, limit_seconds)
        with blocking:
            yield store


@contextmanager
def _address(identity: Identity) -> Iterator[tuple[str, int]]:
    """Yield host and port of worker 0; a failure inside becomes a UserError that names them."""
    host, port = rendezvous_address(os.environ) if identity.size > 1 else ("localhost", 0)
    try:
        yield host, port
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"worker {identity.rank} of {identity.size} on {socket.gethostname()} could not join the group "
            f"at {host}:{port}: {str(error).splitlines()[0]}. "
            f"Is the port taken, a host missing, a worker not started?"
        ) from error
