"""Is this machine quiet, and which launches did other programs or stalls disturb?"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from unet_scaling.measure.cpu_counters import PROCESSES, busy_seconds
from unet_scaling.study.disturbance import DISTURBED_SHARE, disturbance
from unet_scaling.study.record import RECORD_NAME, read_record

LOOK_SECONDS = 2.0
MOST_NAMED = 3
# A machine that stays busy disturbs each further launch as well: then more of them only cost time.
MOST_DISTURBED = 2


def say_whether_quiet(console: Console, seconds: float = LOOK_SECONDS) -> None:
    """Watch the cores that this process may use, and print which share of them others use."""
    if sys.platform != "linux":
        return
    cores = os.sched_getaffinity(0)
    busy, processes, began = busy_seconds(cores), _processor_seconds(), time.monotonic()
    time.sleep(seconds)
    later, watched = busy_seconds(cores), time.monotonic() - began
    if busy is None or later is None:
        return
    share = min(1.0, (later - busy) / (len(cores) * watched))
    text = f"{100 * share:.0f} % of {len(cores)} cores used by others"
    if share < DISTURBED_SHARE:
        console.print(f"the machine is quiet: {text}")
        return
    named = (
        ", ".join(_busiest(processes, watched)) or "none of this machine's processes: its host may be busy"
    )
    console.print(
        f"the machine is not quiet: {text} ({named}); what is measured now may be disturbed",
        style="yellow",
        markup=False,
    )


def disturbed_reason(folder: Path) -> str:
    """Return why the complete run in this folder counts as disturbed; empty where it does not."""
    record = read_record(folder / RECORD_NAME)
    return disturbance(record).reason if record.complete else ""


def may_be_repeated(folder: Path) -> bool:
    """Return whether a disturbed run was repeated only a few times so far."""
    return len(list(folder.glob("run.disturbed*.jsonl"))) < MOST_DISTURBED


def set_disturbed_aside(folder: Path) -> Path:
    """Keep the record of a disturbed launch under a name that says so, and let its run be launched again."""
    number = len(list(folder.glob("run.disturbed*.jsonl"))) + 1
    kept = folder / f"run.disturbed{number}.jsonl"
    (folder / RECORD_NAME).rename(kept)
    return kept


def _busiest(before: Mapping[int, tuple[str, float]], watched: float) -> list[str]:
    """The processes that used most of a core meanwhile."""
    used = [
        ((seconds - before.get(pid, (name, 0.0))[1]) / watched, name, pid)
        for pid, (name, seconds) in _processor_seconds().items()
        if pid != os.getpid()
    ]
    most = sorted(used, reverse=True)[:MOST_NAMED]
    return [
        f"{name} (process {pid}) {100 * share:.0f} % of a core"
        for share, name, pid in most
        if share >= DISTURBED_SHARE
    ]


def _processor_seconds() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds of each process; without its arguments, which may hold secrets."""
    found: dict[int, tuple[str, float]] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for folder in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):
            # The name in brackets may hold spaces and brackets; utime and stime are fields 14 and 15.
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            found[int(folder.name)] = name, (int(fields[11]) + int(fields[12])) / ticks
    return found
