"""What only a GPU can show: rounding, events, kernels, the driver; `make gpu` keeps what they measure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.studies import make_images, make_point
from unet_scaling.data.batches import ImageBatch, augment, draw, to_device
from unet_scaling.format.record_lines import Phase
from unet_scaling.group.group import single_worker
from unet_scaling.group.identity import identify
from unet_scaling.group.rendezvous import twin_functions
from unet_scaling.group.worker import own_device, own_facts, versions
from unet_scaling.measure.counters import open_gpu
from unet_scaling.measure.epoch_meter import NO_CLOCK, phase_clock, synchronized_seconds
from unet_scaling.profile.measure import plain_step
from unet_scaling.run.training_state import (
    generators,
    pack_state,
    set_float32_precision,
    set_generators,
    unpack_state,
)
from unet_scaling.study.config import FRAMEWORKS, Framework, RunConfig
from unet_scaling.training import Step, Twin, build_model, build_optimizer, load_task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="make gpu runs it on a GPU node"),
]

NOWHERE = Path("nowhere")
# TF32 keeps 10 bits: errors about 3e-4; of fp32 below 1e-6.
BETWEEN_FP32_AND_TF32 = 1e-5
Note = Any


@pytest.fixture
def device() -> torch.device:
    return own_device(identify({}))


@pytest.fixture(scope="module")
def _horovod() -> Iterator[None]:
    """Start Horovod once: MPI cannot be started again after its end."""
    import horovod.torch as hvd

    hvd.init()
    yield
    hvd.shutdown()


def random_batch(config: RunConfig) -> tuple[Tensor, Tensor]:
    """Bytes of images and packed masks, as the cache gives them."""
    random = np.random.default_rng(0)
    data, batch = config.data, config.training.batch_per_worker
    images = random.integers(0, 256, (batch, data.image_height, data.image_width, 1), dtype=np.uint8)
    masks = random.integers(0, 256, (batch, data.image_height, -(-data.image_width // 8)), dtype=np.uint8)
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(masks)


def relative_error(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.usefixtures("restored_precision")
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_float32_is_as_exact_as_the_run_asks(
    precision: str, device: torch.device, record_property: Note
) -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 32, 128, 128, device=device)
    weights = torch.randn(32, 32, 3, 3, device=device)
    matrix = torch.randn(1024, 1024, device=device)
    exact = functional.conv2d(images.double(), weights.double(), padding=1), matrix.double() @ matrix.double()
    set_float32_precision(precision)
    found = functional.conv2d(images, weights, padding=1), matrix @ matrix
    for name, one, right in zip(("convolution", "product"), found, exact, strict=True):
        error = relative_error(one, right)
        record_property(f"relative error of a {name} in {precision}", error)
        assert (error < BETWEEN_FP32_AND_TF32) == (precision == "fp32")


@pytest.mark.usefixtures("_horovod")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_that_are_not_finite_change_no_weight(framework: Framework, device: torch.device) -> None:
    """The fused optimizer skips them on the device, also where Horovod has made another object of it."""
    config = make_point(NOWHERE, framework)
    step = plain_step(config, device)
    if framework == "horovod":
        task = load_task(config)
        model = build_model(task, device, nn.BatchNorm2d).train()
        names = ("distribute", "hold_gradients", "wait_for_gradients", "update")
        twin = Twin(*(twin_functions(framework)[name] for name in names))
        step = Step(task, *twin.distribute(model, build_optimizer(task, model), config), twin)
    batch = ImageBatch(*to_device(*random_batch(config), device, True))
    step.take([batch], NO_CLOCK)
    before = [weight.detach().clone() for weight in step.model.parameters()]
    assert not step.guard.triggered()
    step.optimizer.zero_grad()
    step.average_gradients(step.players, [batch], NO_CLOCK)
    gradient = next(step.model.parameters()).grad
    assert gradient is not None
    gradient[0] = float("nan")
    step.update(NO_CLOCK)
    assert step.guard.triggered()
    assert all(torch.equal(one, other) for one, other in zip(before, step.model.parameters(), strict=True))


def test_events_sum_to_the_seconds_of_a_synchronised_clock(
    device: torch.device, record_property: Note
) -> None:
    config = make_point(NOWHERE, image_height=512, image_width=512, width=8, depth=5, batch_per_worker=8)
    step = plain_step(config, device)
    batch = ImageBatch(*to_device(*random_batch(config), device, True))
    steps = 10
    clock = phase_clock(step.model, steps, 1, device)
    for _ in range(2):  # the first warms up
        clock.begin()
        begin = synchronized_seconds(device)
        clock.resume(begin)
        for _ in range(steps):
            step.take([batch], clock)
            clock.next_step()
        clock.pause()
        seconds = synchronized_seconds(device) - begin
        phases = clock._measured(seconds)
    record_property("seconds of events by those of the clock", float(phases.sum()) / seconds)
    for phase in Phase:
        record_property(f"ms of {phase.name.lower()}", 1000 * float(phases[:, phase].mean()))
    assert 0.97 < float(phases.sum()) / seconds < 1.01
    assert phases[:, Phase.BACKWARD].min() > 0


def test_bytes_become_the_same_images_and_masks_on_the_device(device: torch.device) -> None:
    config = make_point(
        NOWHERE, augment_flips=True, augment_crop=0.75, augment_brightness=0.1, augment_contrast=0.1,
        image_width=45, batch_per_worker=8,
    )  # fmt: skip
    draws = draw(1, 2, np.arange(8))
    packed = random_batch(config)
    found = []
    for place in (torch.device("cpu"), device):
        pair = to_device(*packed, place, True)
        found.append([each.cpu() for each in (*pair, *augment(config.data, *pair, draws))])
    for here, there in zip(*found, strict=True):
        assert torch.allclose(here, there, rtol=0, atol=1e-6)
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][3], found[1][3])


@pytest.mark.usefixtures("_horovod")
def test_horovods_batch_norm_over_all_workers_is_plain_batch_norm_on_one(device: torch.device) -> None:
    """It calls kernels that torch has for GPUs alone."""
    from horovod.torch.sync_batch_norm import _SyncBatchNorm

    found = []
    for kind in ("synchronised", "plain"):
        torch.manual_seed(0)
        images = torch.randn(4, 8, 32, 32, device=device, requires_grad=True)
        weight, bias = (torch.randn(8, device=device, requires_grad=True) for _ in range(2))
        mean, variance = torch.zeros(8, device=device), torch.ones(8, device=device)
        if kind == "plain":
            out = functional.batch_norm(images, mean, variance, weight, bias, True, 0.1, 1e-5)
        else:
            out = _SyncBatchNorm.apply(images, weight, bias, mean, variance, 1e-5, 0.1)
        scale = torch.linspace(0, 1, out.numel(), device=device).view_as(out)
        torch.autograd.backward((out * scale).sum())
        found.append([out, images.grad, weight.grad, bias.grad, mean, variance])
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert relative_error(one, other.double()) < 1e-4


def test_dropout_repeats_from_the_state_that_a_checkpoint_keeps(device: torch.device) -> None:
    ones = torch.ones(10_000, device=device)
    state = unpack_state(pack_state(generators()))
    first = functional.dropout(ones, 0.5)
    assert not torch.equal(first, functional.dropout(ones, 0.5))
    set_generators(state)
    assert torch.equal(first, functional.dropout(ones, 0.5))


def test_the_host_waits_for_nothing_inside_a_step(device: torch.device, tmp_path: Path) -> None:
    """CUDA itself raises where an operation would wait."""
    config = make_point(make_images(tmp_path / "images", 20), augment_flips=True, augment_brightness=0.1)
    step = plain_step(config, device)
    data = step.task.load_data(single_worker(device))
    clock = phase_clock(step.model, data.steps_per_epoch, 1, device)
    clock.begin()
    clock.resume(synchronized_seconds(device))
    taken = 0
    try:
        for batches in data.steps(0, clock):
            step.take(batches, clock)
            clock.next_step()
            taken += 1
            torch.cuda.set_sync_debug_mode("error")  # from the second step on
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert taken == data.steps_per_epoch > 2


def test_the_driver_tells_energy_power_memory_and_use_of_the_own_gpu(
    device: torch.device, record_property: Note
) -> None:
    gpu = open_gpu(device)
    assert gpu is not None, "nvidia-ml-py is not installed, or the driver does not answer"
    gpu.begin()
    facts = gpu.facts().model_dump()
    for name, value in facts.items():
        record_property(name, value)
    # In a container the driver does not list this process: what others have in memory is not known there.
    assert {name for name, value in facts.items() if value is None} <= {"other_memory_bytes"}
    own = own_facts(identify({}), device, {})
    assert own.device_uuid
    assert own.device == torch.cuda.get_device_name(device)
    assert {"cuda", "nccl"} <= versions().keys()
