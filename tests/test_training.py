"""The rate as a function of configuration and epoch; models of the seed alone; the reference U-Net."""

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.studies import make_point
from unet_scaling.base.errors import UserError
from unet_scaling.group.worker import float32_precision
from unet_scaling.model import UNet
from unet_scaling.run import training_state
from unet_scaling.run.training_state import set_float32_precision, weights_sha256
from unet_scaling.study.config import PROJECT, RunConfig
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


def trained(point: RunConfig, *, is_half: bool) -> tuple[list[Tensor], int]:
    """Return the losses and the state after three steps, and the bytes that a forward pass kept at most."""
    model = build_model(load_task(point), CPU, nn.SyncBatchNorm).train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    generator = torch.Generator().manual_seed(1)
    found: list[Tensor] = []
    for _ in range(3):
        images, masks = torch.rand(2, 2, 1, 36, 52, generator=generator)
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
                logits = model(images)
            loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), masks.round())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(loss.detach())
    return [*found, *model.state_dict().values()], sum(kept.values())


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("batch_norm", ["local", "off"])
def test_activations_that_are_computed_again_change_no_byte(batch_norm: str, is_half: bool) -> None:
    """Neither of weights nor of running statistics; images need padding. Fewer bytes are kept."""
    plain, again = (
        trained(make_point(NOWHERE, batch_norm=batch_norm, activation_checkpointing=on), is_half=is_half)
        for on in (False, True)
    )
    assert all(torch.equal(one, other) for one, other in zip(plain[0], again[0], strict=True))
    assert again[1] < plain[1] / 2


def test_every_weight_is_contiguous_as_horovod_needs() -> None:
    model = build_model(load_task(make_point(NOWHERE, channels_last=True)), CPU, nn.SyncBatchNorm)
    assert all(parameter.is_contiguous() for parameter in model.parameters())


@pytest.mark.usefixtures("restored_precision")
@pytest.mark.parametrize(("asked", "computed"), [("fp32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")])
def test_every_back_end_computes_float32_as_asked(asked: str, computed: str) -> None:
    # As torch 2.11 does: the one setting for all leaves convolutions as they are.
    cudnn: Any = torch.backends.cudnn
    cudnn.conv.fp32_precision = "ieee" if computed == "tf32" else "tf32"
    build_model(load_task(make_point(NOWHERE, precision=asked)), CPU, nn.SyncBatchNorm)
    assert set(float32_precision().values()) == {computed}
    # torch refuses to read these where former and new settings differ, and torch.compile reads them.
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == (computed == "tf32")


def test_a_back_end_that_does_not_follow_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_state, "float32_precision", lambda: {"cudnn.conv": "tf32"})
    with pytest.raises(UserError, match=r"cudnn\.conv gives 'tf32'"):
        set_float32_precision("fp32")


@pytest.mark.usefixtures("restored_precision")
@pytest.mark.parametrize(
    ("asked", "capability", "override", "said"),
    [
        ("tf32", (8, 0), "", ""),
        ("tf32", (8, 0), "0", "NVIDIA_TF32_OVERRIDE=0 gives 'ieee'"),
        ("tf32", (7, 0), "", "V100 gives 'ieee'"),
        ("bf16", (8, 0), "0", ""),
    ],
)
def test_tf32_is_what_the_gpu_computes(
    asked: str, capability: tuple[int, int], override: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "V100")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    with pytest.raises(UserError, match=said) if said else nullcontext():
        set_float32_precision(asked)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compile": True}, r"training\.compile = true needs a C\+\+ compiler .* no 'g\+\+'"),
        ({"batch_norm": "sync", "channels_last": False}, r"model\.batch_norm = 'sync'"),
    ],
)
def test_what_this_node_cannot_have_is_refused(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=said):
        build_model(load_task(make_point(NOWHERE, **options)), CPU, nn.SyncBatchNorm)


@pytest.mark.verify
def test_steps_are_those_of_reference_mode_but_for_rounding() -> None:
    """In float64. In float32 rounding decides: Adam divides gradients by their size, also noise."""
    command = ["-m", "benchmarks.step", "--agree", "--steps", "4", "--size", "64x48", "--batch", "2"]
    done = subprocess.run([sys.executable, *command], cwd=PROJECT, capture_output=True, text=True, check=True)
    printed = re.search(r"own in float64 against reference in float64: (\S+) relative, over 4", done.stdout)
    assert printed is not None, done.stdout
    assert float(printed[1]) < 1e-5


def test_has_the_reference_size() -> None:
    parameters = list(UNet().parameters())
    assert len(parameters) == 82
    assert sum(parameter.numel() for parameter in parameters) == 487_145
    assert len(list(UNet().buffers())) == 54


def test_odd_sizes_are_padded_evenly_with_zeros() -> None:
    torch.manual_seed(0)
    model = UNet(width=2, depth=3).eval()
    image = torch.rand(1, 1, 13, 10)
    padded = torch.zeros(1, 1, 16, 12)
    padded[..., 1:14, 1:11] = image
    assert torch.equal(model(image), model(padded)[..., 1:14, 1:11])


@pytest.mark.parametrize(
    ("channels", "classes", "depth", "height", "width"),
    [(1, 4, 1, 1, 1), (3, 1, 2, 16, 17), (3, 4, 5, 50, 37), (1, 1, 4, 64, 64)],
)
def test_gives_one_logit_per_pixel_and_class_at_any_size_and_depth(
    channels: int, classes: int, depth: int, height: int, width: int
) -> None:
    model = UNet(channels, width=2, depth=depth, classes=classes).eval()
    assert model(torch.rand(2, channels, height, width)).shape == (2, classes, height, width)
    assert list(UNet(depth=depth, norm=nn.Identity).buffers()) == []


def test_channels_last_images_change_no_result() -> None:
    torch.manual_seed(0)
    model = UNet(width=4, depth=3).eval()
    image = torch.rand(1, 3, 24, 24)[:, :1]
    there = image.to(torch.float32, memory_format=torch.channels_last)
    assert torch.allclose(model(image), model(there), atol=1e-6)


def test_a_copy_for_inference_has_no_norms_and_gives_the_same_logits() -> None:
    torch.manual_seed(0)
    model = UNet(width=4, depth=3)
    for _ in range(20):
        model(torch.rand(8, 1, 24, 24))  # for statistics that are not those of a new network
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, -2, 2)
            nn.init.uniform_(part.bias, -1, 1)
    other = model.for_inference()
    assert not any(isinstance(part, nn.BatchNorm2d) for part in other.modules())
    assert model.training
    assert len(list(model.buffers())) > 0
    images = torch.rand(4, 1, 24, 24)
    in_training = model(images)
    expected = model.for_inference()(images)
    assert torch.allclose(expected, model.eval()(images), rtol=0, atol=1e-5)
    # The statistics moved on with that pass: the first copy has its own.
    assert not torch.allclose(other(images), expected, rtol=0, atol=1e-4)
    assert not torch.allclose(in_training, expected, rtol=0, atol=1e-3)


def test_a_copy_for_inference_of_a_network_without_norms_is_equal() -> None:
    model = UNet(width=2, depth=3, norm=nn.Identity).eval()
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(model.for_inference()(images), model(images))
