"""Record how long one worker computes in each part of a step, and when each gradient is ready.

A clock between the training loop and the clock of the budget, if there is one: the marks of the phases are
passed on. The first epoch warms up and is not recorded.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from unet_scaling.measure.cpu_counters import thread_cpu_seconds
from unet_scaling.measure.epoch_meter import NANOSECOND_DIGITS
from unet_scaling.measure.phases import Clock
from unet_scaling.study.compute_profile import ComputeProfile, ComputeStep
from unet_scaling.study.config import RunConfig
from unet_scaling.study.dilation import dilation
from unet_scaling.study.errors import UserError
from unet_scaling.study.measurements import Phase

# More make the spread of the steps no better known, and the file larger than 1 MB.
MOST_RECORDED_STEPS = 500
_LOADING = (Phase.DATA_WAIT, Phase.HOST_TO_DEVICE)


@dataclass(frozen=True)
class _Moment:
    """A moment of the device, and the CPU seconds of the threads that compute until then."""

    device: float | torch.cuda.Event
    cpu_seconds: float


@dataclass
class _Step:
    """The moments of a step: its begin, the marks of its phases, and the gradients by parameter."""

    began: _Moment
    marks: list[tuple[Phase, _Moment]] = field(default_factory=list)
    ready: dict[int, _Moment] = field(default_factory=dict)


class ComputeRecorder(Clock):
    """Records the steps of 1 worker after its first epoch; `profile` returns them."""

    def __init__(
        self, clock: Clock, model: nn.Module, device: torch.device, communication: Collection[int]
    ) -> None:
        """Record from the second epoch on; `communication` are the threads whose work is no computing.

        Raises UserError on a cluster that is slowed.
        """
        if dilation() > 1:
            raise UserError(
                f"training.compute_profile = 'on', but this cluster is slowed {dilation():g} times; record "
                "the profile on a machine at speed"
            )
        self._clock = clock
        self._communication = communication
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._step = _Step(self._now())
        self._sizes = {
            name: weight.numel() * weight.element_size() for name, weight in model.named_parameters()
        }
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

    def profile(self, config: RunConfig, device: str) -> ComputeProfile:
        """Return the recorded steps. Raises UserError where there is none, or one lacks a gradient."""
        if not self._steps:
            raise UserError("training.compute_profile = 'on': this attempt had no epoch after its warm-up")
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
        if self._is_recording:
            self._step.ready[number] = self._now()

    def _now(self) -> _Moment:
        return _Moment(self._device_now(), time.process_time() - thread_cpu_seconds(self._communication))

    def _device_now(self) -> float | torch.cuda.Event:
        if self._stream is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def _read(self, step: _Step) -> ComputeStep:
        seconds = dict.fromkeys(Phase, 0.0)
        cpu_seconds = dict.fromkeys(Phase, 0.0)
        for phase, begin, end in _intervals(step):
            seconds[phase] += _between(begin, end)
            cpu_seconds[phase] += end.cpu_seconds - begin.cpu_seconds
        backward = next(moment for phase, moment in step.marks if phase is Phase.FORWARD)
        ready = [step.ready[number] for number in range(len(self._sizes))]
        last = max(moment.cpu_seconds for moment in ready)
        return ComputeStep(
            data_seconds=sum(seconds[phase] for phase in _LOADING),
            data_cpu_seconds=sum(cpu_seconds[phase] for phase in _LOADING),
            forward_seconds=seconds[Phase.FORWARD],
            forward_cpu_seconds=cpu_seconds[Phase.FORWARD],
            ready_seconds=[round(_between(backward, moment), NANOSECOND_DIGITS) for moment in ready],
            backward_cpu_seconds=last - backward.cpu_seconds,
            optimizer_seconds=seconds[Phase.OPTIMIZER],
            optimizer_cpu_seconds=cpu_seconds[Phase.OPTIMIZER],
        )


def _intervals(step: _Step) -> Iterator[tuple[Phase, _Moment, _Moment]]:
    """Yield each phase with the mark before it and its own."""
    before = step.began
    for phase, moment in step.marks:
        yield phase, before, moment
        before = moment


def _between(begin: _Moment, end: _Moment) -> float:
    """Return the seconds between two moments of one device."""
    if isinstance(begin.device, float) or isinstance(end.device, float):
        assert isinstance(begin.device, float)
        assert isinstance(end.device, float)
        return end.device - begin.device
    milliseconds: float = begin.device.elapsed_time(end.device)
    return max(0.0, milliseconds / 1000)
