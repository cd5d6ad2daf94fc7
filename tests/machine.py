"""Skip a comparison of measured times where the machine was not quiet while they were measured.

On a machine that others use, such a comparison shows nothing: the test is skipped, with the share of the
cores that others took. On a quiet machine it is judged, and may fail.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from unet_scaling.format.disturbance import DISTURBED_SHARE
from unet_scaling.group.watchdog import busy_seconds

needs_a_core_each = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two workers need a core each"
)


@contextmanager
def quiet_machine() -> Iterator[None]:
    """Skip the test where others took too much of its cores meanwhile, by the kernel's own account.

    What this process and its children took, which must have ended, is not others'.
    """
    began = time.monotonic()
    busy = _core_seconds()
    own = _own_seconds()
    yield
    offered = (time.monotonic() - began) * len(os.sched_getaffinity(0))
    taken = (_core_seconds() - busy) - (_own_seconds() - own)
    skip_if_taken(taken / offered)


def skip_if_taken(share: float, most: float = DISTURBED_SHARE) -> None:
    """Skip the test where others took more of the cores than a comparison of times allows."""
    if share > most:
        pytest.skip(f"others took {share:.0%} of these cores meanwhile, at most {most:.0%} may be")


def _core_seconds() -> float:
    """Return for how long the cores of this process were not idle; skip the test where that is not known."""
    seconds = busy_seconds(os.sched_getaffinity(0))
    if seconds is None:
        pytest.skip("this system does not tell how busy its cores are")
    return seconds


def _own_seconds() -> float:
    return sum(os.times()[:4])
