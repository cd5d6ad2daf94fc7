"""A task that a file defines: its functions, what is verified before a run, and what studies make of it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from analysis.__main__ import main as report
from analysis.causes.budget import budget_table, network_table
from analysis.causes.diagnosis import diagnose
from analysis.read.load import load_study
from slurm.commands import new
from slurm.commands.check import verify_in_processes
from slurm.launch.estimate import ProbedSpeed
from slurm.launch.preflight import explain_unjudged
from slurm.launch.study_folder import StudyFolder
from tests.records import Steps, write_budget_run, write_run
from tests.tampering import as_own_task
from tests.task_mistakes import MISTAKES, MISTAKES_OF_WORKERS, RIGHT, changed
from tests.tasks import EXAMPLES, POINTS, SOMETIMES_UNUSED, example, points_config, task_config
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError
from unet_scaling.data.batches import SampleData
from unet_scaling.format.record_lines import Scores
from unet_scaling.group.group import single_worker
from unet_scaling.profile.measure import open_subject
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.study_file import read_study
from unet_scaling.task.file_task import FileTask
from unet_scaling.training import build_model, with_zero_gradients
from unet_scaling.verify_task import task_facts_of

OPTION = "task.find_unused_parameters"
STUDY = """
workers = [1, 2]
repeats = 1
[task]
file = "my_task.py"
[task.options]
width = [4, 8]
[training]
epochs = 2
"""
TRANSFORM = """

def transform(batch, seeds):
    return batch[0] + (0 if seeds is None else seeds[:, None] % 7), batch[1]
"""


def data_of(config: RunConfig) -> SampleData:
    return FileTask(config).load_data(single_worker())


def write_study(folder: Path, text: str = STUDY, source: str = POINTS) -> Path:
    (folder / "my_task.py").write_text(source)
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", [*EXAMPLES, "docs/your_model.md", "sometimes unused"])
def test_right_tasks_keep_the_contract_and_their_verification_leaves_no_trace(
    name: str, tmp_path: Path
) -> None:
    if name in EXAMPLES:
        config = task_config(example(name), EXAMPLES[name])
        assert len(example(name).read_text().splitlines()) <= 60
    elif name == "sometimes unused":
        config = points_config(tmp_path, SOMETIMES_UNUSED, find_unused_parameters=True)
    else:
        config = points_config(
            tmp_path, (PROJECT / name).read_text().partition("```python\n")[2].partition("```")[0]
        )
    task = FileTask(config)
    data = task.load_data(single_worker())
    model = build_model(task, torch.device("cpu"), nn.BatchNorm2d)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    task.verify(model, data)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("name", MISTAKES | MISTAKES_OF_WORKERS)
def test_a_mistake_is_named_by_function_file_and_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the two processes of `unet-scaling check` do it."""
    mistake = (MISTAKES | MISTAKES_OF_WORKERS)[name]
    config = points_config(tmp_path, mistake.source, **mistake.training)
    first = task_facts_of(config, "") if name in MISTAKES_OF_WORKERS else ""
    monkeypatch.setenv("PMI_RANK", "1" if first else "0")
    with pytest.raises(UserError) as raised:
        task_facts_of(config, first)
    assert raised.value.exit_code == mistake.code
    assert mistake.place in str(raised.value)
    assert mistake.word in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", RIGHT)
def test_what_looks_like_a_mistake_passes(name: str, tmp_path: Path) -> None:
    task_facts_of(points_config(tmp_path, changed(RIGHT[name])), "")


@pytest.mark.parametrize(
    ("name", "switches"),
    [("dice of a batch", {"loss_is_mean": False}), ("unused", {"find_unused_parameters": True})],
)
def test_a_mistake_that_the_study_says_is_none_passes(
    name: str, switches: dict[str, bool], tmp_path: Path
) -> None:
    config = points_config(tmp_path, MISTAKES[name].source)
    task = config.task.model_copy(update=switches)
    task_facts_of(config.model_copy(update={"task": task}), "")


