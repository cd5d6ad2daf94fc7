"""Launch workers on this machine by mpiexec, stop them, and tell which other programs compute.

The workers run in a session of their own, so that the terminal's Ctrl-C reaches this process alone: the first
lets the workers save, a second one ends them at once.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import psutil
from rich.console import Console

from slurm.launch.preflight import has_package
from unet_scaling.base.errors import EXIT_BUG, UserError
from unet_scaling.base.files import open_to_append
from unet_scaling.base.progress import STEPS_VARIABLE
from unet_scaling.format.disturbance import DISTURBED_SHARE
from unet_scaling.group.identity import CORES_VARIABLE, FIRST_PORT, IDENTITY_VARIABLES, KEEP_MEMORY, PORTS
from unet_scaling.group.watchdog import busy_seconds

# Called with the process id of mpiexec and the command of a worker.
WhileRunning = Callable[[int, Sequence[str]], None]
# Each look takes a little time from the workers.
LOOK_SECONDS = 1.0
# mpiexec starts them in less than one; a host name that is looked up in vain takes half a minute.
WORKER_START_SECONDS = 60.0
# From <linux/prctl.h>: the signal that the kernel sends to a process when its parent dies.
PR_SET_PDEATHSIG = 1
# mpiexec must not bind processes itself: the workers take their cores, the same way under every MPI. It forks
# them on this host: from a shell that belongs to a job it would call srun, which waits for cores for ever.
MPI_ENVIRONMENT = {
    "HYDRA_LAUNCHER": "fork",
    "I_MPI_HYDRA_BOOTSTRAP": "fork",
    "I_MPI_PIN": "0",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
# Prefixes of variables by which resource managers and launchers say where and how to start processes.
# Variables that tune an MPI (FI_, UCX_, OMPI_MCA_btl, I_MPI_FABRICS) are kept.
PLACE_VARIABLES = (
    "SLURM", "SRUN_", "SALLOC_", "SBATCH_", "PBS_", "LSB_", "LSF_", "SGE_", "PE_HOSTFILE", "OAR_",
    "COBALT_", "FLUX_", "LOADL_", "HYDRA_", "MPIEXEC_", "I_MPI_HYDRA_", "I_MPI_PERHOST", "I_MPI_JOB_",
    "I_MPI_PMI", "OMPI_MCA_plm", "OMPI_MCA_ras", "OMPI_MCA_rmaps", "PRTE_",
)  # fmt: skip
# SIGHUP: the terminal's connection has ended.
STOP_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Unlike SIGTERM, it does not end workers that still load their images.
WORKER_SIGNAL = signal.SIGUSR2
# `timeout` signals a process and then its group: two signals, one request.
SAME_REQUEST_SECONDS = 0.3
# The counters advance in ticks of 10 ms: 2 s show a share of 5 % on one core as 10 ticks.
OBSERVED_SECONDS = 2.0
# The most processes that the warning names, in one line.
MOST_NAMED_PROCESSES = 3


def launch(
    program: Sequence[str],
    workers: int,
    output: Path,
    cores_each: int | None,
    while_running: WhileRunning | None = None,
    steps_file: Path | None = None,
) -> int:
    """Start workers of `python PROGRAM...`, each on that many cores of its own; return mpiexec's exit code.

    None leaves all cores to all workers. What the workers print is appended to `output`; worker 0 counts its
    steps in `steps_file`. `while_running` is called about once a second with the process of mpiexec and the
    command of a worker. Where it raises, all workers are ended at once. Raises UserError where there is no
    mpiexec, or where it starts no worker.
    """
    worker = [sys.executable, *program]
    asked = {CORES_VARIABLE: cores_each, STEPS_VARIABLE: steps_file}
    environment = launch_environment() | {name: str(value) for name, value in asked.items() if value}
    with open_to_append(output) as sink:
        process = subprocess.Popen(
            [mpiexec_program(), "-n", str(workers), *worker], stdin=subprocess.DEVNULL, stdout=sink,
            stderr=subprocess.STDOUT, env=environment, close_fds=False, start_new_session=True,
            preexec_fn=partial(_end_with, os.getpid()),
        )  # fmt: skip
        try:
            return _wait(process, worker, while_running)
        finally:
            if process.poll() is None:  # the wait was interrupted
                for below in descendants(process.pid):
                    with suppress(psutil.Error):
                        below.kill()
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], worker: Sequence[str], look: WhileRunning | None) -> int:
    """Return the exit code of mpiexec. Raises UserError where it has started no worker in time."""
    deadline = time.monotonic() + WORKER_START_SECONDS
    started = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=LOOK_SECONDS)
        started = started or bool(worker_processes(process.pid, worker))
        if not started and time.monotonic() > deadline:
            raise UserError(_why_not_started(process.pid))
        if look:
            look(process.pid, worker)


def _why_not_started(mpiexec: int) -> str:
    """Return which programs mpiexec waits for instead of starting workers, often srun or ssh."""
    names = []
    for process in descendants(mpiexec):
        with suppress(psutil.Error):  # it has ended meanwhile
            names.append(process.name())
    program = mpiexec_program()
    return (
        f"{program} started no worker in {WORKER_START_SECONDS:.0f} s; it waits for "
        f"{', '.join(names) or 'none'}: try {program} -n 2 hostname, or install another MPI"
    )


def _end_with(parent: int) -> None:
    """Let the kernel end this process, which becomes mpiexec, when the launcher dies by whatever signal.

    mpiexec and its workers also hold the lock of the study (study_folder.py) until the last has ended.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(EXIT_BUG)


