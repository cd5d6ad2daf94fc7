"""Requests to stop in order: a signal, or the end of the job's time. Handlers only set a flag.

Slurm announces a time limit or a preemption by a signal that may come early, late or never, so that a
worker also watches the clock itself. SIGTERM also comes where another worker has died, and then this one
waits for it for ever: where no safe point is reached in time, it leaves without one.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from unet_scaling.group.signals import STOP_SIGNALS
from unet_scaling.study.errors import NoSafePointError

STOP_AT_VARIABLE = "UNET_SCALING_STOP_AT"
"""Seconds since 1970 at which to stop, some minutes before the job ends; set by the job script."""
# Safe points are some 5 s apart; Slurm kills 30 s after SIGTERM.
GRACE_SECONDS = 15.0


class Interruption:
    """Whether this worker was asked to stop, and by what."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._stop_at = _stop_at(os.environ.get(STOP_AT_VARIABLE, ""))
        self._obeyed = threading.Event()

    def listen(self, give_up: Callable[[Exception], None]) -> None:
        """From now on the signals only set the flag; SIGTERM also starts the time in which to stop.

        Where that passes without a safe point, `give_up` is called in a thread of its own.
        """
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)
        # Written at once, also while the main thread is inside a library that waits for another worker.
        received, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        threading.Thread(target=self._enforce_grace_period, args=[received, give_up], daemon=True).start()

    def acknowledge(self) -> None:
        """All workers have agreed to stop: what is left to do may take its time."""
        self._obeyed.set()

    def _enforce_grace_period(self, received: int, give_up: Callable[[Exception], None]) -> None:
        while os.read(received, 1) != bytes([signal.SIGTERM]):
            pass
        if not self._obeyed.wait(GRACE_SECONDS):
            told = f"SIGTERM, and no safe point within {GRACE_SECONDS:.0f} s: has another worker died?"
            give_up(NoSafePointError(told))

    def reason(self) -> str:
        """Why to stop now, or nothing."""
        if self._received is not None:
            return f"asked to stop by {self._received.name}"
        if time.monotonic() >= self._stop_at:
            return "the job's time is nearly over"
        return ""

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = signal.Signals(number)


def _stop_at(text: str) -> float:
    """On the monotonic clock: a wall clock that is set while the run goes on moves no deadline."""
    return time.monotonic() + float(text) - time.time() if text else float("inf")
