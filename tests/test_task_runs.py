"""Tasks that files define, trained by real workers: the frameworks agree, and mistakes end a run."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from analysis.__main__ import main as report
from tests.studies import launched
from tests.task_mistakes import HIDDEN, MISTAKES, MISTAKES_OF_WORKERS, changed
from tests.tasks import EXAMPLES, POINTS, example, points_config, task_config
from tests.trained import TrainedRun, TrainedRuns
from unet_scaling.study.config import FRAMEWORKS, RunConfig
from unet_scaling.study.record_lines import Scores
from unet_scaling.study.run_state import run_state

LEAST_STEPS = 20
# Not in words such as "previous".
IOU = re.compile(r"(?i)(?<![a-z])iou(?![a-z])")
pytestmark = pytest.mark.slow


def example_config(name: str, framework: str, workers: int, **training: Any) -> RunConfig:
    return task_config(example(name), EXAMPLES[name], framework, workers, **training)


def weights(run: TrainedRun) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(run.folder / "weights.pt", weights_only=True)
    return state


def last_scores(run: TrainedRun) -> Scores:
    result = run.record.results[-1]
    assert isinstance(result, Scores)
    return result


@pytest.mark.parametrize("name", EXAMPLES)
def test_frameworks_train_an_example_to_the_same_bytes(name: str, trained_run: TrainedRuns) -> None:
    native, horovod = (trained_run(example_config(name, framework, 2)) for framework in FRAMEWORKS)
    assert sum(epoch.steps for epoch in native.record.epochs) >= LEAST_STEPS
    assert native.losses == horovod.losses
    assert native.losses[-1] < native.losses[0]
    assert all(torch.equal(tensor, weights(horovod)[key]) for key, tensor in weights(native).items())
    assert last_scores(native).counts == last_scores(horovod).counts


@pytest.mark.parametrize("name", EXAMPLES)
def test_one_state_has_one_score_at_any_number_of_workers(name: str, trained_run: TrainedRuns) -> None:
    trained = trained_run(example_config(name, "pytorch_native", 2))
    expected = last_scores(trained)
    for framework, workers in (("horovod", 1), ("pytorch_native", 3)):
        config = example_config(
            name, framework, workers, epochs=0, initial_weights=str(trained.folder / "weights.pt")
        )
        found = last_scores(trained_run(config))
        assert (found.counts, found.scores) == (expected.counts, expected.scores), framework


def test_the_report_speaks_of_the_score_of_the_task(tmp_path: Path, trained_run: TrainedRuns) -> None:
    study = tmp_path / "words"
    for framework in FRAMEWORKS:
        run = trained_run(example_config("residual_classifier", framework, 2))
        shutil.copytree(run.folder, study / framework)
    assert report([str(study)]) == 0
    texts = {path.name: path.read_text() for path in (study / "report").glob("*.[hcmjst]*")}
    assert not [name for name, text in texts.items() if IOU.search(name) or IOU.search(text)]
    assert "accuracy_low" in texts["summary.csv"]
    assert '[task]\nfile = "residual_classifier.py"' in texts["test.toml"]


@pytest.mark.parametrize("name", ["branch", "order of reads", "complex"])
def test_workers_refuse_a_mistake_before_they_train(name: str, tmp_path: Path) -> None:
    mistake = (MISTAKES | MISTAKES_OF_WORKERS)[name]
    code, output = launched(points_config(tmp_path / "task", mistake.source, workers=2), tmp_path / "run")
    assert code == mistake.code
    assert mistake.place in output
    assert mistake.word in output
    assert not (tmp_path / "run" / "run.jsonl").read_bytes()


def test_outputs_that_are_not_finite_in_evaluation_end_a_run_as_diverged(tmp_path: Path) -> None:
    """On all workers alike, though one of them alone has such a sample; after the verified passes."""
    text = "self.trained = self.trained + self.training\n        factor = torch.nan if not self.training and "
    source = changed(
        {"        return self.head": f"        {text}self.trained > 30 and places[0, 0] > 1.5 else 1.0\n"
         "        return factor * self.head",
         HIDDEN: HIDDEN + "        self.trained = 0\n"}
    )  # fmt: skip
    code, output = launched(
        points_config(tmp_path / "task", source, framework="horovod", workers=2), tmp_path / "run"
    )
    assert code == 70, output
    state = run_state(tmp_path / "run")
    assert state.state == "diverged"
    assert "my_task.py" in state.reason
    assert ": count: " in state.reason


def test_a_run_refuses_a_file_that_was_changed_since(tmp_path: Path) -> None:
    config = points_config(tmp_path / "task")
    (tmp_path / "task" / "my_task.py").write_text(POINTS + "\n")
    code, output = launched(config, tmp_path / "run")
    assert code == 65
    assert "has changed since the study was launched" in output
