"""An emulated worker: all that communicates is there; loading, computing and updates are waited for.

Each is waited for as long as a recorded step took, and keeps a core as busy. Every part of a step ends where
the recorded one did, counted from the end of the part before it, so that what emulating costs is no part of
the step as long as the recorded work cost more. Within a part the worker keeps its core for the recorded CPU
seconds, then sleeps. On a cluster that is slowed k times a part lasts k times as long, and costs as many CPU
seconds: its share of a core is k times smaller.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.base.errors import UserError
from unet_scaling.base.machine import wall_seconds
from unet_scaling.data.batches import ImageBatch, ImageData, StepBatches
from unet_scaling.data.order import Indices
from unet_scaling.format.compute_profile import ComputeProfile, ComputeStep, profile_of
from unet_scaling.format.record_lines import ComputeFacts
from unet_scaling.group.group import Group
from unet_scaling.measure.compute_recorder import parameter_bytes
from unet_scaling.measure.epoch_meter import Clock
from unet_scaling.model import Norm, UNet
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import EMULATION_STREAM, Data

# A gradient may be ready so much too early, as the emulated machine counts, but for the last one: to wake a
# thread takes up to 0.2 ms of a core, and the reference network has 82 gradients.
SHORTEST_SLEEP_SECONDS = 1e-4
# An operation of prctl(2): by default Linux wakes a thread up to 50 microseconds late.
PR_SET_TIMERSLACK = 29
TIMER_SLACK_NANOSECONDS = 1
# One pixel: nothing is computed of it.
_PIXEL = (1, 1, 1, 1)


@dataclass(frozen=True)
class _Part:
    """A part of a step: how long it lasts here, and the CPU seconds that it takes of one core."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class _Step:
    """Its parts; parameters in the order in which their gradients get ready, and when.

    Those moments are counted since the backward pass began, which is when the forward pass ends.
    """

    data: _Part
    forward: _Part
    optimizer: _Part
    order: tuple[int, ...]
    ready_seconds: tuple[float, ...]
    ready_cpu_seconds: tuple[float, ...]


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
        self._shortest_sleep = wall_seconds(SHORTEST_SLEEP_SECONDS)
        # This thread is to be woken when its sleep ends.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NANOSECONDS, 0, 0, 0)

    def begin_epoch(self, epoch: int, passes: int, first: int) -> None:
        """Draw the steps of an epoch with so many passes each; `first` steps are done already."""
        numbers = np.random.PCG64([*self._key, epoch, EMULATION_STREAM]).random_raw(passes)
        places: list[int] = (numbers % len(self._steps)).tolist()
        self._drawn = iter([self._steps[place] for place in places[first:]])
        self._cleared = _NOTHING

    def begin_pass(self) -> None:
        """Begin the next pass, by `step`; its data are waited for first."""
        self.step = next(self._drawn)
        self._waited_for = self._cleared
        self._cleared = _NOTHING
        self._optimizer = self.step.optimizer
        self._begin(self._waited_for)

    def skip_loading(self) -> None:
        """Begin the forward pass: the batch was really loaded."""
        self._begin(self._waited_for)

    def gradient(self, place: int) -> None:
        """Wait until the gradient is ready that comes at this place, from 0, in the order of the step."""
        step = self.step
        is_last = place + 1 == len(step.order)
        _keep_core(self._cpu_began + step.ready_cpu_seconds[place])
        _sleep_until(self._began + step.ready_seconds[place], 0.0 if is_last else self._shortest_sleep)

    def update(self) -> None:
        """Wait as long as the optimizer took; before any pass there is nothing to update."""
        self._begin(_NOTHING)
        self.wait_for(self._optimizer)

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
        """Begin a part now; this much of it was waited for already."""
        self._began = time.perf_counter() - waited_for.seconds
        self._cpu_began = time.thread_time() - waited_for.cpu_seconds

    def wait_for(self, part: _Part) -> None:
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
        _part(step.optimizer_seconds, step.optimizer_cpu_seconds),
        tuple(order),
        tuple(map(wall_seconds, ready)),
        tuple(share * moment for moment in ready),
    )


def _part(seconds: float, cpu_seconds: float) -> _Part:
    # One thread waits: it cannot keep more than one core.
    return _Part(wall_seconds(seconds), min(cpu_seconds, seconds))


def _keep_core(until_cpu_seconds: float) -> None:
    while time.thread_time() < until_cpu_seconds:
        pass


def _sleep_until(moment: float, shortest_seconds: float) -> None:
    seconds = moment - time.perf_counter()
    if seconds > shortest_seconds:
        time.sleep(seconds)


