"""Strategies of exchange: what local SGD and stale gradients train is what a plain loop of torch computes."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from analysis.figures.catalogue import FIGURES
from analysis.figures.frame import Inputs
from analysis.strategies.comparison import changed_options
from slurm.launch.estimate import describe_lost_speed
from slurm.launch.processes import launch
from slurm.launch.study_folder import StudyFolder
from tests.faults import Fault, attempt
from tests.honest import Honest, write_honest
from tests.reports import Told, report_of
from tests.studies import make_run
from tests.tampering import Change, Runs, started, workers, write_lines
from tests.tasks import points_config
from tests.test_equality import EVERY_STEP, equal_config, learned, over_gloo, source, write_source
from tests.test_single_run import may_mount
from tests.trained import TrainedRuns
from unet_scaling.data.order import epoch_order, worker_batches
from unet_scaling.format.run_state import run_state
from unet_scaling.group.group import single_worker
from unet_scaling.study.config import FRAMEWORKS, PROJECT, RunConfig
from unet_scaling.study.options import Strategy
from unet_scaling.study.study_file import recorded_study
from unet_scaling.task.file_task import FileTask
from unet_scaling.training import build_model, build_optimizer, learning_rate, set_learning_rate

__all__ = ["source"]
LOCAL = {"synchronise_every": 4}
WEIGHTS_ALONE = {"synchronise_every": 4, "average_moments": False}
STALE = {"staleness": 1}
SLOWER_STALE = {"staleness": 1, "stale_rate_factor": 0.5}
HIERARCHY = {"synchronise_every": 4, "subgroup_size": 2}
OUTER = {"synchronise_every": 4, "outer_momentum": 0.5}
NESTEROV = HIERARCHY | {"outer_momentum": 0.9, "outer_nesterov": True, "outer_learning_rate": 0.7}
# Of two real workers, each of which plays two: what is summed of two has the same bytes in any order.
PLAYED: dict[str, Any] = {"plays": 4, "batch_per_worker": 1}
STRATEGIES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (LOCAL, {}),
    (WEIGHTS_ALONE, {}),
    (STALE, {}),
    (SLOWER_STALE, {}),
    (OUTER, {}),
    (OUTER, {"workers": 1}),
    (HIERARCHY, PLAYED),
    (NESTEROV, PLAYED),
    (NESTEROV, {"workers": 4}),
]


def with_strategy(config: RunConfig, **strategy: Any) -> RunConfig:
    return config.model_copy(update={"strategy": Strategy(**strategy)})


def points(folder: Path, framework: str, strategy: dict[str, Any], **options: Any) -> RunConfig:
    """12 steps of Adam to an epoch; two workers of Horovod by Gloo, and four by MPI."""
    config = points_config(folder, framework=framework, **{"workers": 2, "epochs": 4} | options)
    config = over_gloo(config) if framework == "horovod" and config.workers < 4 else config
    return with_strategy(config, **strategy)


def plain_loop(config: RunConfig) -> dict[str, Tensor]:
    """Return what the workers of this run train, in one process and by no code of the strategies."""
    task = FileTask(config)
    data = task.load_data(single_worker())
    strategy = config.strategy
    alone = config.model_copy(update={"training": config.training.model_copy(update={"plays": None})})
    copies = range(config.training.plays or config.workers)
    models = [build_model(FileTask(alone), torch.device("cpu"), nn.BatchNorm2d) for _ in copies]
    optimizers = [build_optimizer(task, model) for model in models]
    last = [weight.detach().clone() for weight in models[0].parameters()]
    outer = torch.optim.SGD(last, momentum=strategy.outer_momentum, nesterov=strategy.outer_nesterov)
    for epoch in range(config.training.epochs):
        order = epoch_order(data.split.train, config.data.passes_per_epoch, config.seed, epoch)
        batch = config.training.batch_per_worker
        own = [worker_batches(order, rank, len(models), batch, 1) for rank in range(len(models))]
        rate = learning_rate(alone.model_copy(update={"strategy": Strategy()}), epoch)
        for optimizer in optimizers:
            set_learning_rate(optimizer, rate * (strategy.stale_rate_factor if strategy.staleness else 1))
        before: Sequence[Sequence[Tensor]] = ()
        for step in range(len(own[0])):
            gradients = []
            for model, indices in zip(models, own, strict=True):
                loss = task.loss(model, data.source.gather(indices[step][0]))
                gradients.append([*torch.autograd.grad(loss, [*model.parameters()])])
            left = len(own[0]) - 1 - step
            if strategy.staleness:
                for applied in filter(None, (before, gradients if left == 0 else ())):
                    update(models, optimizers, [mean(each) for each in zip(*applied, strict=True)])
                before = gradients
            else:
                size = strategy.subgroup_size
                for rank, model in enumerate(models):
                    node = gradients[rank // size * size : (rank // size + 1) * size]
                    update([model], [optimizers[rank]], [mean(each) for each in zip(*node, strict=True)])
                if left % strategy.synchronise_every == 0:
                    meet(models, optimizers, strategy.average_moments)
                    if strategy.outer_momentum:
                        take_outer_step(models, outer, last, rate, strategy.outer_learning_rate)
    return models[0].state_dict()


def mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).mean(dim=0)


def update(models: Any, optimizers: Any, gradients: Sequence[Tensor]) -> None:
    for model, optimizer in zip(models, optimizers, strict=True):
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()


@torch.no_grad()
def meet(models: Any, optimizers: Any, moments: bool) -> None:
    for weights in zip(*(model.parameters() for model in models), strict=True):
        states = [optimizer.state[weight] for optimizer, weight in zip(optimizers, weights, strict=True)]
        kept = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq") if moments]
        for alike in ([*weights], *kept):
            average = mean(alike)
            for each in alike:
                each.copy_(average)


@torch.no_grad()
def take_outer_step(models: Any, outer: Any, last: Sequence[Tensor], rate: float, outer_rate: float) -> None:
    """SlowMo by an optimizer of torch: its gradient is the way since the last averaging, per rate."""
    of_models = zip(*(model.parameters() for model in models), strict=True)
    for begun, weights in zip(last, of_models, strict=True):
        begun.grad = (begun - weights[0]) / rate
    outer.param_groups[0]["lr"] = outer_rate * rate
    outer.step()
    for model in models:
        for begun, weight in zip(last, model.parameters(), strict=True):
            weight.copy_(begun)


def plain_runs(images: Path, session_folder: Path) -> list[RunConfig]:
    """Return the runs that nothing disturbs."""
    folder = session_folder / "strategies"
    configs = [points(folder, name, each, **more) for each, more in STRATEGIES for name in FRAMEWORKS]
    source = write_source(session_folder)
    return [*configs, *(all_kinds(source, "pytorch_native", 2, optimizer) for optimizer in RESUMED)]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "options"), STRATEGIES, ids=str)
def test_both_frameworks_train_what_a_plain_loop_does(
    strategy: dict[str, Any], options: dict[str, Any], session_folder: Path, trained_run: TrainedRuns
) -> None:
    """48 steps; of four real workers, frameworks add in different orders."""
    folder = session_folder / "strategies"
    runs = [trained_run(points(folder, name, strategy, **options)) for name in FRAMEWORKS]
    native, horovod = (run.record for run in runs)
    assert options.get("workers") == 4 or learned(horovod) == learned(native)
    expected = plain_loop(points(folder, "pytorch_native", strategy, **options))
    for run in runs:
        found = torch.load(run.folder / "weights.pt", weights_only=True)
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=0, atol=1e-6), name


# By optimizer, a strategy, and as how many workers it is played.
RESUMED: dict[str, tuple[dict[str, Any], int]] = {
    "amsgrad": (OUTER | {"outer_nesterov": True}, 2),
    "sgd": (STALE, 2),
    "groups": (NESTEROV, 4),
}


def all_kinds(source: Path, framework: str, workers: int, optimizer: str, **more: Any) -> RunConfig:
    """A run with dropout, buffers of all kinds and groups of parameters."""
    strategy, plays = RESUMED[optimizer]
    options: dict[str, Any] = {"accumulate": 1, "batch_per_worker": 8 // plays, "evaluate_every": 1}
    options |= {"epochs": 3, "plays": plays if plays > workers else None}
    return with_strategy(equal_config(source, framework, workers, optimizer, **options | more), **strategy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "workers"),
    [
        ("amsgrad", 1),
        ("groups", 1),
        *(
            pytest.param(*each, marks=pytest.mark.verify)
            for each in (("amsgrad", 2), ("sgd", 1), ("sgd", 2), ("groups", 2))
        ),
    ],
)
def test_played_and_resumed_runs_train_what_two_undisturbed_workers_do(
    optimizer: str, workers: int, source: Path, tmp_path: Path, trained_run: TrainedRuns
) -> None:
    """Between two exchanges one worker, which plays two, is stopped, or one of Horovod's two is killed."""
    undisturbed = trained_run(all_kinds(source, "pytorch_native", 2, optimizer)).record
    framework, fault = {1: ("pytorch_native", "SIGTERM"), 2: ("horovod", "kill")}[workers]
    options = {"plays": RESUMED[optimizer][1], "checkpoint_minutes": EVERY_STEP}
    config = all_kinds(source, framework, workers, optimizer, **options)
    config = over_gloo(config) if framework == "horovod" else config
    happens = Fault(fault, 3, workers - 1, every_step_is_safe=True)
    assert not attempt(tmp_path / "run", config, happens).record.complete
    again = attempt(tmp_path / "run", config).record
    assert again.header is not None
    assert again.header.resumed is not None
    assert learned(again) == learned(undisturbed)


