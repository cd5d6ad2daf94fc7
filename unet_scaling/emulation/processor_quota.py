"""The quota of a worker of a dilated cluster: its cores, slowed, as a part of this machine's processors.

The worker starts without it, since nothing of its imports is measured, and enters before the first clock
starts. It leaves by its end; the next worker, or `slurm/virtual_cluster down`, removes its groups.

Quotas are those of control groups of Linux, of both versions. Needs nothing but the standard library, as the
virtual cluster, which makes the group above them.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from typing import Literal

from unet_scaling.base.errors import UserError

QUOTA_FOLDER_VARIABLE = "UNET_SCALING_QUOTA_FOLDER"
"""The control group in which every worker makes its own."""
MOUNTS = Path("/proc/self/mounts")
# Files of a group in version 1 and in version 2, by which its version is known.
QUOTA_V1 = "cpu.cfs_quota_us"
PERIOD_V1 = "cpu.cfs_period_us"
QUOTA_V2 = "cpu.max"
# The part of a busy processor that a group has beside others: file and largest value of each version.
WEIGHT_V1 = ("cpu.shares", 262_144)
WEIGHT_V2 = ("cpu.weight", 10_000)
# In version 2 a controller is there for the groups below a folder only if this file names it.
ENABLED_CONTROLLERS_V2 = "cgroup.subtree_control"
# A thread enters a group by its number in the file: of version 1 and of version 2.
THREADS_V1 = "tasks"
THREADS_V2 = "cgroup.threads"
# Begins the names of groups of single threads.
THREAD_GROUP = "thread"
# The kernel refuses shorter quotas and periods, and longer periods.
SHORTEST_QUOTA_MICROSECONDS = 1_000
LONGEST_PERIOD_MICROSECONDS = 1_000_000
# One processor takes so much at once from a group's quota (kernel.sched_cfs_bandwidth_slice_us).
SLICE_MICROSECONDS = 5_000


@dataclass(frozen=True)
class ProcessorQuota:
    """The control group of this worker: `cores` of the emulated machine, on `processors` of this one."""

    folder: Path
    cores: int
    processors: int

    def throttled_seconds(self) -> float:
        """Return for how long, by this machine's clock, it or that of a thread was used up.

        Summed over processors and threads.
        """
        return sum(map(throttled_seconds, [self.folder, *self.folder.glob(f"{THREAD_GROUP}*")]))


def enter_quota(
    cluster: Path, rank: int, cores: int, threads: Collection[int], factor: float
) -> ProcessorQuota:
    """Put this process and its loader processes under the quota of so many cores, each slowed by a factor.

    Where it has several, each of its `threads` gets at most one: under the quota of the worker alone, one
    could run as fast as all its cores together. A thread that starts later shares the core of the one that
    started it. Raises UserError where the kernel refuses a group in the folder of the `cluster`.
    """
    processors = len(os.sched_getaffinity(0))
    for ended in cluster.glob("worker*.*"):  # for a group of each thread adds up
        if not Path("/proc", ended.suffix[1:]).exists():
            with suppress(OSError):  # another worker removes it, or it has a loader process yet
                remove_group(ended)
    folder = cluster / f"worker{rank}.{os.getpid()}"
    make_quota_group(folder, quota_of_cores(cores / factor, processors))
    children = [child.pid for child in active_children() if child.pid is not None]
    enter_group(folder, [os.getpid(), *children])
    if cores > 1:
        for thread in threads:
            enter_thread_group(folder, thread, quota_of_cores(1 / factor, processors=1))
    return ProcessorQuota(folder, cores, processors)


def own_processors(number: int, cores: int, processors: list[int]) -> list[int]:
    """Return which processors of this machine stand for so many cores of a worker, or host, of this number.

    All hosts are this machine, so workers are dealt out in turn. Never more than one has cores: its threads
    must not run at once where they could not there.
    """
    first = number * cores
    return sorted({processors[(first + number) % len(processors)] for number in range(cores)})


@dataclass(frozen=True)
class ProcessorHierarchy:
    """The mounted hierarchy of control groups that has the controller `cpu`."""

    version: Literal[1, 2]
    root: Path


@dataclass(frozen=True)
class Quota:
    """So many microseconds of processor time for all processes of a group in each period."""

    quota_microseconds: int
    period_microseconds: int


def processor_hierarchy(mounts: Path = MOUNTS) -> ProcessorHierarchy:
    """Return the hierarchy that shares out processors. Raises UserError where none is mounted."""
    for _, root, kind, options, *_ in map(str.split, _text(mounts).splitlines()):
        if kind == "cgroup" and "cpu" in options.split(","):
            return ProcessorHierarchy(1, Path(root))
        if kind == "cgroup2" and "cpu" in _text(Path(root, "cgroup.controllers")).split():
            return ProcessorHierarchy(2, Path(root))
    raise UserError(
        "no control groups with the controller 'cpu' are mounted here (version 1: mount -t cgroup -o cpu; "
        "version 2: mount -t cgroup2), so no worker can be given a part of a core"
    )


def _text(path: Path) -> str:
    """Return what a file holds; empty where it cannot be read."""
    with suppress(OSError):
        return path.read_text()
    return ""


def quota_of_cores(cores: float, processors: int) -> Quota:
    """Return the quota that gives a group so many cores, a fraction of them, on so many processors.

    As short as the kernel allows: what a group has left of its quota runs at full speed. On several
    processors each takes a slice at a time, and a shorter quota would leave some of them without any.
    """
    several = processors > 1
    quota = SLICE_MICROSECONDS * processors if several else SHORTEST_QUOTA_MICROSECONDS
    period = max(SHORTEST_QUOTA_MICROSECONDS, round(quota / cores))
    if period > LONGEST_PERIOD_MICROSECONDS:
        raise UserError(
            f"a quota of {cores:.4g} cores is too small: the kernel gives {quota} microseconds in at most "
            f"{LONGEST_PERIOD_MICROSECONDS}; use a smaller dilation"
        )
    return Quota(max(SHORTEST_QUOTA_MICROSECONDS, round(period * cores)), period)


def enable_below(folder: Path) -> None:
    """Let the groups below a group of version 2 have quotas; those of version 1 always may."""
    _write(folder / ENABLED_CONTROLLERS_V2, "+cpu")


def make_quota_group(folder: Path, quota: Quota) -> None:
    """Make a group with this quota. Raises UserError with the reason where the kernel refuses it."""
    try:
        folder.mkdir(exist_ok=True)
        if (folder / QUOTA_V1).exists():
            _write(folder / PERIOD_V1, quota.period_microseconds)
            _write(folder / QUOTA_V1, quota.quota_microseconds)
        else:
            _write(folder / QUOTA_V2, f"{quota.quota_microseconds} {quota.period_microseconds}")
    except OSError as error:
        raise UserError(
            f"no quota of {quota.quota_microseconds} in {quota.period_microseconds} microseconds of a "
            f"processor: {error.filename}: {error.strerror}; needed are root, a kernel with "
            "CONFIG_CFS_BANDWIDTH, a container that may write to /sys/fs/cgroup, and no smaller quota of the "
            "group above"
        ) from None


def prefer_group(folder: Path) -> None:
    """Let a group have processors before all others, up to its quotas. Raises OSError where it may not."""
    name, largest = WEIGHT_V1 if (folder / QUOTA_V1).exists() else WEIGHT_V2
    _write(folder / name, largest)


def enter_group(folder: Path, processes: list[int]) -> None:
    """Move processes with all their threads into a group. Raises UserError where the kernel refuses it."""
    with _entering():
        for process in processes:
            _write(folder / "cgroup.procs", process)


def enter_thread_group(group: Path, thread: int, quota: Quota) -> None:
    """Move a thread of this group into one of its own below it, with this quota.

    Raises UserError where the kernel refuses it. Nothing happens to a thread that has ended.
    """
    folder = group / f"{THREAD_GROUP}{thread}"
    is_version1 = (group / QUOTA_V1).exists()
    with _entering(), suppress(ProcessLookupError):
        folder.mkdir(exist_ok=True)
        if not is_version1:
            # First, since only a group of threads may lie below one that has processes.
            _write(folder / "cgroup.type", "threaded")
            enable_below(group)
        make_quota_group(folder, quota)
        _write(folder / (THREADS_V1 if is_version1 else THREADS_V2), thread)


@contextmanager
def _entering() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"no process or thread may enter its quota: {error.filename}: {error.strerror}; with control "
            "groups of version 2 only root may move its processes: submit as root"
        ) from None


def remove_group(folder: Path) -> None:
    """Remove a group with those below it. Raises OSError where a process has not left yet."""
    for below in [path for path in folder.iterdir() if path.is_dir()]:
        remove_group(below)
    folder.rmdir()


def _write(path: Path, value: object) -> None:
    # Without creating the file: in a folder that is no control group, nothing may look like one.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, str(value).encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # os.write does not name it
    finally:
        os.close(descriptor)


def throttled_seconds(folder: Path) -> float:
    """Return for how long the processes of a group had used up their quota, summed over the processors."""
    counts = dict(map(str.split, (folder / "cpu.stat").read_text().splitlines()))
    if "throttled_usec" in counts:
        return int(counts["throttled_usec"]) * 1e-6
    return int(counts["throttled_time"]) * 1e-9
