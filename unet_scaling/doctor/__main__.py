"""One worker of the launch doctor: report where it runs, join torch's and MPI's groups, measure.

    LAUNCHER python -m unet_scaling.doctor FOLDER WORKERS

It reports before it joins, so that a launch is understood that falls apart into groups of one.
"""

import faulthandler
import os
import socket
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import torch

from unet_scaling.base.errors import EXIT_BUG, UserError, leave, run_worker
from unet_scaling.base.files import write_json_with_checksum
from unet_scaling.doctor.findings import GLOO_VARIABLE, REPORT_PATTERN, WorkerReport
from unet_scaling.group import rendezvous
from unet_scaling.group.group import Group
from unet_scaling.group.identity import LAUNCHERS, Identity, identify
from unet_scaling.group.watchdog import blocking, start_watchdog
from unet_scaling.group.worker import own_device, own_facts, speed_variables, versions
from unet_scaling.measure.epoch_meter import synchronized_seconds
from unet_scaling.measure.ping_pong import measure_pairs

# The last workers of many on a busy node take half a minute to import torch.
JOIN_TIMEOUT_SECONDS = 60
# The other workers report their part of a failure in this time, before the launcher ends them.
REPORT_DRAIN_SECONDS = 3.0
REPORT_LOOK_SECONDS = 0.2
# All workers together look so often at most, for the sake of a shared file system.
REPORT_LOOKS_PER_SECOND = 200
# 1 B for the latency; then up to 4 MiB, more than the gradients of the published network.
DOCTOR_BYTES = (1, *(4**power for power in range(8, 12)))
# Many packets of any network; what came before fits into one.
LARGE_MESSAGE_BYTES = 100_000
# The best one counts: that of the shortest sum.
CLOCK_READINGS = 9
# One product is milliseconds of a core, or of a GPU; several of them outlast a short disturbance.
MATRIX_ROWS = {"cpu": 512, "cuda": 4096}
PRODUCTS_PER_BLOCK = 8  # between two readings of the clock
COMPUTE_SECONDS = 1.0


class Reporter:
    """The report of this worker, written anew with each change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = first_report()
        self.update()

    def update(self, **values: object) -> None:
        self.report = self.report.model_copy(update=values)
        # A worker may not know its rank.
        name = REPORT_PATTERN.replace("*", f"{self.report.host}.{self.report.facts.process}")
        write_json_with_checksum(self.folder / name, self.report.model_dump(mode="json"))

    def give_up(self) -> None:
        """Report that another worker did not come, and end this one. Called by the watchdog's thread."""
        stage = self.report.stage
        self.update(problem=f"after it {stage}, waited {JOIN_TIMEOUT_SECONDS} s for another worker")
        leave(EXIT_BUG)


def main() -> None:
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    reporter = Reporter(folder)
    # A failure of the first to join would end those that come later: wait until all have reported.
    deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
    pause = max(REPORT_LOOK_SECONDS, workers / REPORT_LOOKS_PER_SECOND)
    while len(list(folder.glob(REPORT_PATTERN))) < workers and time.monotonic() < deadline:
        time.sleep(pause)
    start_watchdog(JOIN_TIMEOUT_SECONDS, reporter.give_up)
    try:
        if reporter.report.size == workers:
            examine_torch(reporter, workers)
            examine_mpi(reporter, workers)
        else:
            reporter.update(stage="finished")
    except Exception as error:
        reporter.update(problem=str(error) or type(error).__name__)
        time.sleep(REPORT_DRAIN_SECONDS)
        raise


def first_report() -> WorkerReport:
    """Return what this worker knows before it has joined any other."""
    problem = ""
    identity = Identity(0, 1, 0, "none")
    device = torch.device("cpu")
    try:
        identity = identify(os.environ)
        device = own_device(identity)
    except UserError as error:
        problem = str(error)
    variables = sorted({name for launcher in LAUNCHERS for name in (launcher.rank, launcher.size)})
    addresses = {
        name: entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in reversed(entries)  # of several, the first one counts
        if entry.family == socket.AF_INET
    }
    own_address = ""
    with suppress(OSError):
        own_address = socket.gethostbyname(socket.gethostname())
    # gloo takes the first of the interfaces named, or else the one with the address of the host's own name.
    named = os.environ.get(GLOO_VARIABLE, "").partition(",")[0]
    with_own_address = (name for name, address in addresses.items() if address == own_address)
    return WorkerReport(
        problem=problem,
        rank=identity.rank,
        size=identity.size,
        launcher=identity.launcher,
        launcher_variables={name: os.environ[name] for name in variables if name in os.environ},
        facts=own_facts(identity, device, speed_variables()),
        host_cores=os.cpu_count() or 1,
        versions=versions(),
        addresses=addresses,
        interface=named or next(with_own_address, ""),
        own_address=own_address,
    )