# Each worker on a host of its own, by name.
APART = """
import os, sys
named = 'hostname "node$PMI_RANK" && exec "$@"'
os.execvp("unshare", ["unshare", "--uts", "sh", "-c", named, "sh", sys.executable, *sys.argv[1:]])
"""


@pytest.mark.slow
@pytest.mark.skipif(not may_mount, reason="needs root and unshare (util-linux)")
def test_a_subgroup_on_two_hosts_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", points(tmp_path, "pytorch_native", HIERARCHY))
    program = ["-c", APART, str(PROJECT / "pytorch_native" / "train.py"), str(run)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        assert launch(program, 2, run / "output.log", cores_each=1) == 2
    assert run_state(run).state == "failed"
    assert "workers 0 to 1 of a subgroup are on node0 and node1" in run_state(run).reason


def told_of(folder: Path, **truth: Any) -> Told:
    return report_of(write_honest(folder, Honest(workers=(1, 2), advantage=0.0, **truth)))


def test_a_strategy_is_called_faster_only_where_its_score_is_not_inferior(tmp_path: Path) -> None:
    """And gains no more than the budget of the point beside it allows."""
    every = {"strategy": {"synchronise_every": [1, 4, 16]}}
    slow = told_of(tmp_path / "slow", overhead=4.0, **every)
    found = slow.table("strategies")
    assert list(found["outcome"]) == ["faster", "faster", "faster, at a loss", "faster, at a loss"]
    assert (found["ratio"] - 1 < found["most_gain"]).all()
    assert (found["most_gain"] < 0.15).all()
    assert FIGURES["strategies"].known(Inputs(slow.report))
    few = told_of(tmp_path / "few", overhead=4.0, repeats=3, **every).table("strategies")
    assert set(few["outcome"]) == {"suggests faster", "suggests faster, at a loss"}
    idle = told_of(tmp_path / "fast link", overhead=0.0, **every).table("strategies")
    assert set(idle["outcome"]) <= {"equal within 3 %", "cannot tell"}
    assert told_of(tmp_path / "none").table("strategies").empty
    write_honest(tmp_path / "alone", Honest(workers=(1,), strategy=every["strategy"]))
    assert report_of(tmp_path / "alone").report.strategies.empty
    study = recorded_study(tmp_path / "slow")
    assert study is not None
    runs = map(StudyFolder(tmp_path / "slow", study).read_run, study.configs())
    assert [*describe_lost_speed(runs)] == [
        f"{name}-w02-synchronise_every=1: about 10 % faster if nothing was lost against 1 worker (10 to "
        f"{most} % by single runs, of 5): a strategy may gain that at most"
        for name, most in zip(FRAMEWORKS, (10, 11), strict=True)
    ]


def test_a_strategy_is_named_without_what_averaged_gradients_have_too() -> None:
    """What else the study varies stays: it tells points of one strategy apart."""
    options = "batch_per_worker=8, synchronise_every={}, staleness=0"
    assert changed_options(options.format(4), options.format(1)) == "batch_per_worker=8, synchronise_every=4"


ELSEWHERE = {"node1": "node9"}


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        (started(lambda _, at: at + timedelta(days=3)), "order interleaved in time"),
        (workers(host=lambda worker: ELSEWHERE[worker.host]), "same nodes"),
    ],
)
def test_points_of_another_day_or_place_are_not_compared(change: Change, doubt: str, tmp_path: Path) -> None:
    """The other strategy is compared as before."""
    every = {"synchronise_every": [1, 4, 16]}
    folder = write_honest(
        tmp_path / "apart", Honest(FRAMEWORKS[:1], workers=(1, 2), overhead=4.0, strategy=every)
    )
    for path, lines in Runs(folder, workers=(2,)).records():
        if lines.config.strategy.synchronise_every == 4:
            write_lines(path, change(lines))
    apart, others = report_of(folder).rows("strategies")
    assert apart["outcome"] == "withheld"
    assert doubt in apart["doubts"]
    assert others["outcome"] == "faster, at a loss"
    assert others["doubts"] == ""
