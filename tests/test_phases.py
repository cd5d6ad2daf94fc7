"""The phases of a step: every moment belongs to one, and the last gradient ends backward."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unet_scaling.measure import phases as product
from unet_scaling.measure.phases import NO_CLOCK, Clock, HostClock, phase_clock
from unet_scaling.study.measurements import Phase

NAP = 0.25  # a power of two, so that sums of naps are exact


class HandClock:
    """A clock that stands still but for naps."""

    def __init__(self) -> None:
        self.now = 7.0

    def perf_counter(self) -> float:
        return self.now

    def nap(self, seconds: float) -> None:
        self.now += seconds


TIME = HandClock()


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "clock_seconds", TIME.perf_counter)


class Slow(torch.autograd.Function):
    """The identity, whose backward takes a nap."""

    @staticmethod
    def forward(context: object, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        TIME.nap(NAP)
        return gradient


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))


def take_step(network: nn.Module, clock: Clock, passes: int = 1, first: int = 1) -> None:
    """One step as training takes it, with naps of known length."""
    for number in range(first, passes + 1):
        loss = Slow.apply(network(torch.ones(2, 3))).sum()  # type: ignore[no-untyped-call]
        clock.mark(Phase.FORWARD)
        loss.backward()
        if number < passes:
            clock.mark(Phase.BACKWARD)
    TIME.nap(2 * NAP)
    clock.mark(Phase.SYNC)
    clock.next_step()


def measured(passes: int = 1, steps: int = 3) -> np.ndarray:
    network = model()
    clock = HostClock(network, steps, passes)
    began = TIME.perf_counter()
    clock.begin()
    clock.resume(began)
    for _ in range(steps):
        take_step(network, clock, passes)
    return clock.seconds(TIME.perf_counter() - began)


def test_backward_ends_with_the_last_gradient_and_sync_begins() -> None:
    phases = measured()
    assert np.all(phases[:, Phase.BACKWARD] == NAP)
    assert np.all(phases[:, Phase.SYNC] == 2 * NAP)
    assert phases.sum() == 3 * 3 * NAP


def test_all_passes_of_a_step_count_and_only_the_last_one_waits() -> None:
    phases = measured(passes=3)
    assert np.all(phases[:, Phase.BACKWARD] == 3 * NAP)
    assert np.all(phases[:, Phase.SYNC] == 2 * NAP)
    assert phases.sum() == 3 * 5 * NAP


def test_the_phases_sum_to_the_epoch() -> None:
    network = model()
    clock = HostClock(network, 2, 1)
    clock.begin()
    clock.resume(TIME.perf_counter())
    for _ in range(2):
        take_step(network, clock)
    assert clock.seconds(5.0).sum() == pytest.approx(5.0)


def test_each_epoch_begins_anew() -> None:
    network = model()
    clock = HostClock(network, 1, 1)
    for _ in range(2):
        began = TIME.perf_counter()
        clock.begin()
        clock.resume(began)
        take_step(network, clock)
        seconds = TIME.perf_counter() - began
        assert clock.seconds(seconds).sum() == pytest.approx(seconds)


def test_a_parameter_without_a_gradient_leaves_sync_unknown() -> None:
    network = model()
    network.register_parameter("idle", nn.Parameter(torch.ones(1)))
    clock = HostClock(network, 1, 1)
    clock.begin()
    clock.resume(TIME.perf_counter())
    take_step(network, clock)
    phases = clock.seconds(1.0)
    assert np.isnan(phases[0, [Phase.BACKWARD, Phase.SYNC]]).all()
    assert np.isfinite(phases[0, [Phase.FORWARD, Phase.OPTIMIZER]]).all()


def test_a_pass_that_gave_no_gradients_leaves_sync_unknown() -> None:
    network = model()
    clock = HostClock(network, 1, 2)
    clock.begin()
    clock.resume(TIME.perf_counter())
    take_step(network, clock, passes=2, first=2)
    assert np.isnan(clock.seconds(1.0)[0, Phase.SYNC])


def hooks(network: nn.Module) -> int:
    return sum(len(weight._post_accumulate_grad_hooks or ()) for weight in network.parameters())


def test_hooks_are_on_every_parameter_and_go_again() -> None:
    network = model()
    clock = phase_clock(network, 1, 1, torch.device("cpu"))
    assert hooks(network) == 4
    clock.close()
    assert hooks(network) == 0


def test_no_clock_leaves_no_hook() -> None:
    network = model()
    take_step(network, NO_CLOCK)
    assert hooks(network) == 0
