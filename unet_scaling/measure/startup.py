"""The start of a worker, from its process to its first epoch, in parts."""

import os
import time
from pathlib import Path

import numpy as np

from unet_scaling.group.group import Group
from unet_scaling.study.dilation import is_dilated
from unet_scaling.study.measurements import STARTUP_COLUMNS, Startup

# The kernel knows the start of a process in ticks, some hundredths of a second.
MILLISECOND_DIGITS = 3
STAT = Path("/proc/self/stat")
# Of /proc/self/stat in proc(5), counted from 1: the tick at which the process started.
START_FIELD = 22


class StartupClock:
    """The ends of the parts of a worker's start, by the names of STARTUP_COLUMNS."""

    def __init__(self, opened: float) -> None:
        """Start with the moment at which the run folder was read, the first thing after the imports."""
        age = process_age()
        self._begun = float("nan") if age is None else time.perf_counter() - age
        self._ends = {"imports_seconds": opened}

    def mark(self, part: str, moment: float | None = None) -> None:
        """Let this part end at this moment of the monotonic clock, or now; the next one begins there."""
        self._ends[part] = time.perf_counter() if moment is None else moment

    def startup(self, group: Group) -> Startup | None:
        """Return the parts of all workers, alike on all; None where a system does not say when it began.

        Nor of a dilated cluster: there workers start without a quota, at no speed of the emulated machine.
        """
        assert tuple(self._ends) == STARTUP_COLUMNS, f"parts {list(self._ends)}, not {STARTUP_COLUMNS}"
        own = np.diff(np.array([self._begun, *self._ends.values()], dtype=np.float64))
        parts = group.gather_array(own).clip(min=0).round(MILLISECOND_DIGITS)
        if is_dilated() or np.isnan(parts).any():
            return None
        return Startup.model_validate(dict(zip(STARTUP_COLUMNS, parts.T.tolist(), strict=True)))


def process_age() -> float | None:
    """Return seconds since this process was started; None where the system is not Linux."""
    try:
        fields = STAT.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # What stands behind the name in brackets begins with the third field.
    ticks = int(fields[START_FIELD - 3])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