def mpiexec_program() -> str:
    """Return the mpiexec beside this Python, or else that of the path. Raises UserError where none is."""
    beside = Path(sys.executable).parent / "mpiexec"
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        raise UserError(
            "mpiexec not found; environment/install.sh brings one, or load your site's MPI module"
        )
    return program


def launch_environment() -> dict[str, str]:
    """Return the environment of mpiexec and its workers on this host, with a free port for their rendezvous.

    Variables of a job, a step or another launch are left out.
    """
    foreign = (*IDENTITY_VARIABLES, *PLACE_VARIABLES)
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    intel = {}
    if has_package("impi-rt"):  # the package does not set its own paths
        libraries = [f"{sys.prefix}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        intel = {"I_MPI_ROOT": sys.prefix, "LD_LIBRARY_PATH": ":".join(libraries)}
    return KEEP_MEMORY | own | MPI_ENVIRONMENT | intel | rendezvous


def _free_port() -> int:
    """Return a port below the ephemeral range on which nothing listens now."""
    for offset in range(PORTS):
        port = FIRST_PORT + (os.getpid() + offset) % PORTS
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UserError(f"no free port between {FIRST_PORT} and {FIRST_PORT + PORTS}")


class StopRequest:
    """The user's request to stop, and the workers that it was passed on to."""

    def __init__(self) -> None:
        self.received = False
        self._received_at = 0.0
        self._told: set[int] = set()

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal: note the first one, and raise KeyboardInterrupt at the second."""
        if not self.received:
            self._received_at = time.monotonic()
        elif time.monotonic() - self._received_at > SAME_REQUEST_SECONDS:
            raise KeyboardInterrupt
        self.received = True

    def pass_on(self, mpiexec: int, command: Sequence[str]) -> None:
        """Tell each worker of this mpiexec once, as soon as it is ready to be told."""
        for worker in worker_processes(mpiexec, command):
            if worker.pid not in self._told and _catches(worker.pid, WORKER_SIGNAL):
                with suppress(psutil.NoSuchProcess):
                    worker.send_signal(WORKER_SIGNAL)
                self._told.add(worker.pid)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Yield the request to stop; signals that were ignored, as under nohup, stay so."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in STOP_REQUESTS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, request.note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def descendants(process: int) -> list[psutil.Process]:
    """Return all processes below this one; none where it has ended."""
    try:
        return list(psutil.Process(process).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def worker_processes(mpiexec: int, command: Sequence[str]) -> list[psutil.Process]:
    """Return the workers below mpiexec, not what they forked, which has the same command line."""
    workers: dict[int, psutil.Process] = {}
    for process in descendants(mpiexec):  # parents come first
        with suppress(psutil.Error):  # it has ended meanwhile
            if process.ppid() not in workers and process.cmdline() == list(command):
                workers[process.pid] = process
    return list(workers.values())


def _catches(process: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for this signal; without one, the signal would end it."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


def say_whether_quiet(console: Console, seconds: float = OBSERVED_SECONDS) -> bool:
    """Print which share of this process's cores others use; return whether that is small."""
    cores = os.sched_getaffinity(0)
    processes = _processor_seconds()
    busy_before = busy_seconds(cores)
    begin = time.monotonic()
    time.sleep(seconds)
    busy_after = busy_seconds(cores)
    watched = time.monotonic() - begin
    if busy_before is None or busy_after is None:
        return True
    share = min(1.0, (busy_after - busy_before) / (len(cores) * watched))
    text = f"{100 * share:.0f} % of {len(cores)} cores used by others"
    if share < DISTURBED_SHARE:
        console.print(f"the machine is quiet: {text}")
        return True
    used = [
        ((after - processes.get(pid, (name, 0.0))[1]) / watched, f"{name} (process {pid})")
        for pid, (name, after) in _processor_seconds().items()
    ]
    busiest = sorted((each for each in used if each[0] >= DISTURBED_SHARE), reverse=True)
    named = [f"{name} {100 * share:.0f} % of a core" for share, name in busiest[:MOST_NAMED_PROCESSES]]
    who = ", ".join(named) or "none of this machine's processes: its host may be busy"
    advice = "what is measured now may be disturbed; run --wait-quiet waits until they are gone"
    console.print(f"the machine is not quiet: {text} ({who}); {advice}", style="yellow")
    return False


def _processor_seconds() -> dict[int, tuple[str, float]]:
    """Return name and CPU seconds of each other process; not its arguments, which may hold secrets."""
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times and process.pid != os.getpid():
            found[process.pid] = process.info["name"], times.user + times.system
    return found
