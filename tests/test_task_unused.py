"""Parameters that some passes do not use: the option, what it says, and equal training by all frameworks."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from analysis.__main__ import main as report
from slurm.commands.check import verify_in_processes
from tests.own_task_records import as_own_task
from tests.records import write_run
from tests.studies import launched
from tests.task_mistakes import MISTAKES
from tests.tasks import POINTS, SOMETIMES_UNUSED, points_config
from tests.trained import TrainedRun, TrainedRuns
from tests.wrappers import each_other_framework
from unet_scaling.data.sample_data import SampleData
from unet_scaling.group.group import single_worker
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import read_study
from unet_scaling.task.file_task import FileTask
from unet_scaling.task.weights import with_zero_gradients
from unet_scaling.training import build_model, build_optimizer, local_step

LEAST_STEPS = 20
OPTION = "task.find_unused_parameters"
STUDY = """
workers = [1]
repeats = 1
[task]
file = "my_task.py"
options = { width = 4 }
find_unused_parameters = true
[training]
epochs = 2
"""
# All is used while the task is verified; from the sixth pass on of a run, by some workers only.
LATER_UNUSED = SOMETIMES_UNUSED.replace("self.passes % 2", "self.passes < 6 or places[0, 0] > 0").replace(
    "self.training and places[0, 0] > 0", "True"
)


def write_study(folder: Path, text: str = STUDY) -> Path:
    (folder / "my_task.py").write_text(POINTS)
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def task_of(config: RunConfig) -> tuple[FileTask, nn.Module, SampleData]:
    task = FileTask(config)
    data = task.load_data(single_worker())
    return task, build_model(task, torch.device("cpu"), nn.BatchNorm2d), data


def allowing(folder: Path, framework: str = "pytorch_native", workers: int = 2, **training: int) -> RunConfig:
    return points_config(
        folder,
        SOMETIMES_UNUSED,
        framework=framework,
        workers=workers,
        find_unused_parameters=True,
        **training,
    )


def weights(run: TrainedRun) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run.folder / "weights.pt", weights_only=True)
    return state


def test_what_is_not_used_gets_zeros_and_the_rest_its_own_gradient() -> None:
    """An infinite weight that is not used makes nothing NaN."""
    used, unused, frozen = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)
    nn.init.constant_(unused.weight, torch.inf)
    model = nn.ModuleList([used, unused, frozen])
    used(torch.ones(4, 3)).square().mean().backward()
    own = [weight.grad.clone() for weight in used.parameters() if weight.grad is not None]
    model.zero_grad()
    loss = used(torch.ones(4, 3)).square().mean()
    joined = with_zero_gradients(loss, model)
    assert torch.equal(joined, loss)
    joined.backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad for weight in model.parameters()]
    assert gradients[4:] == [None, None]
    expected = [*own, torch.zeros(2, 3), torch.zeros(2)]
    found = [gradient for gradient in gradients if gradient is not None]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_weight_goes_on_to_move_after_it_was_used(tmp_path: Path) -> None:
    """As Adam's mean of its gradients does: the first step uses it, the second does not."""
    task, model, data = task_of(allowing(tmp_path, workers=1))
    step = local_step(model, build_optimizer(task, model), task)
    batches = iter(data.steps(0, NO_CLOCK))
    spare = model.get_parameter("spare.weight")
    moved = []
    for _ in range(2):
        before = spare.detach().clone()
        step.take(next(batches), NO_CLOCK)
        moved.append(not torch.equal(spare, before))
    assert moved == [True, True]
    assert spare.grad is not None
    assert not spare.grad.any()


def test_the_refusal_names_the_option_which_cures_it(tmp_path: Path) -> None:
    source = MISTAKES["unused"].source
    with pytest.raises(UserError, match=f"no gradient after a pass for spare.weight, .* set {OPTION} = true"):
        verify_in_processes(points_config(tmp_path, source))
    verify_in_processes(points_config(tmp_path, source, find_unused_parameters=True))


