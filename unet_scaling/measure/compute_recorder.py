"""Record how long one worker computes in each part of a step, and when each gradient is ready.

A clock between the training loop and the clock of the budget, if there is one: the marks of the phases are
passed on. The first epoch warms up and is not recorded.
"""

import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from unet_scaling.base.errors import UserError
from unet_scaling.base.machine import machine
from unet_scaling.format.compute_profile import ComputeProfile, ComputeStep
from unet_scaling.format.record_lines import Phase
from unet_scaling.group.watchdog import thread_cpu_seconds
from unet_scaling.measure.epoch_meter import NANOSECOND_DIGITS, Clock
from unet_scaling.study.config import RunConfig

# More make the spread of the steps no better known, and the file larger than 1 MB.
MOST_RECORDED_STEPS = 500
# Seconds of the processor's clock, or an event in the queue of a GPU.
_DeviceMoment = Any
# A moment of the device, and the CPU seconds of the threads that compute until then.
_Moment = tuple[_DeviceMoment, float]


@dataclass
class _Step:
    """The moments of a step: its begin, the marks of its phases, and the gradients by parameter.

    `ready_cpu_seconds` are those of the threads that compute until the last gradient.
    """

    began: _Moment
    marks: list[tuple[Phase, _Moment]] = field(default_factory=list)
    ready: dict[int, _DeviceMoment] = field(default_factory=dict)
    ready_cpu_seconds: float = 0.0


class ComputeRecorder(Clock):
    """Records the steps of 1 worker after its first epoch; `profile` returns them."""

    def __init__(
        self, clock: Clock, model: nn.Module, device: torch.device, communication: Collection[int]
    ) -> None:
        """Record from the second epoch on; `communication` are the threads whose work is no computing.

        Raises UserError on a cluster that is slowed.
        """
        if machine().is_slowed:
            raise UserError(
                f"training.compute_profile = 'on', but this cluster is slowed {machine().factor:g} times; "
                "record the profile on a machine at speed"
            )
        self._clock = clock
        self._communication = communication
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._step = _Step(self._now())
        self._sizes = parameter_bytes(model)
        self._is_warm = False
        self._unread: list[_Step] = []
        self._steps: list[ComputeStep] = []
        for number, weight in enumerate(model.parameters()):
            weight.register_post_accumulate_grad_hook(partial(self._ready, number))  # type: ignore[no-untyped-call]

    def mark(self, phase: Phase) -> None:
        self._clock.mark(phase)
        if self._is_recording:
            self._step.marks.append((phase, self._now()))

    def next_step(self) -> None:
        self._clock.next_step()
        if self._is_recording:
            self._unread.append(self._step)
            self._step = _Step(self._now())

    def pause(self) -> None:
        self._clock.pause()

    def resume(self, now: float) -> None:
        self._clock.resume(now)
        self._step = _Step(self._now())

    def end_epoch(self) -> None:
        """Read what the device noted in an epoch that has ended; from now on it is warm."""
        self._steps += map(self._read, self._unread)
        self._unread = []
        self._is_warm = True

    def profile(self, config: RunConfig, device: str) -> ComputeProfile | None:
        """Return the recorded steps; None of an attempt that went on in the last epoch, its warm-up."""
        if not self._steps:
            return None
        return ComputeProfile(
            device=device,
            batch_per_worker=config.training.batch_per_worker,
            image_height=config.data.image_height,
            image_width=config.data.image_width,
            parameters=list(self._sizes),
            parameter_bytes=list(self._sizes.values()),
            steps=self._steps,
        )

    @property
    def _is_recording(self) -> bool:
        return self._is_warm and len(self._steps) + len(self._unread) < MOST_RECORDED_STEPS

    def _ready(self, number: int, _: Tensor) -> None:
        if not self._is_recording:
            return
        self._step.ready[number] = self._device_now()
        # Not with every gradient: reading the clocks of all threads would make the step longer.
        if len(self._step.ready) == len(self._sizes):
            self._step.ready_cpu_seconds = self._cpu_now()

    def _now(self) -> _Moment:
        return self._device_now(), self._cpu_now()

    def _cpu_now(self) -> float:
        return time.process_time() - thread_cpu_seconds(self._communication)

    def _device_now(self) -> _DeviceMoment:
        if self._stream is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _read(self, step: _Step) -> ComputeStep:
        # Seconds of the device, and CPU seconds of the threads that compute, from one mark to the next.
        seconds: dict[Phase, float] = defaultdict(float)
        cpu_seconds: dict[Phase, float] = defaultdict(float)
        begin, cpu_begin = step.began
        for phase, (end, cpu_end) in step.marks:
            seconds[phase] += _between(begin, end)
            cpu_seconds[phase] += cpu_end - cpu_begin
            begin, cpu_begin = end, cpu_end
        # The backward pass begins where the forward pass ends, or what a GPU's worker loads behind it.
        forward = [phase for phase, _ in step.marks].index(Phase.FORWARD)
        loads = step.marks[forward + 1][0] is Phase.DATA_WAIT
        begin, cpu_begin = step.marks[forward + loads][1]
        ready = [step.ready[number] for number in range(len(self._sizes))]
        return ComputeStep(
            data_seconds=seconds[Phase.DATA_WAIT] + seconds[Phase.HOST_TO_DEVICE],
            data_cpu_seconds=cpu_seconds[Phase.DATA_WAIT] + cpu_seconds[Phase.HOST_TO_DEVICE],
            forward_seconds=seconds[Phase.FORWARD],
            forward_cpu_seconds=cpu_seconds[Phase.FORWARD],
            ready_seconds=[round(_between(begin, moment), NANOSECOND_DIGITS) for moment in ready],
            backward_cpu_seconds=step.ready_cpu_seconds - cpu_begin,
            optimizer_seconds=seconds[Phase.OPTIMIZER],
            optimizer_cpu_seconds=cpu_seconds[Phase.OPTIMIZER],
        )


def _between(begin: _DeviceMoment, end: _DeviceMoment) -> float:
    """Return the seconds between two moments of one device."""
    if isinstance(begin, torch.cuda.Event):
        milliseconds: float = begin.elapsed_time(end)
        return max(0.0, milliseconds / 1000)
    return float(end - begin)


def parameter_bytes(model: nn.Module) -> dict[str, int]:
    """Return the size of every parameter by name, in the order of model.parameters()."""
    return {name: weight.numel() * weight.element_size() for name, weight in model.named_parameters()}
