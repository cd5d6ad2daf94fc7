"""The watchdog of one worker, which ends it when it is blocked for too long; and what has worked; Linux only.

The frameworks' own time-outs are not enough: Horovod looks for a stalled worker on worker 0 alone, and not
while MPI itself is blocked; MPI has no time-out for a worker that does not start.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

# A poll is short beside the time-out, and once a second where that is long.
POLLS_PER_TIMEOUT = 20
LONGEST_POLL_SECONDS = 1.0
PROCESSES = Path("/proc")
TASKS = Path("/proc/self/task")
# The bits of a clock's number that ask for the CPU time of one thread (clock_getcpuclockid(3)).
CPU_CLOCK_OF_THREAD = 6
CORES = Path("/proc/stat")
# The place in `stat_fields` of the tick at which a process started.
START_FIELD = 19
# Columns of a core in /proc/stat: user, nice, system, irq, softirq, steal. Not idle and iowait, in which
# nobody uses the core, nor guest and guest_nice, which user and nice include.
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


class Blocking:
    """A context for whatever can block until another worker acts; entering and leaving cost an addition.

    A GPU whose sums wait for another worker can block any call that queues something on it.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.changes = 0

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Inside, this worker works for itself, however long, and waits for no other."""
        depth, self.depth = self.depth, 0
        self.changes += 1
        try:
            yield
        finally:
            self.depth = depth
            self.changes += 1

    def __enter__(self) -> None:
        self.depth += 1
        self.changes += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        self.changes += 1


blocking = Blocking()
"""The one instance of this process, which is one worker: `with blocking: ...`, also nested."""


def start_watchdog(timeout_seconds: float, on_timeout: Callable[[], None]) -> None:
    """Call `on_timeout`, once and in a thread of its own, when one blocking call lasts longer than that."""
    threading.Thread(target=_watch, args=[timeout_seconds, on_timeout], daemon=True).start()


def _watch(timeout_seconds: float, on_timeout: Callable[[], None]) -> None:
    # Polls are counted, not read off a clock: a job that Slurm suspends is not blocked meanwhile.
    poll_seconds = min(LONGEST_POLL_SECONDS, timeout_seconds / POLLS_PER_TIMEOUT)
    changes = blocking.changes
    polls = 0
    while polls * poll_seconds < timeout_seconds:
        time.sleep(poll_seconds)
        polls = polls + 1 if blocking.depth and blocking.changes == changes else 0
        changes = blocking.changes
    on_timeout()


def thread_ids() -> frozenset[int]:
    """Return the threads of this process."""
    return frozenset(int(path.name) for path in TASKS.iterdir())


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
    # utime, stime, cutime and cstime are fields 14 to 17.
    fields = stat_fields(folder)
    return sum(map(int, fields[11 : 15 if ended_children else 13])) / os.sysconf("SC_CLK_TCK")


def stat_fields(folder: Path) -> list[str]:
    """Return the fields of a process or thread from the third on, its state (proc(5)). Raises OSError.

    The second, a name in brackets, may hold spaces and brackets.
    """
    return (folder / "stat").read_text().rpartition(")")[2].split()


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
