"""Whatever the model and its optimizer, all frameworks train the same bytes.

On one worker and on two, played and real, resumed and undisturbed. From three workers on, frameworks add
gradients in different orders: docs/report.md says by how much results then differ.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from tests.faults import TIMINGS, Fault, attempt, framework_parameter
from tests.studies import launched
from tests.tasks import POINTS, SOMETIMES_UNUSED, points_config, task_config
from tests.trained import TrainedRun, TrainedRuns, plain_config
from tests.trained import over_gloo as over_gloo
from unet_scaling.base.errors import UserError
from unet_scaling.base.files import write_atomically
from unet_scaling.base.validation import StrictModel
from unet_scaling.format.record import Record, read_record
from unet_scaling.format.record_lines import STEPS_NAME
from unet_scaling.group.group import single_worker
from unet_scaling.run.training_state import (
    Trained,
    leaving_no_trace,
    require_unchanged,
    seed_generators,
    state_digests,
)
from unet_scaling.study.config import FRAMEWORKS, Framework, RunConfig
from unet_scaling.study.options import HorovodKnobs, NativeKnobs
from unet_scaling.task.file_task import FileTask
from unet_scaling.training import NonFiniteGradientGuard, build_model, build_optimizer, set_learning_rate

NATIVE = "pytorch_native"
EVERY_STEP = 1e-6  # minutes between checkpoints
# All that a model may have which frameworks treat differently: dropout, buffers of every type, written by
# training or not, in place or by another tensor, read by evaluation; groups with decay and their own rates.
NETWORK = """
class Network(nn.Module):
    def __init__(self, width, optimizer):
        super().__init__()
        self.chosen = optimizer
        self.hidden = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(width, 2)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int32))
        self.register_buffer("small", torch.arange(3, dtype=torch.uint8))
        self.register_buffer("mask", torch.tensor([True, False]), persistent=False)
        self.register_buffer("thirds", torch.ones(7, dtype=torch.float64) / 3)
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("drawn", torch.zeros((), dtype=torch.float64))

    def forward(self, places):
        hidden = functional.relu(self.norm(self.hidden(places)))
        if self.training:
            self.passes += 1
            self.center = 0.9 * self.center + 0.1 * hidden.detach().mean(dim=0)
            self.drawn = self.drawn + torch.rand(())
        return self.head(self.dropout(hidden - self.center * (self.passes > 3)))


def build_model(options):
    return Network(options["width"], options["optimizer"])


def optimizer(model):
    weights = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [{"params": weights, "lr": 0.02, "weight_decay": 0.3}, {"params": others, "lr": 0.01}]
    if model.chosen == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, nesterov=True, fused=True)
    if model.chosen == "amsgrad":
        return torch.optim.Adam(model.parameters(), weight_decay=0.3, amsgrad=True, fused=True)
    return torch.optim.AdamW(groups, fused=True)
