"""The computing of an emulated worker: waits as long as a recorded step took, and as busy as it kept a core.

Every part of a step ends where the recorded one did, counted from the end of the part before it, so that what
emulating costs is no part of the step as long as the recorded work cost more. Within a part the worker
keeps its core for the recorded CPU seconds, then sleeps. On a cluster that is slowed k times a part lasts k
times as long, and costs as many CPU seconds: its share of a core is k times smaller.
"""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from unet_scaling.study.compute_profile import ComputeProfile, ComputeStep
from unet_scaling.study.dilation import dilated
from unet_scaling.study.random_streams import EMULATION_STREAM

# A gradient may be ready so much too early, as the emulated machine counts, but for the last one: to wake a
# thread takes up to 0.2 ms of a core, and the reference network has 82 gradients.
SHORTEST_SLEEP_SECONDS = 1e-4
# Of prctl(2): by default Linux wakes a thread up to 50 microseconds late.
PR_SET_TIMERSLACK = 29
TIMER_SLACK_NANOSECONDS = 1


@dataclass(frozen=True)
class _Part:
    """A part of a step: how long it lasts here, and the CPU seconds that it takes of one core."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class _Backward:
    """Parameters in the order in which their gradients get ready, and when, since the part began."""

    order: tuple[int, ...]
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]


@dataclass(frozen=True)
class _Step:
    data: _Part
    forward: _Part
    backward: _Backward
    optimizer: _Part


_NOTHING = _Part(0.0, 0.0)


class EmulatedCompute:
    """The waits of one worker. Each pass is a whole recorded step, drawn by (seed, epoch, pass, rank)."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._optimizer = _NOTHING
        self._cleared = _NOTHING
        self._waited_for = _NOTHING

    def start(self, profile: ComputeProfile, seed: int, rank: int) -> None:
        """Wait by this profile from now on."""
        self._steps = [_as_it_lasts_here(step) for step in profile.steps]
        self._key = (seed, rank)
        self._shortest_sleep = dilated(SHORTEST_SLEEP_SECONDS)
        # This thread is to be woken when its sleep ends.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NANOSECONDS, 0, 0, 0)

    def begin_epoch(self, epoch: int, passes: int, first: int) -> None:
        """Draw the steps of an epoch with so many passes, of which `first` are done already."""
        numbers = np.random.PCG64([*self._key, epoch, EMULATION_STREAM]).random_raw(passes)
        places: list[int] = (numbers % len(self._steps)).tolist()
        self._drawn = iter([self._steps[place] for place in places[first:]])
        self._cleared = _NOTHING

    def begin_pass(self) -> None:
        """Begin the next pass; its data are waited for first."""
        self._step = next(self._drawn)
        self._waited_for = self._cleared
        self._cleared = _NOTHING
        self._optimizer = self._step.optimizer
        self._begin(self._waited_for)

    def load(self) -> None:
        """Wait as long as the batch took to be on the device."""
        self._wait_for(self._step.data)

    def skip_loading(self) -> None:
        """Begin the forward pass: the batch was really loaded."""
        self._begin(self._waited_for)

    def order(self) -> tuple[int, ...]:
        """Return the parameters in the order in which their gradients get ready in this pass."""
        return self._step.backward.order

    def forward(self) -> None:
        """Wait for the forward pass; the backward pass begins when it ends."""
        self._wait_for(self._step.forward)

    def gradient(self, place: int) -> None:
        """Wait until the gradient is ready that comes at this place, from 0, in that order."""
        backward = self._step.backward
        is_last = place + 1 == len(backward.order)
        _keep_core(self._cpu_began + backward.cpu_seconds[place])
        _sleep_until(self._began + backward.seconds[place], 0.0 if is_last else self._shortest_sleep)

    def update(self) -> None:
        """Wait as long as the optimizer took; before any pass there is nothing to update."""
        self._begin(_NOTHING)
        self._wait_for(self._optimizer)

    @contextmanager
    def clearing(self) -> Iterator[None]:
        """Count what runs inside as waited for by the pass that follows.

        A step clears its gradients first. That was recorded with the optimizer, and waited for there.
        """
        began = time.perf_counter()
        cpu_began = time.thread_time()
        yield
        self._cleared = _Part(time.perf_counter() - began, time.thread_time() - cpu_began)

    def _begin(self, waited_for: _Part) -> None:
        """Begin a part now, of which this much was waited for already."""
        self._began = time.perf_counter() - waited_for.seconds
        self._cpu_began = time.thread_time() - waited_for.cpu_seconds

    def _wait_for(self, part: _Part) -> None:
        """Return when this part is over; the next one begins when it should have been, or now if later."""
        _keep_core(self._cpu_began + part.cpu_seconds)
        end = self._began + part.seconds
        now = time.perf_counter()
        _sleep_until(end, 0.0)
        self._began = max(end, now)
        self._cpu_began = time.thread_time()


emulated_compute = EmulatedCompute()
"""The one instance of this process, which is one worker: data, model and optimizer wait by the same step."""


def _as_it_lasts_here(step: ComputeStep) -> _Step:
    order = sorted(range(len(step.ready_seconds)), key=step.ready_seconds.__getitem__)
    ready = [step.ready_seconds[index] for index in order]
    whole = _part(step.backward_seconds, step.backward_cpu_seconds)
    share = whole.cpu_seconds / step.backward_seconds if step.backward_seconds else 0.0
    return _Step(
        _part(step.data_seconds, step.data_cpu_seconds),
        _part(step.forward_seconds, step.forward_cpu_seconds),
        _Backward(tuple(order), tuple(map(dilated, ready)), tuple(share * moment for moment in ready)),
        _part(step.optimizer_seconds, step.optimizer_cpu_seconds),
    )


def _part(seconds: float, cpu_seconds: float) -> _Part:
    # One thread waits: it cannot keep more than one core.
    return _Part(dilated(seconds), min(cpu_seconds, seconds))


def _keep_core(until_cpu_seconds: float) -> None:
    while time.thread_time() < until_cpu_seconds:
        pass


def _sleep_until(moment: float, shortest_seconds: float) -> None:
    seconds = moment - time.perf_counter()
    if seconds > shortest_seconds:
        time.sleep(seconds)
