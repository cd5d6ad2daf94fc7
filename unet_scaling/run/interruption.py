"""Requests to stop in order: a signal, or the end of the job's time. Handlers only set a flag.

Slurm announces a time limit or a preemption by a signal that may come early, late or never, so that a
worker also watches the clock itself. SIGTERM also comes where another worker has died, and then this one
waits for it for ever: where no safe point is reached in time, it ends without one.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from unet_scaling.group.signals import STOP_SIGNALS
from unet_scaling.study.dilation import dilated
from unet_scaling.study.errors import NoSafePointError

STOP_AT_VARIABLE = "UNET_SCALING_STOP_AT"
"""Seconds since 1970 at which to stop, some minutes before the job ends; set by the job script."""
# Safe points are some 5 s apart; Slurm kills 30 s after SIGTERM.
GRACE_SECONDS = 15.0


class Interruption:
    """A request to this worker to stop, and its source."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._stop_at = _monotonic_deadline(os.environ.get(STOP_AT_VARIABLE, ""))
        self._acknowledged = threading.Event()

    def listen(self, abort: Callable[[Exception], None]) -> None:
        """Let the signals only set the flag from now on; SIGTERM also starts the grace period.

        Where that passes without a safe point, `abort` is called in a thread of its own.
        """
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)
        # Python writes to the pipe at once, also while the main thread is blocked inside a library.
        readable, writable = os.pipe()
        os.set_blocking(writable, False)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        threading.Thread(target=self._enforce_grace_period, args=[readable, abort], daemon=True).start()

    def acknowledge(self) -> None:
        """Note that all workers have agreed to stop: what is left to do may take its time."""
        self._acknowledged.set()

    def _enforce_grace_period(self, readable: int, abort: Callable[[Exception], None]) -> None:
        while os.read(readable, 1) != bytes([signal.SIGTERM]):
            pass
        seconds = dilated(GRACE_SECONDS)
        if not self._acknowledged.wait(seconds):
            limit = f"SIGTERM, and no safe point within {seconds:.0f} s"
            abort(NoSafePointError(f"{limit}: has another worker died?"))

    def reason(self) -> str:
        """Return why to stop now; empty where there is no reason."""
        if self._received is not None:
            return f"asked to stop by {self._received.name}"
        if time.monotonic() >= self._stop_at:
            return "the job's time is nearly over"
        return ""

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = signal.Signals(number)


def _monotonic_deadline(seconds_since_1970: str) -> float:
    # A wall clock that is set while the run goes on must not move the deadline.
    if not seconds_since_1970:
        return float("inf")
    return time.monotonic() + float(seconds_since_1970) - time.time()
