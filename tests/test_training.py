"""The rate as a function of configuration and epoch; models as a function of the seed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.studies import make_point
from unet_scaling.run.weights import weights_sha256
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.training import build_model, learning_rate, load_task

NOWHERE = Path("nowhere")
CPU = torch.device("cpu")


def rates(epochs: int = 200, workers: int = 4, **options: Any) -> list[float]:
    point = make_point(NOWHERE, workers=workers, epochs=epochs, learning_rate=0.001, **options)
    return [learning_rate(point, epoch) for epoch in range(epochs)]


def test_the_rate_follows_workers_warm_up_and_the_reference_schedule() -> None:
    found = rates()
    assert {found[epoch] for epoch in range(80)} == {0.004}
    assert found[80] == found[119] == 0.002
    assert found[120] == found[149] == 0.001
    assert found[150] == found[199] == 0.0005
    for rule, factor in (("linear", 4), ("square_root", 2), ("none", 1)):
        assert rates(rate_scaling=rule)[0] == 0.001 * factor
    assert rates(warmup_epochs=2)[:4] == pytest.approx([0.002, 0.003, 0.004, 0.004])
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compile": True}, r"training\.compile = true needs a C\+\+ compiler .* no 'g\+\+'"),
        ({"batch_norm": "sync"}, r"model\.batch_norm = 'sync'"),
    ],
)
def test_what_this_node_cannot_have_is_refused(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=said):
        build_model(load_task(make_point(NOWHERE, **options)), CPU, nn.SyncBatchNorm)


@pytest.mark.slow
def test_steps_are_those_of_reference_mode_but_for_rounding() -> None:
    """In float64. In float32 rounding decides: Adam divides gradients by their size, also noise."""
    command = ["-m", "benchmarks.step", "--agree", "--steps", "4", "--size", "64x48", "--batch", "2"]
    done = subprocess.run([sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, check=True)
    printed = re.search(r"own in float64 against reference in float64: (\S+) relative, over 4", done.stdout)
    assert printed is not None, done.stdout
    assert float(printed[1]) < 1e-5
