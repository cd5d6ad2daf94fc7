"""Both frameworks train the same thing: real workers, compared number by number."""

from pathlib import Path

import pytest
import torch

from tests.studies import make_point, train
from unet_scaling.study.record import read_record
from unet_scaling.study.record_lines import Result

STEPS = 20
pytestmark = pytest.mark.slow


def twenty_steps(
    folder: Path, images: Path, framework: str, workers: int, batch: int, **options: object
) -> Path:
    """Train as many epochs as give 20 optimizer steps; the run's folder."""
    per_epoch = 38 // (workers * batch)
    epochs = -(-STEPS // per_epoch)
    point = make_point(
        images, framework, workers, epochs=epochs, batch_per_worker=batch, rate_scaling="none", **options
    )
    record = train(folder, point)
    assert sum(epoch.steps for epoch in record.epochs) >= STEPS
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return state


def relative_difference(one: Path, other: Path) -> float:
    """Largest, over all tensors, of |a - b| / |b| in the Euclidean norm."""
    pairs = [(weights(one)[name].double(), tensor.double()) for name, tensor in weights(other).items()]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs if b.norm() > 0)


def losses(folder: Path) -> list[float]:
    return [epoch.loss for epoch in read_record(folder / "run.jsonl").epochs]


@pytest.mark.parametrize("workers", [1, 2])
def test_frameworks_agree_after_twenty_steps(workers: int, images: Path, tmp_path: Path) -> None:
    native = twenty_steps(tmp_path / "native", images, "pytorch_native", workers, batch=4)
    horovod = twenty_steps(tmp_path / "horovod", images, "horovod", workers, batch=4)
    assert losses(native) == pytest.approx(losses(horovod), rel=1e-6)
    assert relative_difference(native, horovod) < 1e-6


@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_workers_share_a_batch_as_one_worker_would_take_it(
    framework: str, images: Path, tmp_path: Path
) -> None:
    options = {"batch_norm": "off", "learning_rate": 1e-4}
    two = twenty_steps(tmp_path / "two", images, framework, workers=2, batch=2, **options)
    one = twenty_steps(tmp_path / "one", images, framework, workers=1, batch=4, **options)
    assert losses(two) == pytest.approx(losses(one), rel=1e-6)
    assert relative_difference(two, one) < 1e-5


@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_accumulated_batches_count_as_one(framework: str, images: Path, tmp_path: Path) -> None:
    options = {"batch_norm": "off", "learning_rate": 1e-4, "epochs": 2, "rate_scaling": "none"}
    twice = make_point(images, framework, 2, batch_per_worker=1, accumulate=2, **options)
    once = make_point(images, framework, 2, batch_per_worker=2, **options)
    train(tmp_path / "twice", twice)
    train(tmp_path / "once", once)
    assert losses(tmp_path / "twice") == pytest.approx(losses(tmp_path / "once"), rel=1e-5)
    assert relative_difference(tmp_path / "twice", tmp_path / "once") < 1e-4


def test_one_checkpoint_gives_identical_counts_at_any_number_of_workers(images: Path, tmp_path: Path) -> None:
    """11 test images: neither 2, 3 nor 4 workers divide them; 3 under Horovod stand for both frameworks."""
    first = make_point(images, epochs=4, test_share=0.24)
    train(tmp_path / "trained", first)
    found: set[tuple[object, ...]] = set()
    for framework, workers in [*(("pytorch_native", n) for n in (1, 2, 4)), ("horovod", 3)]:
        point = make_point(
            images, framework, workers, epochs=0, test_share=0.24,
            initial_weights=str(tmp_path / "trained" / "weights.pt"),
        )  # fmt: skip
        result = train(tmp_path / f"{framework}{workers}", point).results[-1]
        assert result.images == 11
        found.add(facts(result))
    assert len(found) == 1, found


def facts(result: Result) -> tuple[object, ...]:
    timings = {"seconds", "training_seconds", "epochs"}
    return tuple(result.model_dump(exclude=timings).values())