@pytest.mark.slow
def test_check_counts_the_samples_of_a_task_and_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurm.commands.check.TRIED_WORKERS", 1)
    config = points_config(tmp_path)
    assert verify_in_processes(config) == (48, 13)
    said = f"verifying {tmp_path / 'my_task.py'} with width = 4 as worker 0 of 1\n"
    assert capsys.readouterr().err == said
    (line,) = explain_unjudged([config], 48, 13)
    assert line.startswith("the score will not be judged: ")


@pytest.mark.slow
def test_check_refuses_a_mistake_before_any_launch(tmp_path: Path) -> None:
    mistake = MISTAKES_OF_WORKERS["order of reads"]
    path = write_study(tmp_path, source=mistake.source)
    command = [sys.executable, "-m", "unet_scaling", "check", str(path), "--only-files"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (mistake.code, "")
    assert f"error: {tmp_path}/{mistake.place}" in done.stderr


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("def count(", "def counts(", "did you mean counts?"),
        ("import torch", "import torchh", "my_task.py:3 "),
    ],
)
def test_a_file_that_is_no_task_is_named(before: str, after: str, place: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        FileTask(points_config(tmp_path, POINTS.replace(before, after, 1)))
    assert (raised.value.exit_code, place in str(raised.value)) == (EXIT_USAGE, True)


def test_refuses_a_file_that_was_changed_and_an_option_that_nothing_reads(tmp_path: Path) -> None:
    config = points_config(tmp_path)
    unread = config.task.model_copy(update={"options": {"width": 4, "depht": 2}})
    with pytest.raises(UserError, match=r"^task\.options\.depht: "):
        task_facts_of(config.model_copy(update={"task": unread}), "")
    (tmp_path / "my_task.py").write_text(POINTS + "\n")
    with pytest.raises(UserError, match=r"^task\.file: .*my_task\.py") as raised:
        FileTask(config)
    assert raised.value.exit_code == EXIT_BAD_DATA


def test_a_score_that_is_better_when_lower_is_judged_turned(tmp_path: Path) -> None:
    """With fewer errors the judged score rises; the score itself is recorded beside it."""
    task = FileTask(points_config(tmp_path, changed(RIGHT["lower is better"])))
    few, many = (task.score(torch.tensor([errors, 10])) for errors in (1, 4))
    assert few == {"one_minus_error_rate": pytest.approx(0.9), "error_rate": pytest.approx(0.1)}
    assert next(iter(many.values())) == pytest.approx(0.6)
    known: dict[str, Any] = {"epochs": 1, "training_seconds": 1.0, "images": 4, "counts": [4], "seconds": 1.0}
    with pytest.raises(ValueError, match="share"):
        Scores(**known, scores={"error": 4.0}, weights_sha256="0" * 64)


def test_transform_draws_from_the_sample_and_the_epoch_alone(tmp_path: Path) -> None:
    data = data_of(points_config(tmp_path, POINTS + TRANSFORM))
    some = data.split.train[:4]
    assert torch.equal(data.batch(some, 0)[0][2:], data.batch(some[2:], 0)[0])
    assert not torch.equal(data.batch(some, 0)[0], data.batch(some, 1)[0])
    assert torch.equal(data.batch(some)[0], data.source.gather(some)[0])


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


def test_a_study_names_the_file_beside_it_by_its_checksum_and_goes_on_with_no_other(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    study = read_study(path)
    configs = study.configs()
    assert {config.task.file for config in configs} == {str(tmp_path / "my_task.py")}
    assert {config.task.options["width"] for config in configs} == {4, 8}
    assert {
        config.task.options["width"] for config in read_study(path, {"task.options.width": 2}).configs()
    } == {2}
    assert RunConfig.model_validate_json(configs[0].model_dump_json()) == configs[0]
    folder = StudyFolder(tmp_path / "logs", study)
    first, *_ = folder.prepare()
    (folder.run_folder(first) / "checkpoint-00000-0000001.pt").touch()
    (tmp_path / "my_task.py").write_text(POINTS + "\n")
    other = read_study(path)
    assert other.configs()[0].digest() != configs[0].digest()
    with pytest.raises(UserError, match=r"task\.sha256 is") as raised:
        StudyFolder(folder.path, other).require_same()
    assert raised.value.exit_code == EXIT_USAGE


def test_new_writes_a_study_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text(POINTS)
    asked = ["--task", str(tmp_path / "my_task.py"), "--option", "width=4", "--workers", "1,2"]
    monkeypatch.setattr("sys.argv", ["new", "mine", "--into", str(tmp_path), *asked])
    new.main()
    study = read_study(tmp_path / "mine.toml")
    assert study.task.file == str(tmp_path / "my_task.py")
    assert (study.task.options, study.workers) == ({"width": 4}, [1, 2])


BUILT_IN = '[data]\nfolder = "x"\nimage_height = 32\nimage_width = 32\n[training]\nepochs = 2\n'
HEAD, _, TAIL = STUDY.partition("[task]\n")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (STUDY + "[model]\nwidth = 8\n", "model.width"),
        (f"{HEAD}[task]\nfind_unused_parameters = true\n{BUILT_IN}", OPTION),
        (
            f"{HEAD}[task]\nfind_unused_parameters = true\n{TAIL}[pytorch_native]\nstatic_graph = true\n",
            "pytorch_native.static_graph",
        ),
    ],
)
def test_options_that_belong_to_another_kind_of_task_are_refused(
    text: str, keys: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as raised:
        read_study(write_study(tmp_path, text)).configs()
    assert (raised.value.exit_code, keys in str(raised.value)) == (EXIT_USAGE, True), str(raised.value)


def test_criteria_may_be_named_for_any_score(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, STUDY + "[criteria]\nscore_margin = 0.02\ntarget_score = 0.6\n"))
    assert (study.criteria.iou_margin, study.criteria.target_iou) == (0.02, 0.6)


