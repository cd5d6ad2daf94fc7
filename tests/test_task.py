"""A task that a file defines: what it has to define, what is verified, and the words of its report."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from analysis.score import Score
from slurm.commands import new
from slurm.study_folder import StudyFolder
from tests.task_mistakes import MISTAKES, MISTAKES_OF_WORKERS, RIGHT, changed
from tests.tasks import EXAMPLES, POINTS, example, points_config, task_config
from unet_scaling.data.sample_data import SampleData
from unet_scaling.group.group import single_worker
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_lines import Scores
from unet_scaling.study.study_file import read_study
from unet_scaling.study.texts import score_title
from unet_scaling.task.file_task import FileTask
from unet_scaling.training import build_model
from unet_scaling.verify_task import task_facts_of

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


def verify(config: RunConfig) -> None:
    task = FileTask(config)
    data = task.load_data(single_worker())
    task.verify(build_model(task, torch.device("cpu"), nn.BatchNorm2d), data)


def data_of(config: RunConfig) -> SampleData:
    return FileTask(config).load_data(single_worker())


def write_study(folder: Path, text: str = STUDY, source: str = POINTS) -> Path:
    (folder / "my_task.py").write_text(source)
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_short_and_keep_the_contract(name: str) -> None:
    verify(task_config(example(name), EXAMPLES[name]))
    assert len(example(name).read_text().splitlines()) <= 60


def test_the_task_of_the_documentation_keeps_the_contract(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "your_model.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    verify(points_config(tmp_path, source))


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


@pytest.mark.parametrize("name", ["key", "no option", "order of reads"])
def test_check_refuses_a_mistake_before_any_launch(name: str, tmp_path: Path) -> None:
    mistake = (MISTAKES | MISTAKES_OF_WORKERS)[name]
    path = write_study(tmp_path, source=mistake.source)
    command = [sys.executable, "-m", "unet_scaling", "check", str(path), "--only-files"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (mistake.code, "")
    assert f"error: {tmp_path}/{mistake.place}" in done.stderr
    assert mistake.word in done.stderr


def test_a_loss_that_is_no_mean_passes_where_the_study_says_so(tmp_path: Path) -> None:
    config = points_config(tmp_path, MISTAKES["dice of a batch"].source)
    task = config.task.model_copy(update={"loss_is_mean": False})
    task_facts_of(config.model_copy(update={"task": task}), "")


def test_a_score_that_is_better_when_lower_is_judged_turned(tmp_path: Path) -> None:
    """With fewer errors the judged score rises; the score itself is recorded beside it."""
    task = FileTask(points_config(tmp_path, changed(RIGHT["lower is better"])))
    few, many = (task.score(torch.tensor([errors, 10])) for errors in (1, 4))
    assert few == {"one_minus_error_rate": pytest.approx(0.9), "error_rate": pytest.approx(0.1)}
    assert next(iter(many.values())) == pytest.approx(0.6)
    assert score_title(next(iter(few))) == "1 - error rate"


def test_verification_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    config = task_config(example("volume_unet"), EXAMPLES["volume_unet"])
    task = FileTask(config)
    data = task.load_data(single_worker())
    model = build_model(task, torch.device("cpu"), nn.BatchNorm2d)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    task.verify(model, data)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(weight.grad is None for weight in model.parameters())


def test_refuses_a_file_that_was_changed(tmp_path: Path) -> None:
    config = points_config(tmp_path)
    (tmp_path / "my_task.py").write_text(POINTS + "\n")
    with pytest.raises(UserError, match="has changed since the study was launched") as raised:
        FileTask(config)
    assert raised.value.exit_code == 65


def test_names_a_missing_function_and_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no function count; did you mean counts\?"):
        FileTask(points_config(tmp_path, POINTS.replace("def count(", "def counts(")))


def test_names_the_line_of_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"my_task.py:3 cannot be imported: ModuleNotFoundError"):
        FileTask(points_config(tmp_path, POINTS.replace("import torch", "import torchh", 1)))


def test_refuses_an_option_that_nothing_reads(tmp_path: Path) -> None:
    config = points_config(tmp_path)
    options = config.task.model_copy(update={"options": {"width": 4, "depht": 2}})
    with pytest.raises(UserError, match=r"task.options.depht: neither build_model nor datasets"):
        verify(config.model_copy(update={"task": options}))


def test_batches_are_those_of_the_whole_group(tmp_path: Path) -> None:
    """One worker that plays two has the batches of both, one after the other."""
    data = data_of(points_config(tmp_path, plays=2))
    (first, second), *_ = (list(step) for step in data.steps(0, NO_CLOCK))
    assert len(first[0]) == len(second[0]) == 4
    assert not torch.equal(first[0], second[0])


def test_transform_draws_from_the_sample_and_the_epoch_alone(tmp_path: Path) -> None:
    data = data_of(points_config(tmp_path, POINTS + TRANSFORM))
    some = data.split.train[:4]
    assert torch.equal(data.batch(some, 0)[0][2:], data.batch(some[2:], 0)[0])
    assert not torch.equal(data.batch(some, 0)[0], data.batch(some, 1)[0])
    assert torch.equal(data.batch(some)[0], data.source.gather(some)[0])


def test_reads_the_file_beside_the_study_with_its_checksum(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path))
    configs = study.configs()
    assert {config.task.file for config in configs} == {str(tmp_path / "my_task.py")}
    assert {config.task.options["width"] for config in configs} == {4, 8}
    assert RunConfig.model_validate_json(configs[0].model_dump_json()) == configs[0]
    before = configs[0].digest()
    (tmp_path / "my_task.py").write_text(POINTS + "\n")
    assert read_study(tmp_path / "mine.toml").configs()[0].digest() != before


def test_an_option_of_the_task_can_be_set(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path), {"task.options.width": 2})
    assert {config.task.options["width"] for config in study.configs()} == {2}


def test_a_study_does_not_go_on_with_another_file(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    study = read_study(path)
    folder = StudyFolder(tmp_path / "logs", study)
    first, *_ = folder.prepare()
    (folder.run_folder(first) / "checkpoint-00000-0000001.pt").touch()
    (tmp_path / "my_task.py").write_text(POINTS + "\n")
    changed = read_study(path)
    with pytest.raises(UserError, match=r"holds another configuration: task.sha256 is") as raised:
        StudyFolder(folder.path, changed).require_same(changed.configs())
    assert raised.value.exit_code == 2


def test_new_writes_a_study_of_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text(POINTS)
    asked = ["--task", str(tmp_path / "my_task.py"), "--option", "width=4", "--workers", "1,2", "--yes"]
    monkeypatch.setattr("sys.argv", ["new", "mine", "--into", str(tmp_path), *asked])
    new.main()
    study = read_study(tmp_path / "mine.toml")
    assert study.task.file == str(tmp_path / "my_task.py")
    assert study.task.options == {"width": 4}
    assert study.workers == [1, 2]


@pytest.mark.parametrize("text", ["[model]\nwidth = 8\n", '[data]\nfolder = "x"\n'])
def test_refuses_options_of_the_built_in_task(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is for the built-in U-Net, but task.file names"):
        read_study(write_study(tmp_path, STUDY + text))


def test_criteria_may_be_named_for_any_score(tmp_path: Path) -> None:
    study = read_study(write_study(tmp_path, STUDY + "[criteria]\nscore_margin = 0.02\ntarget_score = 0.6\n"))
    assert (study.criteria.iou_margin, study.criteria.target_iou) == (0.02, 0.6)


def test_a_record_refuses_a_score_that_is_no_share() -> None:
    with pytest.raises(ValueError, match="the first score is a share"):
        Scores(
            epochs=1, training_seconds=1.0, images=4, counts=[4], scores={"error": 4.0}, seconds=1.0,
            weights_sha256="0" * 64,
        )  # fmt: skip


def test_a_score_names_columns_and_files_and_what_sentences_say() -> None:
    score = Score("top_accuracy", "sample")
    names = ("iou_low", "time_to_iou.svg", "image_iou", "previous", "target_iou", "iou_margin")
    assert [score.key(name) for name in names] == [
        "top_accuracy_low", "time_to_top_accuracy.svg", "image_top_accuracy", "previous", "target_score",
        "score_margin",
    ]  # fmt: skip
    assert [Score().key(name) for name in names] == list(names)
    assert (score.title, score.heading, score.with_article) == (
        "top accuracy",
        "Top accuracy",
        "a top accuracy",
    )
    assert (Score().title, Score().heading, Score().with_article) == ("IoU", "IoU", "an IoU")
    assert Score("accuracy").with_article == "an accuracy"
