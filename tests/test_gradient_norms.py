"""The norms that the noise scale is made of: of each worker's own gradient, under both frameworks alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analysis.statistics.noise_scale import estimate_noise_scale
from tests.studies import make_point
from tests.test_played import played_config
from tests.trained import TrainedRuns, plain_config
from unet_scaling.group.group import single_worker
from unet_scaling.measure.noise_scale import GradientNormMeter, gradient_norm_meter, steps_between_samples
from unet_scaling.study.config import FRAMEWORKS, RunConfig

PLAYERS = 3
PASSES = 2
NOWHERE = Path("/images")


def config(**options: Any) -> RunConfig:
    """One real worker that plays three, two passes each, and samples every second step."""
    chosen = {"plays": PLAYERS, "accumulate": PASSES, "noise_scale_every": 2}
    return make_point(NOWHERE, **(chosen | options))


def meter_of(model: nn.Module, run: RunConfig) -> GradientNormMeter:
    meter = gradient_norm_meter(model, run)
    assert meter is not None
    meter.begin()
    return meter


def model_and_batches() -> tuple[nn.Module, Tensor]:
    """A network, and the images of each pass of each player [players, passes, images, features]."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(PLAYERS, PASSES, 6, 5)


def own_gradient(model: nn.Module, images: Tensor) -> Tensor:
    """The gradient of the mean loss of one player's images, as one vector."""
    gradients = torch.autograd.grad(model(images.flatten(0, 1)).square().mean(), [*model.parameters()])
    return torch.cat([each.flatten() for each in gradients])


def take_step(model: nn.Module, batches: Tensor) -> None:
    """A step whose passes come player by player, the loss of each divided by all of them."""
    model.zero_grad()
    for images in batches.flatten(0, 1):
        (model(images).square().mean() / (PLAYERS * PASSES)).backward()


def test_norms_are_those_of_each_players_gradient_and_of_their_mean() -> None:
    model, batches = model_and_batches()
    meter = meter_of(model, config())
    for step in range(4):
        with meter.sampling(step):
            take_step(model, batches * (step + 1))
    norms = meter.gather(single_worker())
    for number, scale in enumerate((2, 4)):
        own = torch.stack([own_gradient(model, images * scale) for images in batches])
        assert norms.own_squared[number] == pytest.approx(float(own.square().sum(dim=1).mean()), rel=1e-5)
        assert norms.mean_squared[number] == pytest.approx(float(own.mean(dim=0).square().sum()), rel=1e-5)
    assert len(norms.own_squared) == 2


def hooks(model: nn.Module) -> int:
    return sum(len(weight._post_accumulate_grad_hooks or ()) for weight in model.parameters())


def fail_in_a_step(meter: GradientNormMeter, model: nn.Module) -> None:
    with meter.sampling(1):
        assert hooks(model) == len([*model.parameters()])
        raise RuntimeError("the step failed")


def test_only_a_sampled_step_has_hooks_and_only_while_it_lasts() -> None:
    model, _ = model_and_batches()
    meter = meter_of(model, config())
    with meter.sampling(0):
        assert hooks(model) == 0
    with pytest.raises(RuntimeError):
        fail_in_a_step(meter, model)
    assert hooks(model) == 0


def test_a_step_that_is_not_finite_or_not_whole_is_left_out() -> None:
    model, batches = model_and_batches()
    meter = meter_of(model, config(noise_scale_every=1))
    for step, images in enumerate((batches, batches * torch.inf, batches[:2], batches)):
        with meter.sampling(step):
            take_step(model, images)
    assert len(meter.gather(single_worker()).own_squared) == 2


@pytest.mark.parametrize("option", [{"plays": None}, {"noise_scale_every": 0}])
def test_nothing_is_sampled_where_no_two_gradients_are_compared(option: dict[str, Any]) -> None:
    model, _ = model_and_batches()
    assert gradient_norm_meter(model, config(**option)) is None
    assert gradient_norm_meter(model, make_point(NOWHERE, workers=2, batch_norm="sync")) is None


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"batch_per_worker": 16, "image_height": 768, "image_width": 1024}, 8),
        ({"batch_per_worker": 4}, 200),
        ({"batch_per_worker": 4, "accumulate": 2}, 104),
        ({"batch_per_worker": 4, "plays": 2}, 8),
        ({"batch_per_worker": 4, "noise_scale_every": 3}, 3),
    ],
)
def test_small_steps_of_real_workers_are_sampled_more_rarely(options: dict[str, Any], steps: int) -> None:
    assert steps_between_samples(make_point(NOWHERE, workers=2, **options)) == steps


def recorded(trained_run: TrainedRuns, run: RunConfig) -> np.ndarray:
    """Own and mean squared norms of every sampled step of a run, [2, steps]."""
    norms = [epoch.gradient_norms for epoch in trained_run(run).record.epochs]
    own = [value for each in norms if each for value in each.own_squared]
    return np.array([own, [value for each in norms if each for value in each.mean_squared]])


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_played_workers_have_the_norms_of_two_real_ones(
    framework: str, images: Path, trained_run: TrainedRuns
) -> None:
    real = recorded(trained_run, plain_config(images, framework))
    played = recorded(trained_run, played_config(images, framework, 2))
    np.testing.assert_allclose(played, real, rtol=1e-6)


@pytest.mark.slow
def test_both_frameworks_record_the_same_norms(images: Path, trained_run: TrainedRuns) -> None:
    native, horovod = (
        recorded(trained_run, plain_config(images, framework)) for framework in ("pytorch_native", "horovod")
    )
    np.testing.assert_allclose(native, horovod, rtol=1e-6)
    assert native.shape[1] == 3
    own, mean = native
    # Had Horovod averaged before the hook, or DDP, they would be equal.
    assert (own > 1.01 * mean).all()
    scales = [estimate_noise_scale(norms[0], norms[1], 2, np.arange(3)) for norms in (native, horovod)]
    for name in ("noise", "signal"):
        assert getattr(scales[0], name) == pytest.approx(getattr(scales[1], name), rel=1e-6)
