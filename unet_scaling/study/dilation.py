"""How many times slower than the machine it stands for a virtual cluster runs, as its workers are told.

Time dilation after Gupta et al., NSDI 2006: cores, links and time-outs are slowed alike, so that many workers
fit on few cores and their proportions stay.
"""

import os
import time
from functools import cache

from unet_scaling.base.errors import UserError

DILATION_VARIABLE = "UNET_SCALING_DILATION"
LINK_RATE_VARIABLE = "UNET_SCALING_LINK_RATE"
"""The rate of every host's link as the emulated machine has it, such as 10gbit."""
QUOTA_FOLDER_VARIABLE = "UNET_SCALING_QUOTA_FOLDER"
"""The control group in which every worker makes its own."""


def dilation() -> float:
    """Return the factor, 1 on a machine at speed. Raises UserError where it is below 1 or no number."""
    text = os.environ.get(DILATION_VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < float("inf"):
        raise UserError(
            f"{DILATION_VARIABLE} = {text!r}: a number of at least 1 is needed; the cluster sets it"
        )
    return factor


def is_dilated() -> bool:
    """Return whether this machine is slowed."""
    return dilation() > 1


def dilated(seconds: float) -> float:
    """Return how long these seconds of the emulated machine last on this one."""
    return seconds * dilation()


def link_rate() -> str | None:
    """Return the rate of the links as the emulated machine has it; None where they are not limited."""
    return os.environ.get(LINK_RATE_VARIABLE) or None


def clock_seconds() -> float:
    """Return monotonic seconds, divided by the dilation; only differences mean anything."""
    return time.perf_counter() / _factor()


@cache
def _factor() -> float:
    # Read once: the clock is read at every mark of every step.
    return dilation()
