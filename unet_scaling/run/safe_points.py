"""Safe points: moments between two steps at which all workers agree to save, to stop, or to go on.

No worker acts on what it alone knows, a signal or its clock: all exchange what they want, and do the same.
The points are some seconds apart, by a number of steps on which all have agreed, and outside the clock.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import numpy as np
import torch

from unet_scaling.group.group import Group
from unet_scaling.group.identity import STOP_SIGNALS
from unet_scaling.run.checkpoint import EpochSoFar
from unet_scaling.study.dilation import clock_seconds, dilated
from unet_scaling.study.errors import EXIT_DIVERGED, NoSafePointError, StoppedError, UserError

# Short beside the 15 s that SIGTERM leaves, long beside the sum that a visit costs.
SECONDS_APART = 5.0
# No step is so short; it keeps a first visit without steps from dividing by zero.
POSITIVE_STEP_SECONDS = 1e-9
STOP_AT_VARIABLE = "UNET_SCALING_STOP_AT"
"""Seconds since 1970 at which to stop, some minutes before the job ends; set by the job script."""
# Safe points are some 5 s apart; Slurm kills 30 s after SIGTERM.
GRACE_SECONDS = 15.0


class Interruption:
    """A request to this worker to stop, and its source."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        stop_at = float(os.environ.get(STOP_AT_VARIABLE) or "inf")
        # A wall clock that is set while the run goes on must not move the deadline.
        self._stop_at = time.monotonic() + stop_at - time.time()
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


@dataclass(frozen=True)
class Position:
    """So many steps of this epoch are done; after the last epoch, so many of the saliency maps."""

    epoch: int
    step: int
    explained: int | None = None


Save = Callable[[Position, EpochSoFar], None]


@dataclass(frozen=True)
class Start:
    """The position at which this attempt begins: the start of training, or that of a checkpoint."""

    position: Position
    so_far: EpochSoFar


class SafePoints:
    """The safe points of an attempt: when the next one comes, and what happens there."""

    def __init__(
        self, group: Group, start: Start, interruption: Interruption, save: Save, seconds_between: float
    ) -> None:
        """`seconds_between` are those of training between two checkpoints; 0: none but when told to stop."""
        self._group = group
        self._start = start
        self._interruption = interruption
        self._save = save
        self._seconds_between_saves = seconds_between or float("inf")
        self._saved_at = clock_seconds()
        self._visited_at = self._saved_at
        self._steps_apart = 1
        self._steps = 0

    def is_first(self, epoch: int) -> bool:
        """Return whether this is the first epoch that this attempt trains, which is the warm-up."""
        return epoch == self._start.position.epoch

    def begin_epoch(self, epoch: int) -> tuple[int, EpochSoFar]:
        """Return the steps already done of this epoch, and what they gave; a safe point in itself."""
        if self.is_first(epoch):
            return self._start.position.step, self._start.so_far
        nothing = EpochSoFar(torch.zeros((), device=self._group.device), 0.0)
        self.visit(Position(epoch, 0), nothing, diverged=False)
        return 0, nothing

    def is_due(self) -> bool:
        """Return whether to visit a safe point now, alike on every worker; called after each step."""
        self._steps += 1
        return self._steps >= self._steps_apart

    def save(self, position: Position, so_far: EpochSoFar) -> None:
        """Save the state of training; all workers come here together."""
        self._save(position, so_far)
        self._saved_at = clock_seconds()

    def visit(self, position: Position, so_far: EpochSoFar, diverged: bool) -> None:
        """Save or stop where one of the workers has reason to; all workers come here together.

        Raises UserError (70) where the training diverged, StoppedError where it is to stop; before that
        the state is saved.
        """
        reason = self._interruption.reason()
        any_stops, any_diverged, is_save_due = self._agree(bool(reason), diverged)
        if any_stops:
            self._interruption.acknowledge()
        if any_diverged:
            raise UserError(
                f"gradients of epoch {position.epoch}, up to its step {position.step}, were not finite: "
                f"the training diverged",
                EXIT_DIVERGED,
            )
        # What was trained is saved before the first map, and no map changes it.
        if position.explained is None and (any_stops or is_save_due):
            self.save(position, so_far)
        if any_stops:
            reasons = [text for text in self._group.gather_strings(reason) if text]
            raise StoppedError(reasons[0], (position.epoch, position.step), position.explained)

    def _agree(self, stops: bool, diverged: bool) -> tuple[bool, bool, bool]:
        """Return whether any worker stops, whether any diverged, and whether worker 0's checkpoint is due.

        Also agrees on the number of steps until the next safe point, from the slowest worker's.
        """
        now = clock_seconds()
        is_save_due = self._group.rank == 0 and now - self._saved_at >= self._seconds_between_saves
        step_seconds = (now - self._visited_at) / max(self._steps, 1)
        own = np.array([stops, diverged, is_save_due, step_seconds], dtype=np.float64)
        any_stops, any_diverged, any_save, slowest = self._group.gather_array(own).max(axis=0).tolist()
        self.begin_interval(slowest)
        return bool(any_stops), bool(any_diverged), bool(any_save)

    def begin_interval(self, step_seconds: float = float("inf")) -> None:
        """Let the next safe point come after as many steps of this length as fit between two, or one."""
        self._steps_apart = max(1, int(SECONDS_APART / max(step_seconds, POSITIVE_STEP_SECONDS)))
        self._steps = 0
        self._visited_at = clock_seconds()