class ReplayedImages:
    """As many images as the manifest lists; a batch takes as long as the recorded one did."""

    def __init__(self, count: int, data: Data) -> None:
        self.boxes = np.tile(
            np.array([0, 0, data.image_height, data.image_width], dtype=np.int32), (count, 1)
        )

    def gather(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Wait as loading would; return one pixel instead of the images."""
        emulated_compute.wait_for(emulated_compute.step.data)
        return torch.zeros(_PIXEL, dtype=torch.uint8), torch.zeros(_PIXEL[1:], dtype=torch.uint8)


@dataclass(frozen=True)
class EmulatedData(ImageData):
    """The batches of an emulated worker, each of one pixel; with each of them it begins a recorded step."""

    def steps(self, epoch: int, clock: Clock, first: int = 0) -> Iterator[StepBatches]:
        passes = self.config.passes_per_step
        emulated_compute.begin_epoch(epoch, self.steps_per_epoch * passes, first * passes)
        return super().steps(epoch, clock, first)

    def _next(self, gathered: Iterator[tuple[Tensor, Tensor]], clock: Clock) -> ImageBatch:
        emulated_compute.begin_pass()
        batch: ImageBatch = super()._next(gathered, clock)
        return batch

    def _transformed(self, batch: ImageBatch, epoch: int, indices: Indices, clock: Clock) -> ImageBatch:
        if self.config.emulation.data == "real":
            super()._transformed(batch, epoch, indices, clock)
            emulated_compute.skip_loading()
        return ImageBatch(torch.zeros(_PIXEL), torch.zeros(_PIXEL))


def emulated_profile(config: RunConfig, group: Group) -> ComputeFacts:
    """Let this worker wait by its profile from now on; return which one it is. UserError where it cannot."""
    if group.device.type != "cpu":
        found = f"{config.emulation.compute!r}: emulated workers have no GPU, but this one owns one"
        raise UserError(f"emulation.compute = {found}; set CUDA_VISIBLE_DEVICES= to hide it")
    file = profile_of(config)
    emulated_compute.start(file.profile, config.seed, group.rank)
    device, assumption = file.profile.device, file.profile.assumption
    return ComputeFacts(name=file.name, sha256=file.sha256, device=device, assumption=assumption)


class EmulatedUNet(UNet):
    """The parameters of the U-Net. Its passes wait; gradients are zero, ready in the recorded order."""

    def forward(self, images: Tensor) -> Tensor:
        """Return one logit of zero, whatever the images are."""
        step = emulated_compute.step
        weights = list(self.parameters())
        logits = images.new_zeros(1, 1, 1, 1)
        # The node that is made last runs first in the backward pass; a gradient is accumulated, and its hooks
        # are called, before the next node runs.
        for place in reversed(range(len(step.order))):
            weight = weights[step.order[place]]
            logits = _ReadyGradient.apply(logits, weight, place)  # type: ignore[no-untyped-call]
        emulated_compute.wait_for(step.forward)
        return logits


def emulated_unet(config: RunConfig, channels: int, width: int, depth: int, norm: Norm) -> EmulatedUNet:
    """Return what stands for the U-Net; UserError where the profile to wait by is of another network."""
    model = EmulatedUNet(channels, width, depth, norm=norm)
    file = profile_of(config)
    sizes = parameter_bytes(model)
    pairs = list(zip(file.profile.parameters, file.profile.parameter_bytes, strict=True))
    if pairs != list(sizes.items()):
        other = next((pair for pair in pairs if pair not in sizes.items()), None)
        detail = f"{other[0]!r} of {other[1]} bytes is none of them" if other else "their order differs"
        raise UserError(
            f"{file.path}: parameters: found {len(pairs)}, the model has {len(sizes)}, and {detail}; set "
            "[model] as in the run that recorded it, or use a profile of this model"
        )
    return model


class _ReadyGradient(torch.autograd.Function):
    """The identity; in the backward pass it waits, then gives the parameter its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, weight: Tensor, place: int) -> Tensor:  # noqa: ANN401
        ctx.weight = weight
        ctx.place = place
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        # A new tensor each time, which the parameter takes over without a copy.
        own = torch.zeros_like(ctx.weight)
        emulated_compute.gradient(ctx.place)
        return gradient, own, None


class EmulatedAdam(torch.optim.Adam):
    """Waits as long as an update took, and changes no weight."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        with emulated_compute.clearing():
            super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        emulated_compute.update()
