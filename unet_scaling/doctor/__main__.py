"""One worker of the launch doctor: report where it runs, join torch's and MPI's groups, measure.

    LAUNCHER python -m unet_scaling.doctor FOLDER WORKERS

It reports before it joins, so that a launch is understood that falls apart into groups of one.
"""

import argparse
import faulthandler
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unet_scaling.doctor.interfaces import gloo_interface, interface_addresses, own_address
from unet_scaling.doctor.measurements import clock_offset, operations_per_second
from unet_scaling.doctor.reports import REPORT_PATTERN, WorkerReport, write_worker_report
from unet_scaling.doctor.trial import trial_config, twin_functions
from unet_scaling.group.device import own_device
from unet_scaling.group.group import Group
from unet_scaling.group.horovod_controller import built_with
from unet_scaling.group.identity import LAUNCHERS, Identity, identify
from unet_scaling.group.provenance import speed_variables, versions
from unet_scaling.group.shared_memory import prepare_shared_memory_for_mpi
from unet_scaling.group.verification import own_facts
from unet_scaling.group.watchdog import blocking, start_watchdog
from unet_scaling.measure.ping_pong import measure_pairs
from unet_scaling.study.errors import EXIT_BUG, UserError, leave, run_worker

# The last workers of many on a busy node take half a minute to import torch.
JOIN_TIMEOUT_SECONDS = 60
# In which the others report their part of a failure, before the launcher ends them.
REPORT_DRAIN_SECONDS = 3.0
REPORT_LOOK_SECONDS = 0.2
# Of all workers together: a shared file system must bear them.
REPORT_LOOKS_PER_SECOND = 200
# 1 B for the latency; then up to 4 MiB, more than the gradients of the published network.
DOCTOR_BYTES = (1, *(4**power for power in range(8, 12)))


# Many packets of any network; what came before fits into one.
LARGE_MESSAGE_BYTES = 100_000


@dataclass
class Reporter:
    """The report of this worker, written anew with each change."""

    folder: Path
    report: WorkerReport

    def update(self, **values: object) -> None:
        self.report = self.report.model_copy(update=values)
        write_worker_report(self.folder, self.report)

    def give_up(self) -> None:
        """Report that another worker did not come, and end this one. Called by the watchdog's thread."""
        self.update(
            problem=f"after it {self.report.stage}, waited {JOIN_TIMEOUT_SECONDS} s for another worker"
        )
        leave(EXIT_BUG)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("workers", type=int)
    arguments = parser.parse_args()
    reporter = Reporter(arguments.folder, first_report())
    reporter.update()
    _wait_for_reports(arguments.folder, arguments.workers)
    start_watchdog(JOIN_TIMEOUT_SECONDS, reporter.give_up)
    try:
        _examine(reporter, arguments.workers)
    except Exception as error:
        reporter.update(problem=str(error) or type(error).__name__)
        time.sleep(REPORT_DRAIN_SECONDS)
        raise


def first_report() -> WorkerReport:
    """Return what this worker knows before it has joined any other."""
    problem = ""
    try:
        identity = identify(os.environ)
    except UserError as error:
        identity = Identity(0, 1, 0, "none")
        problem = str(error)
    device = own_device(identity) if torch.cuda.is_available() else torch.device("cpu")
    addresses = interface_addresses()
    return WorkerReport(
        problem=problem,
        rank=identity.rank,
        size=identity.size,
        launcher=identity.launcher,
        launcher_variables=_launcher_variables(),
        facts=own_facts(identity, device, speed_variables()),
        host_cores=os.cpu_count() or 1,
        versions=versions(),
        addresses=addresses,
        interface=gloo_interface(addresses),
        own_address=own_address(),
    )


def _launcher_variables() -> dict[str, str]:
    names = {name for launcher in LAUNCHERS for name in (launcher.rank, launcher.size)}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def _wait_for_reports(folder: Path, workers: int) -> None:
    """Wait until all have reported: a failure of the first to join ends those that would come later."""
    deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
    pause = max(REPORT_LOOK_SECONDS, workers / REPORT_LOOKS_PER_SECOND)
    while len(list(folder.glob(REPORT_PATTERN))) < workers and time.monotonic() < deadline:
        time.sleep(pause)


def _examine(reporter: Reporter, workers: int) -> None:
    if reporter.report.size == workers:
        _examine_torch(reporter, workers)
        _examine_mpi(reporter, workers)
    else:
        reporter.update(stage="finished")


def _examine_torch(reporter: Reporter, workers: int) -> None:
    twin = twin_functions("pytorch_native")
    group = twin["join_group"](trial_config("pytorch_native", workers, JOIN_TIMEOUT_SECONDS))
    reporter.update(
        stage="joined by torch",
        joined_workers=group.size,
        facts=own_facts(group.identity, group.device, speed_variables()),
    )
    _measure(reporter, group)
    twin["leave_group"]()
    with suppress(ImportError):  # a study of native DDP needs no Horovod
        reporter.update(horovod_built=built_with(twin_functions("horovod")["hvd"]))


def _measure(reporter: Reporter, group: Group) -> None:
    offset, error = clock_offset(group)
    speed = operations_per_second(group)
    group.wait_for_all()
    reporter.update(
        stage="exchanged small messages",
        clock_offset_seconds=offset,
        clock_error_seconds=error,
        operations_per_second=speed,
    )
    group.gather_array(np.zeros(LARGE_MESSAGE_BYTES // 8))
    reporter.update(stage="measured")


def _examine_mpi(reporter: Reporter, workers: int) -> None:
    """Join MPI's group and, where it holds all workers, time it between the hosts."""
    prepare_shared_memory_for_mpi()
    world = _mpi_world()
    size = world.Get_size()
    reporter.update(stage="joined by MPI", mpi_workers=size)
    if size == workers > 1:
        _require_same_rank(world.Get_rank(), reporter.report.rank)
        pairs = measure_pairs(world, world.allgather(socket.gethostname()), DOCTOR_BYTES)
        reporter.update(pairs=pairs if world.Get_rank() == 0 else [])
    # Before it leaves MPI: once one worker has, mpiexec may kill those that have not ended.
    reporter.update(stage="finished")
    with blocking:
        world.Barrier()
        _finalize()


def _mpi_world() -> Any:  # noqa: ANN401, mpi4py has no types
    """Start MPI, by a call of its own: only then can a start that hangs be ended."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    # It keeps every thread of Python waiting, the watchdog's too: a timer of C ends it.
    faulthandler.dump_traceback_later(JOIN_TIMEOUT_SECONDS, exit=True)
    MPI.Init()
    faulthandler.cancel_dump_traceback_later()
    return MPI.COMM_WORLD


def _finalize() -> None:
    from mpi4py import MPI

    MPI.Finalize()


def _require_same_rank(mpi_rank: int, rank: int) -> None:
    if mpi_rank != rank:
        raise UserError(f"MPI numbers this worker {mpi_rank}, its launcher {rank}")


if __name__ == "__main__":
    run_worker(main)
