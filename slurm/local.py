"""Launch a study on this machine with mpiexec: every worker on its own cores, for both frameworks alike."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from rich.console import Console

from slurm.disturbed import disturbed_reason, is_to_be_repeated, set_disturbed_aside
from slurm.local_plan import cores_per_worker, take_over
from slurm.quiet import say_whether_quiet
from slurm.study_folder import StudyFolder
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.group.identity import CORES_VARIABLE, FIRST_PORT, PORTS
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.errors import EXIT_BUG, EXIT_DIVERGED, UserError
from unet_scaling.study.files import open_to_append
from unet_scaling.study.record import Record
from unet_scaling.study.run_state import RecordedRun
from unet_scaling.study.study_file import OUTPUT_NAME

# mpiexec must not bind processes itself: the workers take their cores, the same way under every MPI.
MPI_ENVIRONMENT = {
    "I_MPI_PIN": "0",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
# More than mpiexec takes to end all its workers.
TERMINATION_SECONDS = 20
# From <linux/prctl.h>: the signal that the kernel sends to a process when its parent dies.
PR_SET_PDEATHSIG = 1


def launch(program: Sequence[str], workers: int, output: Path, cores_each: int | None) -> int:
    """Start workers of `python PROGRAM...`, each on that many cores of its own; return mpiexec's exit code.

    None leaves all cores to all workers. What the workers print is appended to `output`. Raises
    UserError where there is no mpiexec.
    """
    command = [_mpiexec(), "-n", str(workers), sys.executable, *program]
    environment = _environment() | ({CORES_VARIABLE: str(cores_each)} if cores_each else {})
    with open_to_append(output) as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment,
            close_fds=False, preexec_fn=partial(_end_with, os.getpid()),
        )  # fmt: skip
        try:
            return process.wait()
        finally:
            _end(process)


def _end_with(parent: int) -> None:
    """Let the kernel end this process, soon mpiexec, when the launcher dies by whatever signal.

    mpiexec and its workers also hold the lock of the study (study_lock.py) until the last has ended.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(EXIT_BUG)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec, and with it the workers, where the wait was interrupted."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=TERMINATION_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _mpiexec() -> str:
    beside = Path(sys.executable).parent / "mpiexec"
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        raise UserError(
            "mpiexec not found; environment/install.sh brings one, or load your site's MPI module"
        )
    return program


def _environment() -> dict[str, str]:
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return KEEP_MEMORY | os.environ | MPI_ENVIRONMENT | _where_intel_mpi_is() | rendezvous


def _where_intel_mpi_is() -> dict[str, str]:
    """Return what a site's module would set: the Intel MPI of the package index does not find itself."""
    try:
        metadata.version("impi-rt")
    except metadata.PackageNotFoundError:
        return {}
    libraries = [f"{sys.prefix}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"I_MPI_ROOT": sys.prefix, "LD_LIBRARY_PATH": ":".join(libraries)}


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


def run_study(
    folder: StudyFolder, console: Console, repeat_disturbed: bool = False, force: Collection[str] = ()
) -> None:
    """Run what is not complete, one run after the other; raise UserError at the end where runs failed.

    Of these, launches that were disturbed are then made once more; `repeat_disturbed`: and of all others.
    """
    cores = len(os.sched_getaffinity(0))
    share = cores_per_worker(folder.study, cores)
    with folder.locked():
        configs = folder.prepare()
        missing = take_over(folder, configs, force)
        complete = len(configs) - len(missing)
        console.print(f"{folder.study.name}: {len(configs)} runs, {complete} complete already")
        console.print(f"each worker owns {share} of {cores} cores; output in {folder.path}/*/{OUTPUT_NAME}")
        judged = configs if repeat_disturbed else missing
        if judged:
            say_whether_quiet(console)
        _run_all(folder, missing, share, console)
        disturbed = [config for config in judged if is_to_be_repeated(folder.recorded(config), console)]
        _run_all(folder, disturbed, share, console, again=True)
    _require_all_complete(folder, configs)


def _run_all(
    folder: StudyFolder, configs: Sequence[RunConfig], share: int, console: Console, again: bool = False
) -> None:
    """Launch these runs one after the other; `again`: they are complete, and their records are set aside."""
    for number, config in enumerate(configs, start=1):
        console.print(f"[{number}/{len(configs)}] {config.run} ...", end=" ", markup=False)
        run_folder = folder.run_folder(config)
        begin = time.monotonic()
        if again:
            # Not before its turn: where the study is ended meanwhile, the others keep their complete records.
            set_disturbed_aside(run_folder)
        program = [str(PROJECT / config.framework / "train.py"), str(run_folder)]
        launch(program, config.workers, run_folder / OUTPUT_NAME, share)
        console.print(_outcome(folder.recorded(config), time.monotonic() - begin), markup=False)


def _outcome(run: RecordedRun, seconds: float) -> str:
    """Return how a launch ended: its speed and IoU where it is complete, or else why it is not."""
    if run.record is None or not run.state.is_complete:
        return f"{run.state.state} after {seconds:.0f} s: {run.state.reason or 'see ' + OUTPUT_NAME}"
    iou = run.record.results[-1].iou
    disturbed = disturbed_reason(run)
    parts = [
        f"complete in {seconds:.0f} s",
        _speed(run.record),
        f"IoU {iou:.3f}" if iou is not None else "",
        f"disturbed: {disturbed}" if disturbed else "",
    ]
    return ", ".join(filter(None, parts))


def _speed(record: Record) -> str:
    """Return the throughput after the warm-up as text; empty where no epoch counts."""
    counted = [epoch for epoch in record.epochs if not epoch.warmup]
    if not counted:
        return ""
    return f"{sum(epoch.images for epoch in counted) / sum(epoch.seconds for epoch in counted):.1f} images/s"


def _require_all_complete(folder: StudyFolder, configs: Sequence[RunConfig]) -> None:
    states = {config.run: folder.recorded(config).state for config in configs}
    incomplete = {run: state for run, state in states.items() if not state.is_complete}
    if incomplete:
        lines = [f"{run}: {state.state}: {state.reason}" for run, state in incomplete.items()]
        diverged = all(state.state == "diverged" for state in incomplete.values())
        raise UserError(
            f"{len(incomplete)} of {len(configs)} runs did not complete; "
            "run the same command again to retry them\n  " + "\n  ".join(lines),
            EXIT_DIVERGED if diverged else EXIT_BUG,
        )
