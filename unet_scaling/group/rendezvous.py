"""Rendezvous: the workers of a run find each other at one TCP address, where worker 0 serves.

It serves with what the framework itself brings: torch's TCPStore, or Horovod's HTTP server for Gloo. Gloo
asks that server where the workers are, which `horovodrun` would start; here workers come from `srun` or
`mpiexec`. Where MPI controls Horovod, the launcher has connected the workers, and nothing is served.
"""

import atexit
import os
import runpy
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from unet_scaling.base.errors import UserError
from unet_scaling.base.machine import machine_seconds, wall_seconds
from unet_scaling.base.texts import HIDE
from unet_scaling.group.identity import Identity, rendezvous_address
from unet_scaling.group.watchdog import blocking
from unet_scaling.study.config import FALLBACK_SECONDS, RunConfig, horovod_environment
from unet_scaling.study.frameworks import Framework, training_script
from unet_scaling.study.options import CONTROLLER_VARIABLES, Data, HorovodKnobs, Training

ANSWER = "answer"
# Worker 0 serves the store; it leaves after the others had the time to read the answer.
STORE_LINGER_SECONDS = 2

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
# Measured: MPICH with two workers crashes with 1 MiB, and runs with 4.
LEAST_BYTES = 2 * 2**20
# MPICH names its segment after job and step. A job that is requeued has the same ones: MPI would read what
# the attempt before left, and fail ("Message truncated").
LEFT_BY_MPI = "mpich_shm_*"
# Younger ones another worker of this host may be making at this moment.
LEAST_AGE_SECONDS = 5.0
WITHOUT_NCCL = (
    "Horovod is built without NCCL, by which native DDP averages on GPUs: build it with "
    "HOROVOD_GPU_OPERATIONS=NCCL, as environment/install.sh does with a CUDA toolkit or --cuda pip"
)
NCCL_ENDS_PROCESSES = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING")
POLL_SECONDS = 0.05
# Objects of torch and of Horovod, whose classes only a twin may import: a TCPStore, and the module.
Store = Any
Horovod = Any
# Nobody asks the server to end, so that it need not wake up to see.
SHUTDOWN_POLL_SECONDS = 1e6


@contextmanager
def rendezvous(
    identity: Identity, config: RunConfig, server: Callable[..., Any], handler: type | None = None
) -> Iterator[Store]:
    """Inside, this worker can join the framework's group; yields torch's store, where there is one.

    `server` is torch's TCPStore, or Horovod's RendezvousHTTPServer with its request `handler`. Raises
    UserError where the address is unknown or taken, where a worker does not arrive within
    training.timeout_seconds, and where MPI lacks shared memory.
    """
    if handler is not None:
        for name in CONTROLLER_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(horovod_environment(config))
        if is_mpi(config):
            prepare_shared_memory_for_mpi()
            with blocking:
                yield None
            return
    # NCCL would end a process whose peer is lost by SIGABRT, without a word: the watchdog reports it.
    for name in NCCL_ENDS_PROCESSES:
        os.environ.setdefault(name, "0")
    limit_seconds = round(wall_seconds(config.training.timeout_seconds))
    host, port = rendezvous_address(os.environ) if identity.size > 1 else ("localhost", 0)
    store = None
    try:
        if handler is None:
            store = open_store(server, identity, host, port, limit_seconds)
        else:
            serve_gloo(server, handler, identity, host, port, limit_seconds)
        with blocking:
            yield store
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"worker {identity.rank} of {identity.size} on {socket.gethostname()} could not join the group "
            f"at {host}:{port}: {str(error).splitlines()[0]}. "
            f"Is the port taken, a host missing, a worker not started, another network meant "
            f"(GLOO_SOCKET_IFNAME)?"
        ) from error


def open_store(
    store_class: Callable[..., Store], identity: Identity, host: str, port: int, timeout_seconds: int
) -> Store:
    """Return torch's store once all workers have reached it; worker 0 serves it.

    Its `timeout` is then the one for the group: it comes after the watchdog's, which names the option.
    Raises RuntimeError, on every worker that arrived, naming those that did not.
    """
    timeout = timedelta(seconds=timeout_seconds)
    store = store_class(host, port, None, identity.rank == 0, timeout, wait_for_workers=False)
    store.set(_key(identity.rank), socket.gethostname())
    if identity.rank == 0:
        store.set(ANSWER, _missing_peers(store, identity.size, timeout))
    store.wait([ANSWER], 2 * timeout)
    answer = store.get(ANSWER).decode()
    if answer:
        time.sleep(STORE_LINGER_SECONDS if identity.rank == 0 else 0)
        raise RuntimeError(answer)
    store.set_timeout(timeout + timedelta(seconds=wall_seconds(FALLBACK_SECONDS)))
    return store


def _missing_peers(store: Store, size: int, timeout: timedelta) -> str:
    """Return a sentence that names the workers which have not arrived in time; empty where all have."""
    deadline = time.monotonic() + timeout.total_seconds()
    missing = []
    for rank in range(size):
        left = max(deadline - time.monotonic(), 0.001)
        with suppress(RuntimeError):
            store.wait([_key(rank)], timedelta(seconds=left))
        if not store.check([_key(rank)]):
            missing.append(rank)
    if not missing:
        return ""
    hosts = dict.fromkeys(store.get(_key(rank)).decode() for rank in range(size) if rank not in missing)
    return (
        f"no worker {', '.join(map(str, missing))} after {machine_seconds(timeout.total_seconds()):.0f} s "
        f"(training.timeout_seconds); the others are on {', '.join(hosts)}"
    )


