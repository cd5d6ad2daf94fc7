"""The machine on which workers run: its clock, their cores, and how long its seconds last.

A virtual cluster may be slowed, so that one machine stands for several (unet_scaling/emulation). All
durations of the project are those of the emulated machine, which is this one unless it is slowed.
"""

import os
import time
from collections.abc import Collection
from functools import cache
from typing import Any, Protocol

from unet_scaling.base.errors import required_module

SLOWED_VARIABLE = "UNET_SCALING_DILATION"
LINK_RATE_VARIABLE = "UNET_SCALING_LINK_RATE"
"""The rate of every host's link on the emulated machine, such as 10gbit."""


class CoreQuota(Protocol):
    """A limit that gives a worker `cores` of the emulated machine, on `processors` of this one."""

    @property
    def cores(self) -> int: ...

    @property
    def processors(self) -> int: ...

    def throttled_seconds(self) -> float:
        """Return for how long it was used up, in wall seconds, summed over processors and threads."""


class Machine:
    """A machine at its own speed. `factor`: how many times slower it is than the one that it stands for."""

    factor = 1.0

    @property
    def link_rate(self) -> str | None:
        """Return the rate of the links, where a virtual cluster limits them."""
        return os.environ.get(LINK_RATE_VARIABLE) or None

    @property
    def is_slowed(self) -> bool:
        return self.factor > 1

    def require_no_gpu(self, visible: int) -> None:
        """Raise UserError where GPUs are visible and would not be as slow as the rest."""

    def dealt_cores(self, local_rank: int, wanted: int | None = None) -> list[int] | None:
        """Return the first `wanted` cores that this worker was dealt; None: those of its affinity."""

    def processors(self, rank: int, cores: list[int]) -> list[int]:  # noqa: ARG002, emulation asks it
        """Return the processors of this machine that are a worker's cores."""
        return cores

    def facts_there(self, facts: Any, before: Any, after: Any, quota: Any) -> Any:  # noqa: ANN401, ARG002
        """Return the counters of an epoch as the emulated machine has them."""
        return facts

    def enter_quota(self, rank: int, cores: int, threads: Collection[int]) -> CoreQuota | None:
        """Hold this process, with these threads, to so many cores; None where nothing has to."""


def machine() -> Machine:
    """Return the machine. Raises UserError where variables of the environment contradict each other."""
    if os.environ.get(SLOWED_VARIABLE, "1") == "1":
        return Machine()
    slowed = required_module("unet_scaling.emulation.slowed_machine", SLOWED_VARIABLE)
    found: Machine = slowed.SlowedMachine()
    return found if found.is_slowed else Machine()


def wall_seconds(seconds: float) -> float:
    """Return how long these seconds last by the clock on the wall."""
    return seconds * machine().factor


def machine_seconds(wall: float) -> float:
    """Return how long these seconds of the clock on the wall are on the emulated machine."""
    return wall / machine().factor


def clock_seconds() -> float:
    """Return monotonic seconds of the emulated machine; only differences mean anything."""
    return time.perf_counter() / _factor()


@cache
def _factor() -> float:
    # Read once: the clock is read at every mark of every step.
    return machine().factor
