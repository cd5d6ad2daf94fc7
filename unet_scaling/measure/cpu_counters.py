"""What the processor did for this process, by thread: Linux only, not known elsewhere.

CPU seconds of threads come from /proc/self/task: its schedstat where the kernel keeps one
(nanoseconds), else its stat (clock ticks). Those of whole cores come from /proc/stat (clock ticks).
Layouts: proc(5).
"""

import os
import resource
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

from unet_scaling.study.measurements import CpuFacts

TASKS = Path("/proc/self/task")
PROCESSES = Path("/proc")
CORES = Path("/proc/stat")
CPUINFO = Path("/proc/cpuinfo")
FREQUENCIES = Path("/sys/devices/system/cpu")
NAMED_THREADS = 3
NANOSECONDS = 1e-9
MICROSECOND_DIGITS = 6
KIBIBYTE = 1024  # in which Linux counts ru_maxrss
# Of a core's columns in /proc/stat: user, nice, system, irq, softirq, steal. Not idle and iowait, in which
# nobody has the core, nor guest and guest_nice, which user and nice hold already.
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Counters:
    """Everything counted from the start of the process until now."""

    process_seconds: float
    training_seconds: float
    training_runqueue_seconds: float | None
    process: resource.struct_rusage
    training: resource.struct_rusage
    threads: dict[int, tuple[str, float]]
    cores: frozenset[int]
    core_seconds: float | None
    children_seconds: float


def thread_ids() -> frozenset[int]:
    """The threads of this process now; empty where the system does not list them."""
    return frozenset(int(path.name) for path in TASKS.iterdir()) if TASKS.is_dir() else frozenset()


def read_counters() -> Counters | None:
    """The counters of this process and of the thread that calls; none where this is not Linux."""
    if sys.platform != "linux" or not TASKS.is_dir():
        return None
    own = os.getpid() if os.getpid() in thread_ids() else None
    cores = frozenset(os.sched_getaffinity(0))
    return Counters(
        process_seconds=time.process_time(),
        training_seconds=time.thread_time(),
        training_runqueue_seconds=_runqueue_seconds(),
        process=resource.getrusage(resource.RUSAGE_SELF),
        training=resource.getrusage(resource.RUSAGE_THREAD),
        threads={task: thread for task in thread_ids() - {own} if (thread := _thread(task)) is not None},
        cores=cores,
        core_seconds=busy_seconds(cores),
        children_seconds=_children_seconds(),
    )


