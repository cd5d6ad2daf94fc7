"""Both frameworks train the same thing: real workers, compared number by number."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.studies import make_point
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.record_lines import Evaluation

# Batch normalisation sees one pass of one worker: without it, how a batch is shared does not matter.
SHARED: dict[str, Any] = {"batch_norm": "off", "learning_rate": 1e-4}
pytestmark = pytest.mark.slow


def weights(run: TrainedRun) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run.folder / "weights.pt", weights_only=True)
    return state


def relative_difference(one: TrainedRun, other: TrainedRun) -> float:
    """Largest, over all tensors, of |a - b| / |b| in the Euclidean norm."""
    pairs = [(weights(one)[name].double(), tensor.double()) for name, tensor in weights(other).items()]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs if b.norm() > 0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_workers_share_a_batch_as_one_worker_would_take_it(
    framework: str, images: Path, trained_run: TrainedRuns
) -> None:
    """One worker under DDP stands for both frameworks, which agree on one worker."""
    two = trained_run(plain_config(images, framework, workers=2, **SHARED))
    one = trained_run(plain_config(images, workers=1, **SHARED))
    assert two.losses == pytest.approx(one.losses, rel=1e-6)
    assert relative_difference(two, one) < 1e-5


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_accumulated_batches_count_as_one(framework: str, images: Path, trained_run: TrainedRuns) -> None:
    twice = trained_run(plain_config(images, framework, batch_per_worker=1, accumulate=2, **SHARED))
    once = trained_run(plain_config(images, framework, **SHARED))
    assert twice.losses == pytest.approx(once.losses, rel=1e-5)
    assert relative_difference(twice, once) < 1e-4


def test_one_checkpoint_gives_identical_counts_at_any_number_of_workers(
    images: Path, trained_run: TrainedRuns
) -> None:
    """9 test images, which neither 2 nor 4 workers divide; 1 worker evaluated them as it trained."""
    trained = trained_run(plain_config(images, workers=1))
    expected = trained.record.results[-1]
    assert expected.images == 9
    initial_weights = str(trained.folder / "weights.pt")
    for framework, workers in [("pytorch_native", 4), ("horovod", 2)]:
        point = make_point(images, framework, workers, epochs=0, initial_weights=initial_weights)
        assert counts(trained_run(point).record.results[-1]) == counts(expected), framework


def counts(result: Evaluation) -> tuple[object, ...]:
    timings = {"seconds", "training_seconds", "epochs"}
    return tuple(result.model_dump(exclude=timings).values())
