"""Horovod's controllers, MPI and Gloo: what Gloo needs before it starts, and which one was used.

Gloo asks an HTTP server where the workers are, which `horovodrun` would start. Where workers come from
`srun` or `mpiexec`, worker 0 serves, at the address at which native DDP has its store.
"""

import os
import socket
import time
from collections.abc import Callable
from http.server import HTTPServer
from threading import Thread
from typing import Protocol

from unet_scaling.group.identity import Identity
from unet_scaling.study.config import FALLBACK_SECONDS, RunConfig
from unet_scaling.study.dilation import dilated, dilation

WITHOUT_NCCL = (
    "Horovod is built without NCCL, by which native DDP averages on GPUs: build it with "
    "HOROVOD_GPU_OPERATIONS=NCCL, as environment/install.sh does where it finds a CUDA toolkit"
)
POLL_SECONDS = 0.05
# Nobody asks the server to end, so that it need not wake up to see.
SHUTDOWN_POLL_SECONDS = 1e6


class Horovod(Protocol):
    """The part of horovod.torch that is used here; only its twin may import it."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def mpi_enabled(self) -> bool: ...
    def mpi_built(self) -> bool: ...
    def gloo_built(self) -> bool: ...
    def nccl_built(self) -> bool: ...


def is_mpi(config: RunConfig) -> bool:
    """Return whether MPI controls Horovod in this run, as it does by default."""
    return config.horovod is None or config.horovod.controller != "gloo"


def horovod_transport(horovod: Horovod, identity: Identity) -> dict[str, str]:
    """Return Horovod's controller and what it was built with; verify that it numbers the workers alike."""
    numbered = horovod.rank(), horovod.size()
    assert numbered == (identity.rank, identity.size), f"{identity}, Horovod {numbered}"
    return {"controller": "MPI" if horovod.mpi_enabled() else "Gloo", "built with": built_with(horovod)}


def built_with(horovod: Horovod) -> str:
    """Return what Horovod was built with: "MPI Gloo NCCL"."""
    built = {"MPI": horovod.mpi_built(), "Gloo": horovod.gloo_built(), "NCCL": horovod.nccl_built()}
    return " ".join(name for name, is_built in built.items() if is_built)


def serve_gloo(
    server: Callable[[tuple[str, int], type, bool], HTTPServer],
    handler: type,
    identity: Identity,
    host: str,
    port: int,
    timeout_seconds: int,
) -> None:
    """Serve on worker 0, on the others wait for it; then tell Horovod where it is, by its variables.

    Raises OSError where the port is taken, and RuntimeError where nobody serves in time.
    """
    if identity.rank == 0:
        served = server(("", port), handler, False)
        # As long as this process lives, as the store of native DDP does.
        Thread(target=served.serve_forever, args=[SHUTDOWN_POLL_SECONDS], daemon=True).start()
        port = served.server_port
    else:
        _wait_for_server(host, port, timeout_seconds)
    # What `horovodrun` would set for this worker, with every worker as a host of its own: which of them share
    # one matters for hierarchical sums alone, which nothing here switches on.
    variables = {
        "RANK": identity.rank, "SIZE": identity.size, "LOCAL_RANK": 0, "LOCAL_SIZE": 1,
        "CROSS_RANK": identity.rank, "CROSS_SIZE": identity.size, "HOSTNAME": f"worker{identity.rank}",
        "GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(host), "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", ""),
        "GLOO_TIMEOUT_SECONDS": timeout_seconds + round(dilated(FALLBACK_SECONDS)),
    }  # fmt: skip
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in variables.items()})


def _wait_for_server(host: str, port: int, timeout_seconds: float) -> None:
    # Gloo itself would try for two seconds only.
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=timeout_seconds).close()
        except OSError as error:
            if time.monotonic() > deadline:
                limit = f"{timeout_seconds / dilation():.0f} s (training.timeout_seconds)"
                raise RuntimeError(f"{error}, for {limit}") from error
            time.sleep(POLL_SECONDS)
        else:
            return