def examine_torch(reporter: Reporter, workers: int) -> None:
    """Join torch's group, exchange small and large messages, and measure clocks and speeds."""
    twin = rendezvous.twin_functions("pytorch_native")
    group = twin["join_group"](rendezvous.trial_config("pytorch_native", workers, JOIN_TIMEOUT_SECONDS))
    facts = own_facts(group.identity, group.device, speed_variables())
    reporter.update(stage="joined by torch", joined_workers=group.size, facts=facts)
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
    if group.device.type == "cuda":
        with blocking:  # by NCCL, as gradients travel
            group.sum_over_workers(torch.zeros(LARGE_MESSAGE_BYTES // 4, device=group.device)).cpu()
    reporter.update(stage="measured")
    twin["leave_group"]()
    with suppress(ImportError):  # a study of native DDP needs no Horovod
        reporter.update(horovod_built=rendezvous.built_with(rendezvous.twin_functions("horovod")["hvd"]))


def clock_offset(group: Group) -> tuple[float, float]:
    """Return the seconds by which this host's clock is ahead of worker 0's, and how wrong that can be.

    All leave a sum together, but for the time that the sum itself takes.
    """
    group.wait_for_all()  # opens connections
    readings = []
    for _ in range(CLOCK_READINGS):
        begin = time.perf_counter()
        group.wait_for_all()
        now = time.time()
        longest = max(group.gather_numbers(time.perf_counter() - begin))
        readings.append((longest, now - group.gather_numbers(now)[0]))
    error, offset = min(readings)
    return offset, error


def operations_per_second(group: Group) -> float:
    """Return how fast this worker multiplies matrices on its device while all others do the same."""
    rows = MATRIX_ROWS[group.device.type]
    matrix = torch.rand(rows, rows, device=group.device)

    def block_seconds() -> float:
        begin = synchronized_seconds(group.device)
        for _ in range(PRODUCTS_PER_BLOCK):
            torch.mm(matrix, matrix)
        return synchronized_seconds(group.device) - begin

    block_seconds()  # warm-up
    group.wait_for_all()
    deadline = time.monotonic() + COMPUTE_SECONDS
    blocks = []
    while time.monotonic() < deadline:
        blocks.append(block_seconds())
    return 2 * rows**3 * PRODUCTS_PER_BLOCK / statistics.median(blocks)


def examine_mpi(reporter: Reporter, workers: int) -> None:
    """Join MPI's group and, where it holds all workers, time it between the hosts."""
    rendezvous.prepare_shared_memory_for_mpi()
    import mpi4py

    # Started by a call of its own: only then can a start that hangs be ended.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    # It keeps every thread of Python waiting, the watchdog's too: a timer of C ends it.
    faulthandler.dump_traceback_later(JOIN_TIMEOUT_SECONDS, exit=True)
    MPI.Init()
    faulthandler.cancel_dump_traceback_later()
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    reporter.update(stage="joined by MPI", mpi_workers=world.Get_size())
    if world.Get_size() == workers > 1:
        if rank != reporter.report.rank:
            raise UserError(f"MPI numbers this worker {rank}, its launcher {reporter.report.rank}")
        pairs = measure_pairs(world, world.allgather(socket.gethostname()), DOCTOR_BYTES)
        reporter.update(pairs=pairs if rank == 0 else [])
    # Before it leaves MPI: once one worker has, mpiexec may kill those that have not ended.
    reporter.update(stage="finished")
    with blocking:
        world.Barrier()
        MPI.Finalize()


if __name__ == "__main__":
    run_worker(main)
