"""Horovod's controllers: what each needs before it can start.

MPI learns from its launcher where the workers are. Gloo asks a server for it, which `horovodrun` would start;
where workers come from `srun` or `mpiexec`, worker 0 serves, at the place where native DDP meets too.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from threading import Thread

from unet_scaling.group.identity import Identity
from unet_scaling.group.rendezvous import rendezvous
from unet_scaling.group.shared_memory import prepare_shared_memory_for_mpi
from unet_scaling.study.config import FALLBACK_SECONDS, RunConfig, horovod_environment

POLL_SECONDS = 0.05
NEVER = 1e6  # seconds
Server = Callable[[tuple[str, int], type, bool], HTTPServer]


@contextmanager
def controller(identity: Identity, config: RunConfig, server: Server, handler: type) -> Iterator[None]:
    """Inside, Horovod can start with the options of the point.

    Server and handler are Horovod's own, which only its twin may import. Raises UserError where the
    shared memory of MPI is full, where the port is taken, and where nobody serves.
    """
    os.environ.update(horovod_environment(config))
    if not config.horovod or config.horovod.controller != "gloo":
        prepare_shared_memory_for_mpi()
        yield
        return
    patience = config.training.timeout_seconds
    with rendezvous(identity) as (host, port):
        if identity.rank == 0:
            port = _serve(server(("", port), handler, False))
        else:
            _wait_for_server(host, port, patience)
        os.environ.update(_gloo_environment(identity, host, port, patience + FALLBACK_SECONDS))
        yield


def _serve(server: HTTPServer) -> int:
    """Serve as long as this process lives, as the store of native DDP does; returns the port.

    Nobody asks it to end, so it need not wake up to look.
    """
    Thread(target=server.serve_forever, args=[NEVER], daemon=True).start()
    return server.server_port


def _wait_for_server(host: str, port: int, patience: float) -> None:
    """Gloo itself would ask for two seconds only. Raises RuntimeError where nobody has answered by then."""
    deadline = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, port), timeout=patience).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{error}, for {patience:.0f} s (training.timeout_seconds)") from error
            time.sleep(POLL_SECONDS)
        else:
            return


def _gloo_environment(identity: Identity, host: str, port: int, timeout_seconds: int) -> dict[str, str]:
    """What `horovodrun` would tell this worker, every worker being told as a host of its own.

    Which workers share a host matters for hierarchical sums alone, which nothing here switches on.
    """
    place = {
        "RANK": identity.rank, "SIZE": identity.size, "LOCAL_RANK": 0, "LOCAL_SIZE": 1,
        "CROSS_RANK": identity.rank, "CROSS_SIZE": identity.size, "HOSTNAME": f"worker{identity.rank}",
        "GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(host), "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", ""), "GLOO_TIMEOUT_SECONDS": timeout_seconds,
    }  # fmt: skip
    return {f"HOROVOD_{name}": str(value) for name, value in place.items()}
