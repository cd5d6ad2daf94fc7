"""The parts of every training step, one definition for all frameworks: each moment belongs to one phase.

A mark gives the time since the mark before it to a phase. Where backward ends and waiting begins is
marked by the gradients themselves: each parameter reports its gradient (a post-accumulate hook, which
runs before DDP's and Horovod's own), and the last report of a pass is the mark. What follows, inside
backward or after it, is sync.
"""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unet_scaling.study.dilation import clock_seconds
from unet_scaling.study.record_lines import Phase

# Marks of a step: 5 in each forward and backward pass, 4 outside them.
MARKS_PER_PASS = 5
MARKS_PER_STEP = 4
NO_STEP = -1

Seconds = npt.NDArray[np.float64]


class Clock:
    """A clock that measures nothing: for training whose budget is off."""

    def mark(self, phase: Phase) -> None:
        """Assign the time since the last mark to this phase."""

    def next_step(self) -> None:
        """End a step."""

    def resume(self, now: float) -> None:
        """Begin the next step at this moment of the monotonic clock; the time before counts for none."""


NO_CLOCK = Clock()


class PhaseClock(Clock, ABC):
    """Phases of the steps of one epoch at a time, [steps, phases]; nothing is allocated in a step."""

    def __init__(self, model: nn.Module, steps: int, passes: int) -> None:
        self.steps = steps
        self._stamps_due = steps * passes
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._gradients = len(weights)
        self._weights = weights
        self.attach()

    def attach(self) -> None:
        """Put the hooks on the model, from where `close` removed them."""
        self._hooks = [
            weight.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
            for weight in self._weights
        ]

    def begin(self) -> None:
        """Start an epoch; `resume` follows."""
        self._step = 0
        self._stamps = 0
        self._missing = self._gradients

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def next_step(self) -> None:
        self.mark(Phase.REST)
        self._step += 1

    @abstractmethod
    def resume(self, now: float) -> None: ...

    def seconds(self, epoch_seconds: float) -> Seconds:
        """Return the epoch's phases [steps, phases]; the remainder of its seconds is rest of the last step.

        Backward and sync are NaN where not every parameter reported once in every pass: the beginning of
        sync is not known then.
        """
        phases = self._measured()
        phases[-1, Phase.REST] += max(0.0, epoch_seconds - float(phases.sum()))
        if self._stamps != self._stamps_due or self._missing != self._gradients:
            phases[:, [Phase.BACKWARD, Phase.SYNC]] = np.nan
        return phases

    def _ready(self, _: Tensor) -> None:
        self._missing -= 1
        if self._missing == 0:
            self.mark(Phase.BACKWARD)
            self._missing = self._gradients
            self._stamps += 1

    @abstractmethod
    def _measured(self) -> Seconds: ...


class HostClock(PhaseClock):
    """Phases of a CPU worker: work is done when its call returns."""

    def __init__(self, model: nn.Module, steps: int, passes: int) -> None:
        super().__init__(model, steps, passes)
        self._last = 0.0
        self._phases = np.zeros((steps, len(Phase)))

    def begin(self) -> None:
        super().begin()
        self._phases[:] = 0

    def mark(self, phase: Phase) -> None:
        now = clock_seconds()
        self._phases[self._step, phase] += now - self._last
        self._last = now

    def resume(self, now: float) -> None:
        self._last = now

    def _measured(self) -> Seconds:
        return self._phases.copy()


class DeviceClock(PhaseClock):
    """Phases of a GPU: a mark is an event in its queue, so that nothing waits; read after the epoch.

    A phase is the time that the GPU worked or idled for it: loading that hides behind queued work takes none.
    """

    def __init__(self, model: nn.Module, steps: int, passes: int, device: torch.device) -> None:
        super().__init__(model, steps, passes)
        self._stream = torch.cuda.current_stream(device)
        self._events: list[torch.cuda.Event] = []
        self._positions: list[tuple[int, int]] = []
        self._add_events(1 + steps * (MARKS_PER_PASS * passes + MARKS_PER_STEP))

    def begin(self) -> None:
        super().begin()
        self._used = 0

    def mark(self, phase: Phase) -> None:
        self._stamp(self._step, phase)

    def resume(self, now: float) -> None:  # noqa: ARG002, the device has its own clock
        # Outside the epoch's clock: here one more event may be created.
        self._add_events(1)
        self._stamp(NO_STEP, Phase.REST)

    def _add_events(self, marks: int) -> None:
        self._events += [torch.cuda.Event(enable_timing=True) for _ in range(marks)]  # type: ignore[no-untyped-call]
        self._positions += [(NO_STEP, Phase.REST)] * marks

    def _stamp(self, step: int, phase: Phase) -> None:
        if self._used == len(self._events):  # of a script's step, which may have more passes than one
            self._add_events(1)
        self._events[self._used].record(self._stream)
        self._positions[self._used] = step, phase
        self._used += 1

    def _measured(self) -> Seconds:
        """Read the events; the device has finished the epoch, for earlier they cannot be read."""
        phases = np.zeros((self.steps, len(Phase)))
        for number in range(1, self._used):
            step, phase = self._positions[number]
            if step == NO_STEP:
                continue
            milliseconds = self._events[number - 1].elapsed_time(self._events[number])
            phases[step, phase] += milliseconds / 1000
        return phases


def phase_clock(model: nn.Module, steps: int, passes: int, device: torch.device) -> PhaseClock:
    """Return the clock for this device, with hooks on every parameter of the model."""
    if device.type == "cuda":
        return DeviceClock(model, steps, passes, device)
    return HostClock(model, steps, passes)


def synchronized_seconds(device: torch.device) -> float:
    """Return monotonic seconds, after all work queued on the device; only differences mean anything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock_seconds()
