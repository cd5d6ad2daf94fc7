"""Threads of this process and their CPU seconds; Linux only."""

import os
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

TASKS = Path("/proc/self/task")
# Of a clock's number, beside the thread's: what the scheduler counted of one thread (clock_getcpuclockid(3)).
CPU_CLOCK_OF_THREAD = 6


def thread_ids() -> frozenset[int]:
    """Return the threads of this process; empty where the system does not list them."""
    return frozenset(int(path.name) for path in TASKS.iterdir()) if TASKS.is_dir() else frozenset()


def thread_cpu_seconds(threads: Iterable[int]) -> float:
    """Return the CPU seconds of these threads of this process together, in two microseconds for each."""
    seconds = 0.0
    for task in threads:
        with suppress(OSError):  # it has ended
            seconds += time.clock_gettime((~task << 3) | CPU_CLOCK_OF_THREAD)
    return seconds


def seconds_worked(waiting: Collection[int]) -> float:
    """Return the CPU seconds of children and of all threads but the caller and those `waiting`."""
    own = thread_ids() - {threading.get_native_id(), *waiting} | {os.getpid()}
    seconds = thread_cpu_seconds(own)
    for children in TASKS.glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                seconds += stat_seconds(Path("/proc", child), ended_children=True)
    return seconds


def stat_seconds(folder: Path, ended_children: bool = False) -> float:
    """Return the CPU seconds of a process or thread by its folder in /proc. Raises OSError where it ended."""
    # The name in brackets may hold spaces and brackets; utime, stime, cutime, cstime are fields 14 to 17.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if ended_children else 13])) / os.sysconf("SC_CLK_TCK")
