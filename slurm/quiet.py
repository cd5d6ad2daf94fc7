"""Watch whether other programs use the cores of this machine."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rich.console import Console

from unet_scaling.measure.cpu_counters import PROCESSES, busy_seconds
from unet_scaling.study.disturbance import DISTURBED_SHARE

# The counters advance in ticks of 10 ms: 2 s show a share of 5 % on one core as 10 ticks.
OBSERVED_SECONDS = 2.0
# The warning names them in one line.
MOST_NAMED_PROCESSES = 3


def say_whether_quiet(console: Console, seconds: float = OBSERVED_SECONDS) -> None:
    """Watch the cores that this process may use, and print which share of them others use."""
    if sys.platform != "linux":
        return
    cores = os.sched_getaffinity(0)
    processes = _processor_seconds()
    busy_before = busy_seconds(cores)
    begin = time.monotonic()
    time.sleep(seconds)
    busy_after = busy_seconds(cores)
    watched = time.monotonic() - begin
    if busy_before is None or busy_after is None:
        return
    share = min(1.0, (busy_after - busy_before) / (len(cores) * watched))
    text = f"{100 * share:.0f} % of {len(cores)} cores used by others"
    if share < DISTURBED_SHARE:
        console.print(f"the machine is quiet: {text}")
    else:
        _warn(console, text, _busiest(processes, watched))


def _warn(console: Console, text: str, busiest: Sequence[str]) -> None:
    named = ", ".join(busiest) or "none of this machine's processes: its host may be busy"
    console.print(
        f"the machine is not quiet: {text} ({named}); what is measured now may be disturbed",
        style="yellow",
        markup=False,
    )


def _busiest(before: Mapping[int, tuple[str, float]], watched: float) -> list[str]:
    """Return the processes that used most of a core meanwhile, each with its share."""
    used = [
        ((seconds - before.get(pid, (name, 0.0))[1]) / watched, name, pid)
        for pid, (name, seconds) in _processor_seconds().items()
        if pid != os.getpid()
    ]
    most = sorted(used, reverse=True)[:MOST_NAMED_PROCESSES]
    return [
        f"{name} (process {pid}) {100 * share:.0f} % of a core"
        for share, name, pid in most
        if share >= DISTURBED_SHARE
    ]


def _processor_seconds() -> dict[int, tuple[str, float]]:
    """Return name and CPU seconds of each process; not its arguments, which may hold secrets."""
    processes: dict[int, tuple[str, float]] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for folder in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):
            # The name in brackets may hold spaces and brackets; utime and stime are fields 14 and 15.
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            processes[int(folder.name)] = name, (int(fields[11]) + int(fields[12])) / ticks
    return processes
