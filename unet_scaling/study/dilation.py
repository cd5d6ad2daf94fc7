"""How many times slower than the machine it stands for a virtual cluster runs, as its workers are told.

Time dilation after Gupta et al., NSDI 2006: cores, links and time-outs are slowed alike, so that many workers
fit on few cores and their proportions stay.
"""

import os

from unet_scaling.study.errors import UserError

DILATION_VARIABLE = "UNET_SCALING_DILATION"


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


def dilated(seconds: float) -> float:
    """Return how long these seconds of the emulated machine last on this one."""
    return seconds * dilation()
