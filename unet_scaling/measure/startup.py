"""Duration of each part of a start, from a worker's process to its first epoch."""

import os
import time
from pathlib import Path

import numpy as np

from unet_scaling.group.worker import Group
from unet_scaling.study.measurements import STARTUP_COLUMNS, Startup

# The kernel knows the start of a process in ticks, some hundredths of a second.
MILLISECOND_DIGITS = 3
STAT = Path("/proc/self/stat")
# Of /proc/self/stat in proc(5), counted from 1: the tick at which the process started.
START_FIELD = 22


class StartupClock:
    """Marks of the training thread; each ends the next part of STARTUP_COLUMNS."""

    def __init__(self, opened: float) -> None:
        """Start with the moment at which the run folder was read, the first thing after the imports."""
        age = process_age()
        begun = None if age is None else time.perf_counter() - age
        self._moments = [begun, opened]

    def mark(self, moment: float | None = None) -> None:
        """End the next part at this moment of the monotonic clock, or now."""
        self._moments.append(time.perf_counter() if moment is None else moment)

    def startup(self, group: Group) -> Startup | None:
        """Return the parts of all workers, on all alike; None where a system does not say when it began."""
        begun = float("nan") if self._moments[0] is None else self._moments[0]
        own = np.diff(np.array([begun, *self._moments[1:]], dtype=np.float64))
        assert len(own) == len(STARTUP_COLUMNS), f"{len(own)} parts of {STARTUP_COLUMNS}"
        parts = group.gather_array(own).clip(min=0).round(MILLISECOND_DIGITS)
        if np.isnan(parts).any():
            return None
        return Startup.model_validate(dict(zip(STARTUP_COLUMNS, parts.T.tolist(), strict=True)))


def process_age() -> float | None:
    """Return the seconds since this process was started; None where the system is not Linux."""
    try:
        fields = STAT.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # What stands behind the name in brackets begins with the third field.
    ticks = int(fields[START_FIELD - 3])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
