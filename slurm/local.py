"""Launch a study on this machine with mpiexec: every worker on its own cores, for both frameworks alike."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from rich.console import Console

from slurm.study_folder import OUTPUT_NAME, StudyFolder
from unet_scaling.allocator import KEEP_MEMORY
from unet_scaling.config import PROJECT, Point, Study
from unet_scaling.errors import EXIT_BUG, EXIT_DIVERGED, UserError
from unet_scaling.files import open_to_append
from unet_scaling.identity import CORES_VARIABLE, FIRST_PORT, PORTS
from unet_scaling.record import RECORD_NAME, read_record

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


def cores_per_worker(study: Study, cores: int) -> int:
    """Equal at every worker count: what the largest one leaves to each; a UserError where that is none."""
    largest = max(study.workers)
    if largest > cores:
        raise UserError(
            f"study {study.name}: workers = {largest} need {largest} cores, this machine gives {cores}; "
            f"the largest worker count here is {cores}"
        )
    return cores // largest


def launch(program: Sequence[str], workers: int, output: Path, cores_each: int | None) -> int:
    """Start workers of `python PROGRAM...`, each on that many cores of its own; return mpiexec's exit code.

    None leaves all cores to all workers. What the workers print is appended to `output`. Raises
    UserError where there is no mpiexec.
    """
    command = [_mpiexec(), "-n", str(workers), sys.executable, *program]
    environment = _environment() | ({CORES_VARIABLE: str(cores_each)} if cores_each else {})
    with open_to_append(output) as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment
        )
        try:
            return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec, and with it the workers, where the wait was interrupted."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()


def _mpiexec() -> str:
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UserError(
            "mpiexec not found; environment/install.sh brings one, or load your site's MPI module"
        )
    return found


def _environment() -> dict[str, str]:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return KEEP_MEMORY | os.environ | MPI_ENVIRONMENT | _where_intel_mpi_is() | meeting


def _where_intel_mpi_is() -> dict[str, str]:
    """What a site's module would set, for the Intel MPI of the package index: it does not find itself."""
    try:
        metadata.version("impi-rt")
    except metadata.PackageNotFoundError:
        return {}
    libraries = [f"{sys.prefix}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"I_MPI_ROOT": sys.prefix, "LD_LIBRARY_PATH": ":".join(libraries)}


def _free_port() -> int:
    """A port below the ephemeral range on which nothing listens now."""
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


def run_study(folder: StudyFolder, console: Console) -> None:
    """Run what is not complete, one run after the other; raise UserError at the end where runs failed."""
    cores = len(os.sched_getaffinity(0))
    share = cores_per_worker(folder.study, cores)
    with folder.locked():
        points = folder.prepare()
        missing = [point for point in points if folder.state(point).state != "complete"]
        console.print(
            f"{folder.study.name}: {len(points)} runs, {len(points) - len(missing)} complete already"
        )
        console.print(f"each worker owns {share} of {cores} cores; output in {folder.path}/*/{OUTPUT_NAME}")
        for number, point in enumerate(missing, start=1):
            console.print(f"[{number}/{len(missing)}] {point.run} ...", end=" ", markup=False)
            begin = time.monotonic()
            program = [str(PROJECT / point.framework / "train.py"), str(folder.run_folder(point))]
            launch(program, point.workers, folder.run_folder(point) / OUTPUT_NAME, share)
            console.print(_outcome(folder, point, time.monotonic() - begin), markup=False)
    _require_all_complete(folder, points)


def _outcome(folder: StudyFolder, point: Point, seconds: float) -> str:
    state = folder.state(point)
    if state.state != "complete":
        return f"{state.state} after {seconds:.0f} s: {state.reason or 'see ' + OUTPUT_NAME}"
    record = read_record(folder.run_folder(point) / RECORD_NAME)
    counted = [epoch for epoch in record.epochs if not epoch.warmup]
    speed = (
        sum(epoch.images for epoch in counted) / sum(epoch.seconds for epoch in counted) if counted else None
    )
    iou = record.results[-1].iou
    parts = [f"complete in {seconds:.0f} s"]
    parts += [f"{speed:.1f} images/s"] if speed else []
    parts += [f"IoU {iou:.3f}"] if iou is not None else []
    return ", ".join(parts)


def _require_all_complete(folder: StudyFolder, points: Sequence[Point]) -> None:
    states = {point.run: folder.state(point) for point in points}
    bad = {run: state for run, state in states.items() if state.state != "complete"}
    if bad:
        lines = [f"{run}: {state.state}: {state.reason}" for run, state in bad.items()]
        diverged = all(state.state == "diverged" for state in bad.values())
        raise UserError(
            f"{len(bad)} of {len(points)} runs did not complete; run the same command again to retry them\n  "
            + "\n  ".join(lines),
            EXIT_DIVERGED if diverged else EXIT_BUG,
        )