def test_no_tool_of_the_built_in_task_is_offered(tmp_path: Path) -> None:
    """The probe times steps of the built-in network, the profiler its images."""
    config = points_config(tmp_path)
    assert ProbedSpeed(config, 10, 1.0, 1.0, "a probe").estimate(config) is None
    with pytest.raises(UserError, match=r"^task\.file: "), open_subject(read_study(write_study(tmp_path)), 8):
        pass
    for repeat in (1, 2, 3):
        write_budget_run(tmp_path / "mine", "horovod", 1, repeat)
        write_budget_run(tmp_path / "mine", "horovod", 2, repeat, Steps(data_wait=0.1))
    study = load_study(as_own_task(tmp_path / "mine"))
    (found,) = diagnose(study, budget_table(study), network_table(study))
    assert found.rule == "input-bound"
    assert not re.search(r"data\.loading|profile", found.try_next)


def test_the_report_tells_the_switches_and_refuses_runs_without_them(tmp_path: Path) -> None:
    parts = [tmp_path / name for name in ("with", "without")]
    switches = {"find_unused_parameters": True, "loss_is_mean": False}
    for part, chosen in zip(parts, (switches, {}), strict=True):
        for framework in ("pytorch_native", "horovod"):
            for repeat in (1, 2, 3):
                write_run(part, framework, 1, repeat)
        as_own_task(part, switches=chosen)
    assert report([str(parts[0])]) == 0
    page = (parts[0] / "report" / "report.html").read_text()
    assert OPTION in page
    assert "same loss at every worker count" in page  # a row of the fairness table
    for run in parts[1].glob("horovod*"):
        shutil.rmtree(parts[0] / run.name)
        run.rename(parts[0] / run.name)
    (reason,) = set(load_study(parts[0]).left_out["reason"])
    assert re.match(r"task\.(find_unused_parameters|loss_is_mean): ", reason)
