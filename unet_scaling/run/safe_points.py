"""Safe points: moments between two steps at which all workers agree to save, to stop, or to go on.

No worker acts on what it alone knows, a signal or its clock: what each of them wants is summed up, and all
do the same. The points are some seconds apart by a number of steps that all know, and outside the clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from unet_scaling.group.group import Group
from unet_scaling.run.checkpoint import EpochSoFar
from unet_scaling.run.interruption import Interruption
from unet_scaling.study.errors import EXIT_DIVERGED, StoppedError, UserError

SECONDS_APART = 5.0


@dataclass(frozen=True)
class Position:
    """So many steps of this epoch are done."""

    epoch: int
    step: int


Save = Callable[[Position, EpochSoFar], None]


@dataclass(frozen=True)
class Start:
    """Where this attempt begins: at the very beginning, or where a checkpoint was made."""

    position: Position
    so_far: EpochSoFar


class SafePoints:
    """When the next safe point comes, and what happens there."""

    def __init__(
        self, group: Group, start: Start, interruption: Interruption, save: Save, seconds_between: float
    ) -> None:
        self._group = group
        self._start = start
        self._interruption = interruption
        self._save = save
        self._seconds_between_saves = seconds_between or float("inf")
        self._saved_at = self._visited_at = time.monotonic()
        self._apart = 1
        self._steps = 0

    def is_first(self, epoch: int) -> bool:
        """Whether this attempt has trained no epoch before: its first one is the warm-up."""
        return epoch == self._start.position.epoch

    def begin_epoch(self, epoch: int) -> tuple[int, EpochSoFar]:
        """Steps done of an epoch that begins, or goes on, and what they gave; a safe point in itself."""
        if self.is_first(epoch):
            return self._start.position.step, self._start.so_far
        nothing = EpochSoFar(torch.zeros((), device=self._group.device), 0.0)
        self.visit(Position(epoch, 0), nothing, diverged=False)
        return 0, nothing

    def is_due(self) -> bool:
        """Called after each step; the same answer on every worker."""
        self._steps += 1
        return self._steps >= self._apart

    def visit(self, position: Position, so_far: EpochSoFar, diverged: bool) -> None:
        """Save or stop where one of the workers has reason to; all workers come here together.

        Raises UserError (70) where the training diverged, StoppedError where it is to stop; before that
        the state is saved.
        """
        reason = self._interruption.reason()
        wanted = self._wanted(reason, diverged)
        if wanted["stop"]:
            self._interruption.acknowledge()
        if wanted["diverged"]:
            raise UserError(
                f"gradients of epoch {position.epoch}, up to its step {position.step}, were not finite: "
                f"the training diverged",
                EXIT_DIVERGED,
            )
        if wanted["stop"] or wanted["save"]:
            self._save(position, so_far)
            self._saved_at = time.monotonic()
        if wanted["stop"]:
            reasons = [text for text in self._group.gather_strings(reason) if text]
            raise StoppedError(reasons[0], (position.epoch, position.step))

    def _wanted(self, reason: str, diverged: bool) -> dict[str, bool]:
        """What any worker wants; also agrees on how many steps to take until the next point."""
        now = time.monotonic()
        save = self._group.rank == 0 and now - self._saved_at >= self._seconds_between_saves
        step_seconds = (now - self._visited_at) / max(self._steps, 1)
        own = np.array([bool(reason), save, diverged, step_seconds], dtype=np.float64)
        told = self._group.gather_array(own)
        self._apart = max(1, int(SECONDS_APART / max(told[:, 3].max(), 1e-9)))
        self._steps, self._visited_at = 0, time.monotonic()
        stop, save_now, diverged_now = (bool(told[:, column].any()) for column in range(3))
        return {"stop": stop, "save": save_now, "diverged": diverged_now}
