"""The clock of everything that is recorded: seconds of the machine that a dilated cluster stands for."""

import time
from functools import cache

from unet_scaling.study.dilation import dilation


def clock_seconds() -> float:
    """Return monotonic seconds, divided by the dilation; only differences mean anything."""
    return time.perf_counter() / _factor()


@cache
def _factor() -> float:
    # Read once: the clock is read at every mark of every step.
    return dilation()