"""
BEGIN, END = POINTS.index("class Network"), POINTS.index("def datasets")
SOURCE = f"{POINTS[:BEGIN]}{NETWORK}\n\n{POINTS[END:]}"


@pytest.fixture(scope="session")
def source(session_folder: Path) -> Path:
    return write_source(session_folder)


def write_source(folder: Path) -> Path:
    path = folder / "equal.py"
    write_atomically(path, SOURCE)  # other test processes may read it
    return path


def equal_config(
    source: Path, framework: str, workers: int, optimizer: str = "groups", **training: Any
) -> RunConfig:
    """Six steps of 8 samples to an epoch, in two passes of every worker; of SGD Horovod averages by Gloo."""
    options = {"width": 6, "optimizer": optimizer}
    table = {
        "epochs": 4,
        "batch_per_worker": 4 // workers,
        "accumulate": 2,
        "evaluate_every": 1,
        "learning_rate": 0.02,
    }
    config = task_config(source, options, framework, workers, **(table | training))
    return over_gloo(config) if (framework, optimizer) == ("horovod", "sgd") else config


def learned(record: Record) -> list[object]:
    """Return all that equal training has in common: weights and scores after every epoch."""
    assert record.complete, record.problems
    return [result.model_dump(exclude=TIMINGS) for result in record.results]


def losses(record: Record) -> list[float | None]:
    return [epoch.loss for epoch in record.epochs]


def weights(run: TrainedRun) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(run.folder / "weights.pt", weights_only=True)
    return state


# Framework, workers, optimizer, compression of gradients. Both wrappers are DDP: each shows one half.
CASES: list[tuple[Framework, int, str, str]] = [
    ("horovod", 1, "amsgrad", "none"),
    ("horovod", 2, "sgd", "none"),
    ("horovod", 2, "groups", "none"),
    ("lightning", 2, "groups", "none"),
    ("accelerate", 2, "sgd", "fp16"),
]
TUNED: dict[str, StrictModel] = {
    NATIVE: NativeKnobs(gradient_as_bucket_view=True, static_graph=True),
    "horovod": HorovodKnobs(groups=2, cycle_time_ms=1, controller="gloo"),
}
AUGMENTED: dict[str, Any] = {
    "augment_flips": True, "augment_crop": 0.75, "augment_brightness": 0.1, "augment_contrast": 0.2,
}  # fmt: skip
# Of more passes than one, a worker that plays others adds the gradients in another order.
ONE_PASS: dict[str, Any] = {"accumulate": 1, "batch_per_worker": 4}
# Without batch norm, which sees one pass of one worker, how a batch is shared does not matter.
SHARED: dict[str, Any] = {"batch_norm": "off", "learning_rate": 1e-4}


def augmented_runs(images: Path) -> list[RunConfig]:
    """Native DDP decodes in loader processes and computes activations twice, Horovod measures no phases."""
    decoded = {"loading": "decode", "loader_workers": 1, "activation_checkpointing": True}
    options = [AUGMENTED | decoded, AUGMENTED | {"budget": "off"}]
    return [
        plain_config(images, name, **option).model_copy(update={name: TUNED[name]})
        for name, option in zip(FRAMEWORKS, options, strict=True)
    ]


def shared_runs(images: Path) -> list[RunConfig]:
    """One worker, two in two passes each, two whose gradients are compressed."""
    return [
        plain_config(images, workers=1, **SHARED),
        over_gloo(plain_config(images, "horovod", batch_per_worker=1, accumulate=2, **SHARED)),
        over_gloo(plain_config(images, "horovod", gradient_compression="fp16", **SHARED)),
    ]


def unused_run(source: Path, framework: str = NATIVE, workers: int = 2, **training: int) -> RunConfig:
    """A layer is used in alternate passes, and another one by some workers only."""
    options = {"framework": framework, "workers": workers, "find_unused_parameters": True}
    return points_config(source.parent / "unused", SOMETIMES_UNUSED, **options, **training)


def unused_runs(source: Path) -> list[RunConfig]:
    """Two workers of each framework, and one that plays two."""
    played = unused_run(source, workers=1, batch_per_worker=2, plays=2)
    return [unused_run(source), over_gloo(unused_run(source, "horovod")), played]


def scored_again(config: RunConfig, trained_run: TrainedRuns) -> RunConfig:
    """Return a run of two workers that only evaluates what a run has learned."""
    weights = str(trained_run.folder(config) / "weights.pt")
    changed = {"epochs": 0, "evaluate_every": 0, "initial_weights": weights}
    training = config.training.model_copy(update=changed)
    return over_gloo(config.model_copy(update={"framework": "horovod", "workers": 2, "training": training}))


@pytest.fixture(scope="module")
def runs(source: Path, images: Path, trained_run: TrainedRuns) -> TrainedRuns:
    """The runs that tests of this file compare: those of a framework at a number of workers in one launch."""
    alone = plain_config(images, workers=1)
    equal = [
        equal_config(source, name, workers, optimizer, gradient_compression=compression)
        for other, workers, optimizer, compression in CASES
        for name in (NATIVE, other)
        if name in FRAMEWORKS
    ]
    images_alike = [*augmented_runs(images), *shared_runs(images), alone, scored_again(alone, trained_run)]
    real = equal_config(source, NATIVE, 2, **ONE_PASS)
    trained_run.together([*equal, real, *images_alike, *unused_runs(source)])
    return trained_run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "workers", "optimizer", "compression"),
    [case if case[0] in FRAMEWORKS else framework_parameter(case[0], *case[1:]) for case in CASES],
)
def test_frameworks_train_the_same_bytes(
    framework: str, workers: int, optimizer: str, compression: str, source: Path, runs: TrainedRuns
) -> None:
    native, other = (
        runs(equal_config(source, name, workers, optimizer, gradient_compression=compression)).record
        for name in (NATIVE, framework)
    )
    assert len(set(losses(native))) == 4
    assert losses(other) == losses(native)
    assert learned(other) == learned(native)


@pytest.mark.slow
def test_augmented_images_and_tuned_communication_train_the_same_bytes(
    images: Path, runs: TrainedRuns
) -> None:
    """The built-in network."""
    plain = [runs(plain_config(images, name)).record for name in FRAMEWORKS]
    found = [runs(config) for config in augmented_runs(images)]
    assert [(run.folder / STEPS_NAME).exists() for run in found] == [True, False]
    tuned = [run.record for run in found]
    epoch = tuned[1].epochs[0]
    assert [epoch.budget, epoch.no_budget, epoch.cpu, epoch.gpu, tuned[1].probe] == [None] * 5
    for native, horovod in (plain, tuned):
        assert sum(epoch.steps for epoch in native.epochs) >= 20
        assert losses(native) == losses(horovod)
        assert learned(native) == learned(horovod)
    assert losses(plain[0]) != losses(tuned[0])
    assert tuned[1].header is not None
    assert tuned[1].header.transport["controller"] == "Gloo"


@pytest.mark.slow
def test_compressed_gradients_and_accumulated_passes_stay_near_what_they_stand_for(
    images: Path, runs: TrainedRuns
) -> None:
    one, two, half = map(runs, shared_runs(images))
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert half.losses == pytest.approx(one.losses, rel=1e-2)
    assert len({tuple(run.losses) for run in (one, two, half)}) == 3
    for name, tensor in weights(one).items():
        assert torch.allclose(weights(two)[name], tensor, rtol=1e-3, atol=1e-5), name


@pytest.mark.slow
def test_unused_parameters_are_trained_alike(source: Path, runs: TrainedRuns) -> None:
    """By both frameworks, and by one worker that plays two: to the bit, but for the order of sums."""
    native, horovod, played = map(runs, unused_runs(source))
    assert sum(epoch.steps for epoch in native.record.epochs) >= 20
    assert native.losses == horovod.losses
    assert learned(native.record) == learned(horovod.record)
    assert played.losses == pytest.approx(native.losses, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "workers", "faults"),
    [
        (NATIVE, 1, ("kill", "SIGTERM")),
        # tests/test_faults.py has its built-in network, killed and stopped.
        pytest.param("horovod", 2, ("kill",), marks=pytest.mark.verify),
        framework_parameter("lightning", 2, ("SIGTERM",), marks=[pytest.mark.verify]),
    ],
)
def test_played_killed_and_stopped_runs_train_what_two_real_workers_do(
    framework: str, workers: int, faults: tuple[str, ...], source: Path, tmp_path: Path, runs: TrainedRuns
) -> None:
    """Of one worker that plays two, and of two; each goes on after every fault."""
    real = runs(equal_config(source, NATIVE, 2, **ONE_PASS)).record
    config = equal_config(source, framework, workers, plays=2, checkpoint_minutes=EVERY_STEP, **ONE_PASS)
    for fault in faults:
        ended = attempt(tmp_path / "run", config, Fault(fault, 8, workers - 1, every_step_is_safe=True))
        assert not ended.record.complete
        assert fault == "kill" or set(ended.codes.values()) == {75}
    resumed = attempt(tmp_path / "run", config).record
    assert resumed.header is not None
    assert resumed.header.resumed is not None
    assert losses(resumed) == pytest.approx(losses(real), rel=1e-6), "float32, added in another order"
    assert learned(resumed) == learned(real)


@pytest.mark.verify
def test_four_played_workers_are_four_real_ones_but_for_rounding(
    images: Path, trained_run: TrainedRuns
) -> None:
    """The sum of four gradients depends on its order, with which the two frameworks differ as well."""
    # Convolutions add in another order on more threads; at larger rates Adam makes whole steps of rounding.
    options: dict[str, Any] = {"cores_per_worker": 1, "learning_rate": 1e-4, "passes_per_epoch": 4}
    native, horovod = (
        trained_run(plain_config(images, name, 4, batch_per_worker=4, **options)) for name in FRAMEWORKS
    )
    played = trained_run(plain_config(images, "horovod", 2, batch_per_worker=4, plays=4, **options))
    assert played.losses == pytest.approx(native.losses, rel=1e-6)
    assert difference(played, native) < 3 * difference(horovod, native)


def difference(one: TrainedRun, other: TrainedRun) -> float:
    """Return |a - b| / |b| of all weights and statistics together."""
    pairs = [(weights(one)[name].double(), tensor.double()) for name, tensor in weights(other).items()]
    apart = sum(float((a - b).square().sum()) for a, b in pairs)
    return math.sqrt(apart / sum(float(b.square().sum()) for _, b in pairs))


@pytest.mark.slow
def test_one_state_has_one_score_at_any_number_of_workers(images: Path, runs: TrainedRuns) -> None:
    """9 images, on 1 worker and on 2, which cannot share them evenly."""
    config = plain_config(images, workers=1)
    (found,) = runs(scored_again(config, runs)).record.results
    timings = {"seconds", "training_seconds", "epochs", "statistics"}
    assert found.model_dump(exclude=timings) == runs(config).record.results[-1].model_dump(exclude=timings)


@pytest.mark.slow
def test_workers_draw_other_numbers_and_constants_stay(source: Path, runs: TrainedRuns) -> None:
    one, two = (
        weights(runs(equal_config(source, NATIVE, workers, optimizer)))
        for workers, optimizer in ((1, "amsgrad"), (2, "groups"))
    )
    assert one["passes"] == two["passes"], "equally many draws of every worker"
    assert one["drawn"] != two["drawn"], "the mean over two workers is what one has drawn alone"
    assert torch.equal(two["thirds"], torch.ones(7, dtype=torch.float64) / 3)


REFUSED = {
    "histogram": ("passes", "self.passes += 1", "self.passes += int(1000 * places[0, 0])"),
    "mask": ("mask", "self.passes += 1", "self.mask = self.mask ^ (places[0, :2] > places[1, :2])"),
    "not saved": ("center", "torch.zeros(width))", "torch.zeros(width), persistent=False)"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers"),
    [pytest.param("histogram", 1, marks=pytest.mark.verify), ("mask", 2), ("not saved", 1)],
)
def test_a_buffer_that_makes_one_state_have_two_scores_is_refused_by_name(
    name: str, workers: int, tmp_path: Path
) -> None:
    """Before the first epoch, on real workers and on one that plays them."""
    buffer, right, wrong = REFUSED[name]
    text = SOURCE.replace(right, wrong)
    assert text != SOURCE
    (tmp_path / "equal.py").write_text(text)
    config = equal_config(tmp_path / "equal.py", NATIVE, workers, plays=2, batch_per_worker=4)
    code, output = launched(config, tmp_path / "run", cores_each=1)
    assert code == 2
    assert f"buffer {buffer}" in output.replace("module.", "")
    assert not read_record(tmp_path / "run" / "run.jsonl").epochs


def small_training() -> Trained:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return Trained(model, optimizer)


def zero_gradient(trained: Trained) -> None:
    weight = trained.model.get_parameter("0.bias")
    weight.grad = torch.zeros_like(weight)


# What a framework has been seen to do, or could: what it is called in the error, and how it is done.
DISTURBANCES: dict[str, Callable[[Trained], object]] = {
    "weight 0.weight": lambda trained: trained.model.get_parameter("0.weight").data.mul_(0.9),
    "weight 2.bias": lambda trained: trained.model.get_parameter("2.bias").requires_grad_(False),
    "weight 0.bias": zero_gradient,
    "buffer 1.running_mean": lambda trained: trained.model.get_buffer("1.running_mean").add_(1),
    "buffer 1.num_batches_tracked": lambda trained: trained.model.get_buffer("1.num_batches_tracked").add_(1),
    "optimizer group 0": lambda trained: trained.optimizer.param_groups[0].update(weight_decay=0.1),
    "optimizer state of 0.weight": lambda trained: trained.optimizer.state.clear(),
    "optimizer hooks": lambda trained: trained.optimizer.register_step_pre_hook(lambda *_: None),
    "generator cpu": lambda _: torch.rand(1),
    "generator python": lambda _: random.random(),
    "generator numpy": lambda _: np.random.rand(),
    "setting threads": lambda _: torch.set_num_threads(torch.get_num_threads() + 1),
    "setting deterministic algorithms": lambda _: torch.use_deterministic_algorithms(True, warn_only=True),
    "setting cudnn": lambda _: setattr(torch.backends.cudnn, "benchmark", True),
}


@pytest.mark.parametrize("name", DISTURBANCES)
def test_what_a_framework_changes_before_the_first_step_is_refused_by_name(name: str) -> None:
    threads = torch.get_num_threads()
    trained = small_training()
    before = state_digests(trained)
    require_unchanged(before, trained, single_worker(), "nothing")
    try:
        DISTURBANCES[name](trained)
        with pytest.raises(UserError, match=f"distribute has changed .*{name}"):
            require_unchanged(before, trained, single_worker(), "distribute")
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False


def test_a_computation_leaves_no_trace_in_buffers_and_generators() -> None:
    trained = small_training()
    before = state_digests(trained)
    with leaving_no_trace(trained.model):
        trained.model(torch.randn(5, 3))
        norm = trained.model.get_submodule("1")
        norm.running_mean = torch.rand(4) + random.random() + np.random.rand()
    assert state_digests(trained) == before


def test_workers_are_seeded_by_seed_and_rank_in_every_generator() -> None:
    drawn = set()
    for seed, rank in ((3, 0), (3, 1), (4, 0), (3, 0)):
        seed_generators(seed, rank)
        drawn |= {torch.rand(1).item(), random.random(), np.random.rand()}
    assert len(drawn) == 9


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "adam": lambda weights: Adam(weights, weight_decay=0.1, fused=True),
    "amsgrad": lambda weights: Adam(weights, amsgrad=True, fused=True),
    "adamw": lambda weights: AdamW([{"params": weights[:1]}, {"params": weights[1:]}], fused=True),
    "momentum": lambda weights: SGD(weights, momentum=0.9, weight_decay=0.1, fused=True),
    "plain": lambda weights: SGD(weights, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_that_is_not_finite_reaches_no_weight_under_any_optimizer(name: str) -> None:
    model = nn.Linear(3, 2)
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    guard = NonFiniteGradientGuard(model, optimizer)
    moved = []
    for value in (1.0, float("nan"), 1.0):
        optimizer.zero_grad()
        before = model.weight.detach().clone()
        model(torch.full((1, 3), value)).sum().backward()
        guard.check()
        optimizer.step()
        moved.append(not torch.equal(model.weight, before))
    assert moved == [True, False, False]
    assert guard.triggered()


def optimizer_of(folder: Path, function: str) -> Optimizer:
    task = FileTask(points_config(folder, f"{POINTS}\n\ndef {function}\n"))
    return build_optimizer(task, build_model(task, torch.device("cpu"), nn.BatchNorm2d))


REFUSED_OPTIMIZERS = {
    "RMSprop": "optimizer(model): return torch.optim.RMSprop(model.parameters())",
    "SGD; use .* fused=True": "optimizer(model): return torch.optim.SGD(model.parameters())",
    "lr above 0": "optimizer(model): return torch.optim.SGD(model.parameters(), lr=0.0, fused=True)",
    "leaves out head.weight, head.bias": "parameters(model): return list(model.parameters())[:-2]",
}


@pytest.mark.parametrize("said", REFUSED_OPTIMIZERS)
def test_an_optimizer_that_frameworks_would_take_in_different_ways_is_refused(
    said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        optimizer_of(tmp_path, REFUSED_OPTIMIZERS[said])
    assert refused.value.exit_code == 2


def test_the_rate_of_the_study_is_that_of_the_first_group_and_the_others_keep_their_ratio(
    tmp_path: Path,
) -> None:
    groups = "[{'params': weights[:1], 'lr': 0.4}, {'params': weights[1:], 'lr': 0.1}]"
    body = f"    weights = list(model.parameters())\n    return torch.optim.SGD({groups}, fused=True)"
    made = optimizer_of(tmp_path, f"optimizer(model):\n{body}")
    for rate in (1e-3, 0.003, 0.7):
        set_learning_rate(made, rate)
        assert [group["lr"] for group in made.param_groups] == [rate, rate * 0.25]
