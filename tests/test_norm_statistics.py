"""Statistics of norm layers are those of the weights: the same whoever trained, on however many workers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tests.studies import make_images, make_point
from tests.tasks import POINTS, points_config
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.data.batches import RunData
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import write_manifest
from unet_scaling.format.record_lines import NormStatistics, Result
from unet_scaling.group.group import single_worker
from unet_scaling.norm_statistics import norm_layers, recompute, statistics_batches
from unet_scaling.run.training_state import Trained, state_digests
from unet_scaling.study.config import RunConfig
from unet_scaling.task.file_task import FileTask
from unet_scaling.training import build_model

# Every kind of layer that has running statistics, two of them frozen, one called twice, one never; two that
# have none; dropout, and a buffer that training moves beside them.
LAYERS = """
class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(8, 4 * width)
        self.batch = nn.BatchNorm1d(width)
        self.group = nn.GroupNorm(2, width)
        self.instance = nn.InstanceNorm1d(width, affine=True, track_running_stats=True)
        self.cumulative = nn.BatchNorm1d(width, momentum=None)
        self.frozen = nn.BatchNorm1d(width)
        self.still = nn.BatchNorm1d(width, momentum=0.0)
        self.bare = nn.BatchNorm1d(width, track_running_stats=False)
        self.twice = nn.BatchNorm1d(width)
        self.unused = nn.BatchNorm1d(width)
        self.head = nn.Linear(4 * width, 2)
        self.register_buffer("passes", torch.zeros(()))

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, places):
        self.passes += self.training
        values = self.first(places).view(len(places), -1, 4)
        kinds = (self.batch, self.group, self.instance, self.cumulative, self.frozen, self.still, self.bare)
        for layer in kinds:
            values = layer(values) + 0.3 * values
        values = self.twice(torch.relu(self.twice(values)))
        return self.head(functional.dropout(values.flatten(1), DROPPED, self.training))
"""
BEGIN, END = POINTS.index("class Network"), POINTS.index("def build_model")
SOURCE = f"{POINTS[:BEGIN]}{LAYERS}\n\n{POINTS[END:]}"
SETTLED = {"batch", "instance", "cumulative", "twice"}


def opened(
    folder: Path, dropped: float = 0.0, source: str = SOURCE, **training: Any
) -> tuple[FileTask, Any, RunData]:
    config = points_config(folder, source.replace("DROPPED", str(dropped)), **training)
    task = FileTask(config)
    data = task.load_data(single_worker())
    return task, build_model(task, torch.device("cpu"), nn.SyncBatchNorm), data


def variances(model: nn.Module) -> list[object]:
    return [
        layer.running_var.tolist() for layer in norm_layers(model).values() if layer.running_var is not None
    ]


def moments(layer: nn.Module, passed: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and variance over all that passed, [n, channels, length] each; of instances their means."""
    values = torch.cat(passed)
    if isinstance(layer, _BatchNorm):
        return values.mean(dim=(0, 2)), values.transpose(0, 1).flatten(1).var(dim=1)
    return values.mean(dim=(0, 2)), values.var(dim=2).mean(dim=0)


@pytest.mark.parametrize("number", ["float32", "float64"])
def test_they_are_the_moments_of_a_plain_loop_in_float64(number: str, tmp_path: Path) -> None:
    source = SOURCE.replace("torch.randn(8, ", f"torch.randn(8, dtype=torch.{number}, ")
    source = source.replace('Network(options["width"])', f'Network(options["width"]).to(torch.{number})')
    task, model, data = opened(tmp_path, source=source, batch_per_worker=5)
    before = state_digests(Trained(model, torch.optim.SGD(model.parameters())))
    plain = build_model(task, torch.device("cpu"), nn.SyncBatchNorm).double().train()
    layers = norm_layers(plain)
    passed: dict[str, list[Tensor]] = {name: [] for name in layers}
    for name, layer in layers.items():
        layer.register_forward_pre_hook(lambda _, inputs, name=name: passed[name].append(inputs[0]))
    for indices in statistics_batches(data):
        plain(data.plain_batch(indices)[0].double())
    found = recompute(task, model, data, single_worker())
    after = state_digests(Trained(model, torch.optim.SGD(model.parameters())))
    assert {
        name.removeprefix("buffer ").partition(".")[0] for name in before if before[name] != after[name]
    } == (SETTLED)
    for name in SETTLED:
        own = norm_layers(model)[name]
        for value, expected in zip(
            (own.running_mean, own.running_var), moments(own, passed[name]), strict=True
        ):
            assert value is not None
            torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7)
    # 48 samples for training, of which 3 fill no batch.
    assert found.model_dump(exclude={"seconds"}) == {
        "layers": 4, "images": 45, "others": ["passes"], "running": None
    }  # fmt: skip


def test_batches_are_of_the_seed_and_as_many_as_asked(tmp_path: Path) -> None:
    def numbers(data: RunData, seed: int = 3, **training: int) -> list[list[int]]:
        other = data.config.training.model_copy(update=training)
        config = data.config.model_copy(update={"seed": seed, "training": other})
        found: list[list[int]] = statistics_batches(replace(data, config=config)).tolist()
        return found

    _, _, data = opened(tmp_path, batch_per_worker=8)
    every = numbers(data)
    assert sorted(np.ravel(every)) == list(range(48))
    assert numbers(data, seed=4) != every
    assert numbers(data, workers=3) == every
    assert numbers(data, statistics_images=17) == every[:2]
    assert [len(batch) for batch in numbers(data, statistics_images=1)] == [8]
    assert {len(batch) for batch in numbers(data, batch_per_worker=1)} == {2}
    assert [len(batch) for batch in numbers(data, batch_per_worker=100)] == [48]


