"""From the start of a worker's process to its first epoch: how long each part took."""

import os
import time
from pathlib import Path

import numpy as np

from unet_scaling.group.worker import Group
from unet_scaling.study.measurements import STARTUP_COLUMNS, Startup

# The start of a process is known to the kernel's ticks, some hundredths of a second.
DIGITS = 3
STAT = Path("/proc/self/stat")
START_FIELD = 22  # of proc(5), counted from 1


class StartupClock:
    """Marks of the training thread; each ends the part that its name says."""

    def __init__(self, opened: float) -> None:
        """`opened` is when the run folder was read, the first thing after the imports."""
        age = process_age()
        begun = None if age is None else time.perf_counter() - age
        self._moments = [begun, opened]

    def mark(self, moment: float | None = None) -> None:
        """The next part ends at this moment of the monotonic clock, or now."""
        self._moments.append(time.perf_counter() if moment is None else moment)

    def startup(self, group: Group) -> Startup | None:
        """The parts of all workers, alike on all; none where a system does not say when it began."""
        begun = float("nan") if self._moments[0] is None else self._moments[0]
        own = np.diff(np.array([begun, *self._moments[1:]], dtype=np.float64))
        assert len(own) == len(STARTUP_COLUMNS), f"{len(own)} parts of {STARTUP_COLUMNS}"
        parts = group.gather_array(own).clip(min=0).round(DIGITS)
        if np.isnan(parts).any():
            return None
        return Startup.model_validate(dict(zip(STARTUP_COLUMNS, parts.T.tolist(), strict=True)))


def process_age() -> float | None:
    """Seconds since this process was started; none where the system is not Linux."""
    try:
        fields = STAT.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # What stands behind the name in brackets begins with the third field.
    ticks = int(fields[START_FIELD - 3])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
