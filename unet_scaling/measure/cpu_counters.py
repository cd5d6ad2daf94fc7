"""CPU time, scheduling and memory of this process; Linux only.

CPU seconds of threads come from /proc/self/task: its schedstat where the kernel keeps one
(nanoseconds), else its stat (clock ticks). Those of whole cores come from /proc/stat (clock ticks).
Layouts: proc(5).
"""

import os
import resource
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

from unet_scaling.group.watchdog import TASKS, stat_seconds, thread_ids
from unet_scaling.study.record_lines import CpuFacts

PROCESSES = Path("/proc")
CORES = Path("/proc/stat")
CPUINFO = Path("/proc/cpuinfo")
FREQUENCIES = Path("/sys/devices/system/cpu")
# The largest of other threads are recorded by their names; the rest is noise.
NAMED_THREADS = 3
NANOSECONDS = 1e-9
MICROSECOND_DIGITS = 6
# No thread has this name: Linux cuts names at 15 characters.
COMMUNICATION = "threads of the communication"
# The unit of ru_maxrss on Linux.
KIBIBYTE = 1024
# Columns of a core in /proc/stat: user, nice, system, irq, softirq, steal. Not idle and iowait, in which
# nobody uses the core, nor guest and guest_nice, which user and nice include.
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Counters:
    """Everything counted since the start of the process."""

    process_seconds: float
    training_seconds: float
    training_runqueue_seconds: float | None
    peak_memory_bytes: int
    threads: dict[int, tuple[str, float]]
    cores: frozenset[int]
    core_seconds: float | None
    children_seconds: float


def read_counters() -> Counters:
    """Return the counters of this process and of the calling thread."""
    cores = frozenset(os.sched_getaffinity(0))
    others = thread_ids() - {os.getpid()}
    return Counters(
        process_seconds=time.process_time(),
        training_seconds=time.thread_time(),
        training_runqueue_seconds=_runqueue_seconds(),
        peak_memory_bytes=peak_memory_bytes(),
        threads={task: thread for task in others if (thread := _thread(task)) is not None},
        cores=cores,
        core_seconds=busy_seconds(cores),
        children_seconds=_children_seconds(),
    )


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE


def busy_seconds(cores: Collection[int]) -> float | None:
    """Return the seconds that these cores were not idle since the system started, for any process or stolen.

    Stolen is what the host of a virtual machine gave to others. None where /proc/stat lacks one of the cores.
    """
    try:
        rows = [line.split() for line in CORES.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return None
    columns = {name: values for name, *values in rows}
    own_columns = [columns.get(f"cpu{core}", []) for core in cores]
    if any(len(values) <= max(BUSY_COLUMNS) for values in own_columns):
        return None
    ticks = sum(int(values[column]) for values in own_columns for column in BUSY_COLUMNS)
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_facts(before: Counters, after: Counters, communication: frozenset[int] | None) -> CpuFacts:
    """Return the difference of two readings.

    `communication` are the threads that carry gradients; None where they are not known among the others.
    """
    return CpuFacts(
        process_seconds=round(after.process_seconds - before.process_seconds, MICROSECOND_DIGITS),
        thread_seconds=_thread_seconds(before, after, communication),
        training_runqueue_seconds=_difference(
            before.training_runqueue_seconds, after.training_runqueue_seconds
        ),
        other_seconds=_other_seconds(before, after),
        cores=len(os.sched_getaffinity(0)),
        peak_memory_bytes=after.peak_memory_bytes,
        frequency_mhz=_frequency_mhz(),
    )


def _difference(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return round(max(0.0, after - before), MICROSECOND_DIGITS)


def _other_seconds(before: Counters, after: Counters) -> float | None:
    """Return the CPU seconds of this process's cores that neither it nor its loader processes used."""
    if before.core_seconds is None or after.core_seconds is None or before.cores != after.cores:
        return None
    others = after.core_seconds - before.core_seconds - cpu_seconds(before, after)
    return round(max(0.0, others), MICROSECOND_DIGITS)


def cpu_seconds(before: Counters, after: Counters) -> float:
    """Return the CPU seconds of this process and its loader processes between two readings."""
    own = after.process_seconds - before.process_seconds
    return own + max(0.0, after.children_seconds - before.children_seconds)


def _children_seconds() -> float:
    """Return the CPU seconds of the loader processes, which live as long as this process."""
    seconds = 0.0
    for child in active_children():
        with suppress(FileNotFoundError, ProcessLookupError):
            seconds += stat_seconds(PROCESSES / str(child.pid))
    return seconds


def _thread_seconds(
    before: Counters, after: Counters, communication: frozenset[int] | None
) -> dict[str, float]:
    """Return CPU seconds by group of threads; a thread that ended in between is in 'other'."""
    total = after.process_seconds - before.process_seconds
    by_name: dict[str, float] = defaultdict(float)
    for task, (name, seconds) in after.threads.items():
        key = COMMUNICATION if task in (communication or ()) else name
        _, earlier = before.threads.get(task, (name, 0.0))
        by_name[key] += max(0.0, seconds - earlier)
    # Both clocks are read one after the other: the thread's may be some microseconds ahead.
    groups = {"training": min(after.training_seconds - before.training_seconds, total)}
    if communication is not None:
        groups["communication"] = by_name.pop(COMMUNICATION, 0.0)
    for name in sorted(by_name, key=lambda name: -by_name[name])[:NAMED_THREADS]:
        if by_name[name] > 0:
            groups.setdefault(name, by_name[name])
    groups["other"] = max(0.0, total - sum(groups.values()))
    return {name: round(seconds, MICROSECOND_DIGITS) for name, seconds in groups.items()}


def _thread(task: int) -> tuple[str, float] | None:
    """Return name and CPU seconds of a thread; None where it has ended."""
    folder = TASKS / str(task)
    try:
        name = (folder / "comm").read_text().strip()
        return name, _schedstat(folder)[0] if (folder / "schedstat").exists() else stat_seconds(folder)
    except (FileNotFoundError, ProcessLookupError):
        return None


def _schedstat(folder: Path) -> tuple[float, float]:
    """Return seconds on a core, and ready but without one."""
    running, waiting, _ = (folder / "schedstat").read_text().split()
    return int(running) * NANOSECONDS, int(waiting) * NANOSECONDS


def _runqueue_seconds() -> float | None:
    try:
        return _schedstat(Path("/proc/thread-self"))[1]
    except FileNotFoundError:
        return None


def _frequency_mhz() -> float | None:
    """Return the mean clock of this worker's cores; None where the system does not report it.

    On a virtual machine /proc/cpuinfo holds one constant, whatever the clock is.
    """
    cores = os.sched_getaffinity(0)
    try:
        paths = [FREQUENCIES / f"cpu{core}/cpufreq/scaling_cur_freq" for core in cores]
        clocks = [int(path.read_text()) / 1000 for path in paths]
    except OSError:
        clocks = _cpuinfo_mhz(cores)
    return sum(clocks) / len(clocks) if clocks else None


def _cpuinfo_mhz(cores: set[int]) -> list[float]:
    clocks: list[float] = []
    core = None
    for line in CPUINFO.read_text().splitlines() if CPUINFO.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "flags" and "hypervisor" in value.split():
            return []
        if key.strip() == "processor":
            core = int(value)
        elif key.strip() == "cpu MHz" and core in cores:
            clocks.append(float(value))
    return clocks