def busy_seconds(cores: Collection[int]) -> float | None:
    """Return the seconds that these cores were not idle since the system started, for any process or stolen.

    Stolen is what the host of a virtual machine gave to others. None where /proc/stat lacks one of the cores.
    """
    try:
        lines = [line.split() for line in CORES.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return None
    found = {words[0]: words[1:] for words in lines}
    named = [f"cpu{core}" for core in cores]
    if not all(len(found.get(name, ())) > max(BUSY_COLUMNS) for name in named):
        return None
    ticks = sum(int(found[name][column]) for name in named for column in BUSY_COLUMNS)
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_facts(before: Counters, after: Counters, communication: frozenset[int]) -> CpuFacts:
    """What happened between two readings; `communication` are the threads that carry gradients."""
    process, earlier = after.process, before.process
    training, training_earlier = after.training, before.training
    return CpuFacts(
        process_seconds=round(after.process_seconds - before.process_seconds, MICROSECOND_DIGITS),
        thread_seconds=_thread_seconds(before, after, communication),
        training_runqueue_seconds=_difference(
            before.training_runqueue_seconds, after.training_runqueue_seconds
        ),
        other_seconds=_other_seconds(before, after),
        training_involuntary_switches=training.ru_nivcsw - training_earlier.ru_nivcsw,
        major_faults=process.ru_majflt - earlier.ru_majflt,
        cores=len(os.sched_getaffinity(0)),
        peak_memory_bytes=process.ru_maxrss * KIBIBYTE,
        frequency_mhz=_frequency_mhz(),
    )


def _difference(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return round(max(0.0, after - before), MICROSECOND_DIGITS)


def _other_seconds(before: Counters, after: Counters) -> float | None:
    """CPU seconds of this process's cores that neither it nor its own loader processes had."""
    if before.core_seconds is None or after.core_seconds is None or before.cores != after.cores:
        return None
    own = after.process_seconds - before.process_seconds
    children = max(0.0, after.children_seconds - before.children_seconds)
    others = after.core_seconds - before.core_seconds - own - children
    return round(max(0.0, others), MICROSECOND_DIGITS)


def _children_seconds() -> float:
    """CPU seconds of the processes that load images for this one; they live as long as it does."""
    seconds = 0.0
    for child in active_children():
        with suppress(FileNotFoundError, ProcessLookupError):
            seconds += _ticks(PROCESSES / str(child.pid))
    return seconds


def _thread_seconds(before: Counters, after: Counters, communication: frozenset[int]) -> dict[str, float]:
    """CPU seconds by group of threads. A thread that ended in between is in 'other'."""
    total = after.process_seconds - before.process_seconds
    # Both clocks are read one after the other: the thread's may be some microseconds ahead.
    training = min(after.training_seconds - before.training_seconds, total)
    groups = {"training": training, "communication": 0.0}
    named: dict[str, float] = {}
    for task, (name, seconds) in after.threads.items():
        used = max(0.0, seconds - before.threads.get(task, (name, 0.0))[1])
        target = groups if task in communication else named
        key = "communication" if task in communication else name
        target[key] = target.get(key, 0.0) + used
    largest = sorted(named, key=lambda name: -named[name])[:NAMED_THREADS]
    groups |= {name: named[name] for name in largest if named[name] > 0 and name not in groups}
    groups["other"] = max(0.0, total - sum(groups.values()))
    return {name: round(seconds, MICROSECOND_DIGITS) for name, seconds in groups.items()}


def _thread(task: int) -> tuple[str, float] | None:
    """Name and CPU seconds of a thread; none where it has ended."""
    folder = TASKS / str(task)
    try:
        name = (folder / "comm").read_text().strip()
        return name, _schedstat(folder)[0] if (folder / "schedstat").exists() else _ticks(folder)
    except (FileNotFoundError, ProcessLookupError):
        return None


def _schedstat(folder: Path) -> tuple[float, float]:
    """Seconds on a core, and ready but without one."""
    running, waiting, _ = (folder / "schedstat").read_text().split()
    return int(running) * NANOSECONDS, int(waiting) * NANOSECONDS


def _ticks(folder: Path) -> float:
    # The name in brackets may hold spaces and brackets; utime and stime are fields 14 and 15.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _runqueue_seconds() -> float | None:
    try:
        return _schedstat(Path("/proc/thread-self"))[1]
    except FileNotFoundError:
        return None


def _frequency_mhz() -> float | None:
    """Mean clock of this worker's cores, as the system reports it; none where it does not.

    On a virtual machine /proc/cpuinfo holds one constant, whatever the clock is.
    """
    cores = os.sched_getaffinity(0)
    try:
        paths = [FREQUENCIES / f"cpu{core}/cpufreq/scaling_cur_freq" for core in cores]
        found = [int(path.read_text()) / 1000 for path in paths]
    except OSError:
        found = _cpuinfo_mhz(cores)
    return sum(found) / len(found) if found else None


def _cpuinfo_mhz(cores: set[int]) -> list[float]:
    found: list[float] = []
    core = None
    for line in CPUINFO.read_text().splitlines() if CPUINFO.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "flags" and "hypervisor" in value.split():
            return []
        if key.strip() == "processor":
            core = int(value)
        elif key.strip() == "cpu MHz" and core in cores:
            found.append(float(value))
    return found