def _key(rank: int) -> str:
    return f"host of worker {rank}"


def require_all_workers(wrapper: str, found: int, config: RunConfig) -> None:
    """Raise UserError where a wrapper trains with another number of workers than the run has."""
    if found != config.workers:
        raise UserError(
            f"run {config.run} asks for {config.workers} workers, but {wrapper} counts {found}: unset its "
            "own variables (ACCELERATE_*, LT_*), and start the workers by srun or mpiexec"
        )


def hold_until_exit(process_group: object) -> None:
    """Keep a process group of torch until Python ends, to be called before it is destroyed.

    DDP's reducer holds the group, too. If it were the last to do so, its destructor would wait, holding the
    interpreter's lock, for a thread of Gloo, which may wait for that lock to free the tensors of the last
    sum: the worker would never end. Python's own reference releases the lock meanwhile.
    """
    atexit.register(id, process_group)


def prepare_shared_memory_for_mpi() -> None:
    """Remove what MPI must not find, before it starts; UserError where there is no room for it."""
    if not SHARED_MEMORY.is_dir():
        return
    remove_left_segments(SHARED_MEMORY)
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < LEAST_BYTES:
        raise UserError(
            f"{SHARED_MEMORY} of {socket.gethostname()} has {free / 2**20:.1f} MiB free, MPI needs more: "
            f"remove what fills it; in a container, bind the host's or ask for more (--shm-size)"
        )


def remove_left_segments(folder: Path) -> None:
    """Remove this user's segments of MPI that no process has mapped any more: their workers were killed."""
    mapped = _mapped_files()
    for path in folder.glob(LEFT_BY_MPI):
        # Another worker of this host may remove it first.
        with suppress(OSError):
            facts = path.stat()
            young = time.time() - facts.st_mtime < LEAST_AGE_SECONDS
            if facts.st_uid == os.getuid() and not young and str(path) not in mapped:
                path.unlink()


def _mapped_files() -> set[str]:
    """Return what the processes of this user have mapped; those of others cannot be read."""
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped |= {line.split(maxsplit=5)[-1] for line in maps.read_text(errors="replace").splitlines()}
    return mapped


def is_mpi(config: RunConfig) -> bool:
    """Return whether MPI controls Horovod in this run, as it does by default."""
    return not isinstance(config.knobs, HorovodKnobs) or config.knobs.controller != "gloo"


def horovod_transport(horovod: Horovod, identity: Identity) -> dict[str, str]:
    """Return Horovod's controller and what it was built with; verify that it numbers the workers alike.

    Raises UserError where this worker has taken a GPU, and Horovod lacks NCCL.
    """
    numbered = horovod.rank(), horovod.size()
    assert numbered == (identity.rank, identity.size), f"{identity}, Horovod {numbered}"
    import torch  # not at the top: login nodes read this file

    # How a script that is not the project's averages is its own affair.
    is_twin = identity.launcher != "script"
    if is_twin and torch.cuda.is_initialized() and not horovod.nccl_built():  # type: ignore[no-untyped-call]
        raise UserError(f"worker {identity.rank} on {socket.gethostname()}: {WITHOUT_NCCL}, or {HIDE}")
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
        # Serve as long as this process lives, as the store of native DDP does.
        Thread(target=served.serve_forever, args=[SHUTDOWN_POLL_SECONDS], daemon=True).start()
        port = served.server_port
    else:
        _wait_for_server(host, port, timeout_seconds)
    # These are set by `horovodrun`, here with every worker as a host of its own: which of them share
    # one matters for hierarchical sums alone, which nothing here switches on.
    variables = {
        "RANK": identity.rank, "SIZE": identity.size, "LOCAL_RANK": 0, "LOCAL_SIZE": 1,
        "CROSS_RANK": identity.rank, "CROSS_SIZE": identity.size, "HOSTNAME": f"worker{identity.rank}",
        "GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(host), "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", ""),
        "GLOO_TIMEOUT_SECONDS": timeout_seconds + round(wall_seconds(FALLBACK_SECONDS)),
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
                limit = f"{machine_seconds(timeout_seconds):.0f} s (training.timeout_seconds)"
                raise RuntimeError(f"{error}, for {limit}") from error
            time.sleep(POLL_SECONDS)
        else:
            return


def trial_config(framework: Framework, workers: int, timeout_seconds: int = 300) -> RunConfig:
    """Return the configuration of a run that reads no images and trains nothing."""
    return RunConfig(
        study="trial",
        run="trial",
        framework=framework,
        workers=workers,
        repeat=1,
        seed=0,
        data=Data(folder="none", image_height=16, image_width=16),
        training=Training(epochs=0, timeout_seconds=timeout_seconds),
    )


def twin_functions(framework: Framework) -> dict[str, Any]:
    """Return the functions of a twin by name, as `join_group` and `leave_group`."""
    return runpy.run_path(str(training_script(framework)))
