"""The quota of a worker over an epoch, and its processor's facts in seconds of the emulated machine."""

import os
import time
from dataclasses import dataclass

from unet_scaling.group.processor_quota import ProcessorQuota
from unet_scaling.measure.cpu_counters import MICROSECOND_DIGITS, busy_seconds
from unet_scaling.study.dilation import dilation
from unet_scaling.study.measurements import CpuFacts, QuotaFacts


@dataclass(frozen=True)
class _Reading:
    """By this machine's clock, since some moment before the epoch."""

    seconds: float
    throttled_seconds: float
    busy_seconds: float | None


class QuotaMeter:
    """What the quota did to a worker from the begin of an epoch to its end, and how busy the machine was."""

    def __init__(self, quota: ProcessorQuota) -> None:
        self._quota = quota
        self._processors = range(os.cpu_count() or 1)

    def begin(self) -> None:
        self._before = self._read()

    def end(self) -> None:
        self._after = self._read()

    def undilated(self, facts: CpuFacts, cpu_seconds: float) -> CpuFacts:
        """Return the facts with those of the quota, as the machine has them that is stood for.

        What others did on the same processors says nothing there, since all workers share them here.
        """
        update = {
            "cores": self._quota.cores,
            "other_seconds": None,
            "training_runqueue_seconds": _undilated_waiting(facts),
            "quota": self._facts(cpu_seconds),
        }
        return facts.model_copy(update=update)

    def _read(self) -> _Reading:
        now = time.perf_counter()
        return _Reading(now, self._quota.throttled_seconds(), busy_seconds(self._processors))

    def _facts(self, cpu_seconds: float) -> QuotaFacts | None:
        """Return what the quota did; None where the system does not say how busy it was."""
        idle = self._idle_share()
        if idle is None:
            return None
        throttled = (self._after.throttled_seconds - self._before.throttled_seconds) / dilation()
        return QuotaFacts(
            used_seconds=round(cpu_seconds, MICROSECOND_DIGITS),
            throttled_seconds=round(throttled, MICROSECOND_DIGITS),
            processors=self._quota.processors,
            idle_share=round(idle, MICROSECOND_DIGITS),
        )

    def _idle_share(self) -> float | None:
        before = self._before
        after = self._after
        if before.busy_seconds is None or after.busy_seconds is None:
            return None
        possible = len(self._processors) * (after.seconds - before.seconds)
        # The counters advance in ticks, the clock does not.
        return min(1.0, max(0.0, 1 - (after.busy_seconds - before.busy_seconds) / possible))


def _undilated_waiting(facts: CpuFacts) -> float | None:
    """Return how long the training thread would have been ready, but without a core.

    While it is throttled it counts as ready. A thread that alone has its core runs a k-th of the time that it
    is ready here, and all of it there: what is ready for longer waited for another one.
    """
    waited = facts.training_runqueue_seconds
    if waited is None:
        return None
    ran = facts.thread_seconds["training"]
    return round(max(0.0, (ran + waited) / dilation() - ran), MICROSECOND_DIGITS)
