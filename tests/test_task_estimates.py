"""What a task in a file cannot have estimated is said, and no option named that it lacks."""

from pathlib import Path

import pytest

from analysis.budget.diagnosis import diagnose
from analysis.budget.network_floor import network_table
from analysis.budget.tables import budget_table
from analysis.loading.load import load_study
from slurm.cost import local_time
from slurm.estimate import Basis, MeasuredRun
from slurm.known_seconds import KnownSeconds
from tests.budgets import Steps, write_budget_run
from tests.own_task_records import as_own_task
from tests.tasks import points_config
from unet_scaling.profile.subject import open_subject
from unet_scaling.study.config import StudyConfig
from unet_scaling.study.errors import UserError

BY_RUNS = "complete runs of the same points tell it"


def test_a_plan_names_no_probe(tmp_path: Path) -> None:
    """The probe times steps of the built-in network."""
    text = KnownSeconds().foreseen_text([points_config(tmp_path)]).text
    assert BY_RUNS in text
    assert "--probe" not in text


def test_an_estimate_by_other_runs_says_why_there_is_none(tmp_path: Path) -> None:
    config = points_config(tmp_path)
    basis = Basis((MeasuredRun(config, config.framework, 1, 1.0, 1.0, 1.0),), "1 complete run of mine")
    text = local_time([config], basis)
    assert BY_RUNS in text
    assert "model.width" not in text


def test_the_input_profiler_refuses_it_in_one_line(tmp_path: Path) -> None:
    config = points_config(tmp_path)
    training = config.training.model_dump(exclude_defaults=True)
    study = StudyConfig(name="mine", workers=[1], repeats=1, task=config.task, training=training)
    with (
        pytest.raises(
            UserError, match=r"^task.file: found .*; only the images of the built-in task"
        ) as raised,
        open_subject(study, 8),
    ):
        pass
    assert "\n" not in str(raised.value)


def test_a_wait_for_samples_is_not_blamed_on_how_images_are_loaded(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        write_budget_run(tmp_path / "mine", "horovod", 1, repeat)
        write_budget_run(tmp_path / "mine", "horovod", 2, repeat, Steps(data_wait=0.1))
    study = load_study(as_own_task(tmp_path / "mine"))
    (found,) = diagnose(study, budget_table(study), network_table(study))
    assert (found.rule, found.finding) == ("input-bound", "workers wait for samples")
    assert "samples that are prepared before and kept in memory" in found.try_next
    assert "data.loading" not in f"{found.evidence} {found.try_next}"
    assert "profile" not in found.try_next