def test_a_branch_by_a_count_of_passes_is_nothing_random(tmp_path: Path) -> None:
    task, model, data = task_of(allowing(tmp_path))
    task.verify(model, data)
    assert not model.get_buffer("passes").any()


def test_the_option_is_of_tasks_in_files_and_of_graphs_that_change(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    assert all(config.task.find_unused_parameters for config in read_study(path).configs())
    path.write_text(f"{STUDY}\n[pytorch_native]\nstatic_graph = true\n")
    with pytest.raises(UserError, match=f"pytorch_native.static_graph = true .* {OPTION} = true"):
        read_study(path)
    built_in = '[data]\nfolder = "images"\nimage_height = 32\nimage_width = 32\n'
    path.write_text(STUDY.replace('file = "my_task.py"\noptions = { width = 4 }\n', "") + built_in)
    with pytest.raises(UserError, match=f"{OPTION} are for the task that task.file names"):
        read_study(path)


def test_the_option_at_its_default_changes_no_digest(tmp_path: Path) -> None:
    config = points_config(tmp_path)
    content = config.model_dump()
    del content["task"]["find_unused_parameters"]
    assert RunConfig.model_validate(content).digest() == config.digest()
    assert allowing(tmp_path).digest() != points_config(tmp_path, SOMETIMES_UNUSED, workers=2).digest()


@pytest.mark.slow
@each_other_framework
def test_frameworks_train_the_same_bytes(framework: str, tmp_path: Path, trained_run: TrainedRuns) -> None:
    """In alternate passes a layer is used, and another one by some workers only."""
    native, other = (trained_run(allowing(tmp_path, name)) for name in ("pytorch_native", framework))
    assert sum(epoch.steps for epoch in native.record.epochs) >= LEAST_STEPS
    assert native.losses == other.losses
    assert all(torch.equal(tensor, weights(other)[key]) for key, tensor in weights(native).items())


@pytest.mark.slow
def test_two_workers_train_as_one_that_plays_them(tmp_path: Path, trained_run: TrainedRuns) -> None:
    two = trained_run(allowing(tmp_path, "horovod", batch_per_worker=2))
    one = trained_run(allowing(tmp_path, workers=1, batch_per_worker=2, plays=2))
    assert two.losses == pytest.approx(one.losses, rel=1e-6)
    for key, tensor in weights(two).items():
        assert torch.allclose(tensor, weights(one)[key], rtol=1e-4, atol=1e-6), key


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_a_later_pass_without_a_gradient_ends_the_run_by_name(framework: str, tmp_path: Path) -> None:
    config = points_config(tmp_path / "task", LATER_UNUSED, framework=framework, workers=2)
    code, output = launched(config, tmp_path / "run")
    assert code == 2
    assert "no gradient after a pass for spare.weight, spare.bias:" in output
    assert f"set {OPTION} = true" in output


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("find_unused_parameters", True, "a parameter that a pass does not use gets a gradient of zero"),
     ("loss_is_mean", False, "same loss at every worker count")],
)  # fmt: skip
def test_the_report_says_so_and_refuses_runs_without_the_option(
    key: str, value: bool, said: str, tmp_path: Path
) -> None:
    parts = [tmp_path / name for name in ("with", "without")]
    for part, switches in zip(parts, ({key: value}, {}), strict=True):
        for framework in ("pytorch_native", "horovod"):
            for repeat in (1, 2, 3):
                write_run(part, framework, 1, repeat)
        as_own_task(part, switches=switches)
    assert [report([str(part)]) for part in parts] == [0, 0]
    pages = [(part / "report" / "report.html").read_text() for part in parts]
    assert [said in page for page in pages] == [True, False]
    assert f"{key} = {str(value).lower()}" in (parts[0] / "report" / "tiny.toml").read_text()
    for run in parts[1].glob("horovod*"):
        shutil.rmtree(parts[0] / run.name)
        run.rename(parts[0] / run.name)
    assert report([str(parts[0])]) == 0
    assert f"task.{key}: " in (parts[0] / "report" / "left_out.csv").read_text()