def test_dropout_draws_by_the_seed_and_leaves_generators_alone(tmp_path: Path) -> None:
    task, model, data = opened(tmp_path, dropped=0.5)
    found = []
    for _ in range(2):
        state = torch.get_rng_state()
        recompute(task, model, data, single_worker())
        assert torch.equal(state, torch.get_rng_state())
        found.append(variances(model))
        torch.rand(7)
    assert found[0] == found[1]


class SyncBatchNorm(nn.BatchNorm1d):
    """As the frameworks': in training its forward pass would wait for the other workers."""

    def forward(self, values: Tensor) -> Tensor:
        assert not self.training, "waits for workers that have fewer batches"
        return super().forward(values)


def test_layers_over_all_workers_wait_for_none(tmp_path: Path) -> None:
    task, model, data = opened(tmp_path)
    expected = recompute(task, model, data, single_worker())
    before = variances(model)
    for layer in (model.batch, model.cumulative):
        layer.__class__ = SyncBatchNorm
    assert recompute(task, model, data, single_worker()).layers == expected.layers
    assert variances(model) == before
    assert "forward" not in vars(model.batch)
    assert [model.batch.momentum, model.cumulative.momentum] == [0.1, None]


PENALTY = """
def loss(model, batch):
    places = batch[0].clone().requires_grad_()
    logits = model(places)
    (slope,) = torch.autograd.grad(logits.sum(), places, create_graph=True)
    return functional.cross_entropy(logits, batch[1]) + 0.01 * slope.square().sum()
"""


def test_a_loss_may_take_gradients_itself(tmp_path: Path) -> None:
    task, model, data = opened(tmp_path, source=f"{SOURCE}{PENALTY}")
    assert recompute(task, model, data, single_worker()).layers == 4
    assert all(weight.grad is None for weight in model.parameters())


def test_what_is_averaged_by_the_model_itself_is_said(tmp_path: Path) -> None:
    hidden = "functional.batch_norm(values, layer.running_mean, layer.running_var, training=True) + 0 * ("
    source = SOURCE.replace("layer(values) + 0.3 * values", f"{hidden}values)").replace(
        "in kinds", "in (self.batch,)"
    )
    task, model, data = opened(tmp_path, source=source)
    assert recompute(task, model, data, single_worker()).others == [
        "batch.running_mean", "batch.running_var", "passes"
    ]  # fmt: skip


def test_a_model_without_such_layers_is_evaluated_as_it_is(tmp_path: Path) -> None:
    config = points_config(tmp_path)
    task = FileTask(config)
    data = task.load_data(single_worker())
    model = build_model(task, torch.device("cpu"), nn.SyncBatchNorm)
    found = recompute(task, model, data, single_worker())
    assert found == NormStatistics(layers=0, images=0, seconds=0.0)


def dark_images(folder: Path) -> Path:
    """Images of squares as dark as those of fluorescence: far from what layers expect before any training."""
    with FileLock(folder.with_suffix(".lock")):
        return folder if folder.exists() else make_dark_images(folder)


def plain_runs(images: Path, session_folder: Path) -> list[RunConfig]:
    """Return runs of one worker, of two, and of two whose statistics are those that training leaves."""
    data = dark_images(session_folder / "dark")
    options: dict[str, Any] = {"width": 16, "epochs": 6, "batch_per_worker": 4, "learning_rate": 0.01}
    configs = [make_point(data, workers=workers, **options) for workers in (1, 2)]
    return [*configs, make_point(data, workers=2, statistics_images=0, **options)]


def make_dark_images(folder: Path) -> Path:
    make_images(folder, count=47)
    for path in (folder / "images").glob("*.png"):
        Image.fromarray(np.asarray(Image.open(path)) // 10).save(path)
    write_manifest(check_folder(folder, "255"), folder / "manifest.json")
    return folder


def last(run: TrainedRun) -> Result:
    result = run.record.results[-1]
    assert isinstance(result, Result)
    return result


@pytest.mark.slow
def test_few_steps_leave_statistics_by_which_trained_weights_find_nothing(
    images: Path, session_folder: Path, trained_run: TrainedRuns
) -> None:
    one, two, as_published = map(last, map(trained_run, plain_runs(images, session_folder)))
    for result in (one, two):
        assert result.iou
        assert result.iou > 0.9
        assert result.statistics
        assert result.statistics.running
        assert result.statistics.running.score == 0
        assert result.statistics.images == 36
        assert result.image_ious
        assert np.mean(np.array(result.image_ious, dtype=float)) == pytest.approx(result.image_iou, abs=1e-4)
    assert one.iou
    assert two.iou
    assert abs(two.iou - one.iou) < 0.03
    assert (as_published.iou, as_published.statistics) == (0, None)


@pytest.mark.slow
def test_one_network_has_the_same_bytes_at_any_number_of_workers(
    images: Path, trained_run: TrainedRuns
) -> None:
    """Trained at a rate that moves no weight: what differs would be the work of the statistics alone."""
    first = trained_run(plain_config(images, workers=1)).folder / "weights.pt"
    trained = torch.load(first, weights_only=True)
    still = {"initial_weights": str(first), "epochs": 1, "learning_rate": 1e-30, "cores_per_worker": 1}
    for framework, workers in (("horovod", 2), ("pytorch_native", 3)):
        run = trained_run(plain_config(images, framework, workers, batch_per_worker=4, **still))
        state = torch.load(run.folder / "weights.pt", weights_only=True)
        assert all(torch.equal(each, trained[name]) for name, each in state.items() if "running" in name)
