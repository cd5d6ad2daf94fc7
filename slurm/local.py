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

from slurm.local_plan import take_over, to_repeat
from slurm.quiet import disturbed_reason, say_whether_quiet, set_disturbed_aside
from slurm.study_folder import OUTPUT_NAME, StudyFolder, cores_per_worker
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.group.identity import CORES_VARIABLE, FIRST_PORT, PORTS
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.disturbance import disturbance
from unet_scaling.study.errors import EXIT_BUG, EXIT_DIVERGED, UserError
from unet_scaling.study.files import open_to_append
from unet_scaling.study.record import RECORD_NAME, read_record

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

    mpiexec and its workers also hold the lock of the study (StudyFolder.locked) until the last has ended.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(EXIT_BUG)


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
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    return KEEP_MEMORY | os.environ | MPI_ENVIRONMENT | _where_intel_mpi_is() | rendezvous


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
        take_over(folder, configs, force)
        missing = [config for config in configs if folder.state(config).state != "complete"]
        console.print(
            f"{folder.study.name}: {len(configs)} runs, {len(configs) - len(missing)} complete already"
        )
        console.print(f"each worker owns {share} of {cores} cores; output in {folder.path}/*/{OUTPUT_NAME}")
        judged = configs if repeat_disturbed else missing
        if judged:
            say_whether_quiet(console)
        _run_all(folder, missing, share, console)
        _run_all(folder, _to_launch_again(folder, judged, console), share, console, again=True)
    _require_all_complete(folder, configs)


def _run_all(
    folder: StudyFolder, configs: Sequence[RunConfig], share: int, console: Console, again: bool = False
) -> None:
    """Launch these runs one after the other; `again`: they are complete, and their records are set aside."""
    for number, config in enumerate(configs, start=1):
        console.print(f"[{number}/{len(configs)}] {config.run} ...", end=" ", markup=False)
        begin = time.monotonic()
        if again:
            # Not before its turn: where the study is ended meanwhile, the others keep their complete records.
            set_disturbed_aside(folder.run_folder(config))
        program = [str(PROJECT / config.framework / "train.py"), str(folder.run_folder(config))]
        launch(program, config.workers, folder.run_folder(config) / OUTPUT_NAME, share)
        console.print(_outcome(folder, config, time.monotonic() - begin), markup=False)


def _to_launch_again(folder: StudyFolder, configs: Sequence[RunConfig], console: Console) -> list[RunConfig]:
    """Return the points whose launches were disturbed and are made again, and print which are not."""
    again = to_repeat(folder, configs)
    if again:
        console.print(
            f"{len(again)} disturbed, launched again; their records are kept as run.disturbed*.jsonl"
        )
    for config in configs:
        complete = folder.state(config).state == "complete"
        if complete and config not in again and disturbed_reason(folder.run_folder(config)):
            text = f"{config.run}: disturbed again and again; it stays as it is, and the report says so"
            console.print(text, markup=False)
    return again


def _outcome(folder: StudyFolder, config: RunConfig, seconds: float) -> str:
    state = folder.state(config)
    if state.state != "complete":
        return f"{state.state} after {seconds:.0f} s: {state.reason or 'see ' + OUTPUT_NAME}"
    record = read_record(folder.run_folder(config) / RECORD_NAME)
    counted = [epoch for epoch in record.epochs if not epoch.warmup]
    speed = (
        sum(epoch.images for epoch in counted) / sum(epoch.seconds for epoch in counted) if counted else None
    )
    iou = record.results[-1].iou
    parts = [f"complete in {seconds:.0f} s"]
    parts += [f"{speed:.1f} images/s"] if speed else []
    parts += [f"IoU {iou:.3f}"] if iou is not None else []
    reason = disturbance(record).reason
    parts += [f"disturbed: {reason}"] if reason else []
    return ", ".join(parts)


def _require_all_complete(folder: StudyFolder, configs: Sequence[RunConfig]) -> None:
    states = {config.run: folder.state(config) for config in configs}
    bad = {run: state for run, state in states.items() if state.state != "complete"}
    if bad:
        lines = [f"{run}: {state.state}: {state.reason}" for run, state in bad.items()]
        diverged = all(state.state == "diverged" for state in bad.values())
        raise UserError(
            f"{len(bad)} of {len(configs)} runs did not complete; "
            "run the same command again to retry them\n  " + "\n  ".join(lines),
            EXIT_DIVERGED if diverged else EXIT_BUG,
        )
