"""The rate as a function of configuration and epoch; models as a function of the seed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.studies import make_point
from unet_scaling.run.weights import weights_sha256
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.task.loading import load_task
from unet_scaling.training import build_model, learning_rate

NOWHERE = Path("nowhere")
CPU = torch.device("cpu")


def rates(epochs: int = 200, workers: int = 4, **options: Any) -> list[float]:
    point = make_point(NOWHERE, workers=workers, epochs=epochs, learning_rate=0.001, **options)
    return [learning_rate(point, epoch) for epoch in range(epochs)]


def test_follows_the_reference_schedule_from_the_first_epoch() -> None:
    found = rates()
    assert {found[epoch] for epoch in range(80)} == {0.004}
    assert found[80] == found[119] == 0.002
    assert found[120] == found[149] == 0.001
    assert found[150] == found[199] == 0.0005


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4), ("square_root", 2), ("none", 1)])
def test_scales_with_the_workers(rule: str, factor: int) -> None:
    assert rates(rate_scaling=rule)[0] == 0.001 * factor


def test_warm_up_climbs_in_equal_stairs() -> None:
    assert rates(warmup_epochs=2)[:4] == pytest.approx([0.002, 0.003, 0.004, 0.004])


def test_a_constant_schedule_stays() -> None:
    assert set(rates(schedule="constant")) == {0.004}


def test_weights_follow_from_the_seed_alone() -> None:
    point = make_point(NOWHERE)
    first = build_model(load_task(point), CPU, nn.SyncBatchNorm)
    torch.rand(10)
    assert weights_sha256(build_model(load_task(point), CPU, nn.SyncBatchNorm)) == weights_sha256(first)
    other = point.model_copy(update={"seed": 4})
    assert weights_sha256(build_model(load_task(other), CPU, nn.SyncBatchNorm)) != weights_sha256(first)


def test_every_weight_is_contiguous_as_horovod_needs() -> None:
    model = build_model(load_task(make_point(NOWHERE, channels_last=True)), CPU, nn.SyncBatchNorm)
    assert all(parameter.is_contiguous() for parameter in model.parameters())


def test_compilation_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"training\.compile = true needs a C\+\+ compiler .* no 'g\+\+'"):
        build_model(load_task(make_point(NOWHERE, compile=True)), CPU, nn.SyncBatchNorm)


def gradients_of_one_backward() -> list[Tensor | None]:
    """The gradients of a new model in float64, on images that are always the same."""
    model = build_model(load_task(make_point(NOWHERE, width=4, depth=2)), CPU, nn.SyncBatchNorm).double()
    torch.manual_seed(1)
    model(torch.rand(2, 1, 8, 8).double()).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_a_relu_in_place_gives_the_gradients_of_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    in_place = gradients_of_one_backward()
    of_a_copy = mock.Mock(side_effect=functional.relu)
    monkeypatch.setattr(functional, "relu_", of_a_copy)
    plain = gradients_of_one_backward()
    assert of_a_copy.call_count == 6  # two in each of three ConvolutionPairs: none is left in place
    for one, other in zip(in_place, plain, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other)


def test_twenty_steps_are_those_of_reference_mode_but_for_rounding() -> None:
    """In float64. In float32 rounding decides: Adam divides gradients by their size, also noise."""
    command = ["-m", "benchmarks.step", "--agree", "--steps", "20", "--size", "64x48", "--batch", "4"]
    done = subprocess.run([sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, check=True)
    printed = re.search(r"own in float64 against reference in float64: (\S+) relative, over 20", done.stdout)
    assert printed is not None, done.stdout
    assert float(printed[1]) < 1e-5


def test_synchronized_norm_on_a_cpu_is_refused() -> None:
    with pytest.raises(UserError, match=r"model\.batch_norm = 'sync'"):
        build_model(load_task(make_point(NOWHERE, batch_norm="sync")), CPU, nn.SyncBatchNorm)
