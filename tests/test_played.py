"""One worker that plays several trains what they train: compared with real ones, number by number."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.studies import make_point
from tests.test_parity import weights
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.played import PLAYED_STATISTICS
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.task.loading import load_task
from unet_scaling.training import build_model

# 27 steps of 16 images. Convolutions add in another order on more threads, and at larger rates Adam makes
# whole steps of rounding.
FOUR: dict[str, Any] = {
    "cores_per_worker": 1, "learning_rate": 1e-4, "passes_per_epoch": 4, "batch_per_worker": 4,
}  # fmt: skip


def played_config(images: Path, framework: str, plays: int, workers: int = 1, **options: Any) -> Any:
    """Return the configuration of `plain_config` for as many workers as are played."""
    batch = plain_config(images, framework, plays, **options).training.batch_per_worker
    return plain_config(images, framework, workers, **(options | {"plays": plays, "batch_per_worker": batch}))


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_four_played_workers_are_four_real_ones_but_for_rounding(
    workers: int, images: Path, trained_run: TrainedRuns
) -> None:
    """The sum of four gradients depends on its order, with which the two frameworks differ as well."""
    native, horovod = (trained_run(plain_config(images, name, 4, **FOUR)) for name in FRAMEWORKS)
    played = trained_run(played_config(images, "horovod", 4, workers, **FOUR))
    assert played.losses == pytest.approx(native.losses, rel=1e-6)
    assert difference(played, native) < 3 * difference(horovod, native)
    iou = [each.record.results[-1].model_dump()["image_iou"] for each in (played, native)]
    assert iou[0] == iou[1]


def difference(one: TrainedRun, other: TrainedRun) -> float:
    """Return |a - b| / |b| of all weights and statistics together."""
    pairs = [(weights(one)[name].double(), tensor.double()) for name, tensor in weights(other).items()]
    apart = sum(float((a - b).square().sum()) for a, b in pairs)
    return math.sqrt(apart / sum(float(b.square().sum()) for _, b in pairs))


@pytest.mark.slow
def test_passes_of_one_worker_without_played_statistics_are_something_else(
    images: Path, trained_run: TrainedRuns
) -> None:
    """What the played statistics are for: to accumulate as many passes alone is far off in the statistics."""
    real = trained_run(plain_config(images, workers=2))
    passes = trained_run(plain_config(images, workers=1, batch_per_worker=2, accumulate=2))
    assert difference(passes, real) > 0.01


def test_what_is_kept_for_played_workers_is_no_part_of_the_weights(tmp_path: Path) -> None:
    config = make_point(tmp_path, plays=14)
    model = build_model(load_task(config), torch.device("cpu"), nn.SyncBatchNorm)
    alone = build_model(load_task(make_point(tmp_path)), torch.device("cpu"), nn.SyncBatchNorm)
    assert equal(model.state_dict(), alone.state_dict())
    kept = dict(getattr(model, PLAYED_STATISTICS).named_buffers())
    assert {copies.shape[0] for copies in kept.values()} == {14}
