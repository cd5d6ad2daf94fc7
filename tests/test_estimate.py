"""Estimates of time and cost: from complete runs, from a probe, and what a budget refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slurm.cancellation import next_cancellation
from slurm.cluster import Cluster
from slurm.commands.options import estimate_basis
from slurm.commands.submit import command_line
from slurm.cost import cluster_cost, local_time, require_within
from slurm.estimate import (
    Basis,
    Images,
    MeasuredRun,
    measured_run,
    pixels_per_image,
    run_seconds,
)
from slurm.estimate_basis import basis_of_folder, basis_of_other, basis_of_probe, basis_of_probed
from slurm.preflight import unverified_inputs
from slurm.render import Places
from slurm.study_folder import StudyFolder
from slurm.submit import Submitter
from tests.records import write_record
from tests.studies import make_images, make_point, make_run
from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.probed import Probed
from unet_scaling.study.record import read_record

CLUSTER = Cluster(launcher="srun", gpus_per_node=2, cores_per_worker=1, max_nodes=7, time="02:00:00")
IMAGES = Images(train=100, test=20)


def config(workers: int = 1, framework: str = "pytorch_native", **options: Any) -> RunConfig:
    return make_point(Path("data"), framework, workers, **options)


def measured(like: RunConfig, images_per_second: float, startup_seconds: float = 0.0) -> MeasuredRun:
    pixels = pixels_per_image(like)
    rate = images_per_second * pixels
    return MeasuredRun(like, like.framework, like.workers, rate, 2 * rate, startup_seconds)


def test_a_measured_point_takes_startup_training_and_evaluation() -> None:
    basis = Basis((measured(config(), 10.0, startup_seconds=5.0),), "one run")
    point = config()
    seconds = run_seconds(point, basis, IMAGES)
    assert seconds.expected == pytest.approx(5 + point.training.epochs * 100 / 10 + 20 / 20)
    assert seconds.low == pytest.approx(5 * 0.9 + (seconds.expected - 5) / 1.1)
    assert seconds.high == pytest.approx(5 * 1.1 + (seconds.expected - 5) / 0.9)


def test_more_workers_than_measured_lie_between_all_and_half_of_their_speed() -> None:
    basis = Basis((measured(config(2), 20.0),), "one run")
    alone = run_seconds(config(2), basis, IMAGES)
    eight = run_seconds(config(8), basis, IMAGES)
    assert eight.low == pytest.approx(alone.low / 4)
    assert eight.high == pytest.approx(alone.high / 2)
    assert eight.low < eight.expected < eight.high


def test_the_nearest_run_of_the_same_framework_and_options_is_used() -> None:
    runs = [
        measured(config(1), 10.0),
        measured(config(8), 40.0),
        measured(config(2, "horovod"), 1.0),
        measured(config(4, batch_per_worker=1), 1.0),
    ]
    seconds = run_seconds(config(6), Basis(tuple(runs), "runs"), IMAGES)
    assert seconds == run_seconds(config(6), Basis((runs[1],), "run"), IMAGES)


def test_a_record_gives_the_speed_of_its_epochs_after_the_warm_up(tmp_path: Path) -> None:
    point = config(epochs=3)
    write_record(make_run(tmp_path / "run", point), point)
    record = read_record(tmp_path / "run" / "run.jsonl")
    timed = [epoch for epoch in record.epochs if not epoch.warmup]
    found = measured_run(record)
    assert found is not None
    rate = sum(epoch.images for epoch in timed) / sum(epoch.seconds for epoch in timed)
    assert found.trained_per_second == pytest.approx(rate * pixels_per_image(point))
    assert measured_run(replace(record, end=None)) is None


@pytest.fixture
def study(tmp_path: Path) -> StudyConfig:
    data = make_images(tmp_path / "data", 12)
    return StudyConfig.model_validate(
        {
            "name": "sweep",
            "workers": [1, 4],
            "repeats": 1,
            "data": {"folder": str(data), "image_height": 32, "image_width": 32, "foreground": "255"},
            "training": {"epochs": 3, "batch_per_worker": 2},
            "model": {"width": 2, "depth": 2},
        }
    )


def complete_runs(folder: Path, study: StudyConfig, workers: int) -> Path:
    for each in study.configs():
        if each.workers == workers:
            make_run(folder / each.run, each)
            write_record(folder / each.run, each)
    return folder


def test_an_estimate_names_its_runs_and_what_it_scales_to(tmp_path: Path, study: StudyConfig) -> None:
    basis = basis_of_folder(complete_runs(tmp_path / "logs" / "sweep", study, 1))
    assert basis is not None
    cost = cluster_cost(CLUSTER, study.configs(), False, basis)
    first, second = cost.text.splitlines()
    assert "by 2 complete runs of sweep on 1 worker; scaled to 4 workers" in first
    assert second == "4 jobs, at most 12.0 node-hours (limit 2.0 h each)"
    assert 0 < cost.node_hours < 12
    assert "scaled to 4 workers" in local_time(study.configs(), basis)


def test_without_runs_or_images_the_limit_is_the_cost(tmp_path: Path, study: StudyConfig) -> None:
    assert basis_of_folder(tmp_path / "nothing") is None
    assert cluster_cost(CLUSTER, study.configs(), False, None).node_hours == 12
    assert cluster_cost(CLUSTER, study.configs(), True, None).node_hours == 4
    basis = basis_of_folder(complete_runs(tmp_path / "sweep", study, 1))
    (tmp_path / "data" / "manifest.json").unlink()
    cost = cluster_cost(CLUSTER, study.configs(), False, basis)
    assert cost.node_hours == 12
    assert "the number of images is not known" in cost.text


def test_runs_of_another_network_say_nothing(tmp_path: Path, study: StudyConfig) -> None:
    basis = basis_of_folder(complete_runs(tmp_path / "sweep", study, 1))
    wider = study.model_copy(update={"model": {"width": 4, "depth": 2}})
    cost = cluster_cost(CLUSTER, wider.configs(), False, basis)
    assert cost.node_hours == 12
    assert "of another network" in cost.text


def test_a_budget_refuses_what_may_cost_more_and_names_both_numbers(study: StudyConfig) -> None:
    cost = cluster_cost(CLUSTER, study.configs(), False, None)
    require_within(None, cost)
    require_within(12, cost)
    with pytest.raises(
        UserError, match=r"may take 12 node-hours, the budget is 11\.5; nothing was submitted"
    ):
        require_within(11.5, cost)


@pytest.mark.parametrize("hours", ["nan", "0", "-3", "many"])
def test_a_budget_is_a_positive_number_of_hours(hours: str) -> None:
    with pytest.raises(SystemExit):
        command_line().parse_args(["s.toml", "--cluster", "c.toml", "--budget", hours])


def submitter(folder: Path, study: StudyConfig, console: Console, budget: float | None = None) -> Submitter:
    places = Places(PROJECT, Path("python"))
    cancellation = next_cancellation(folder)
    return Submitter(
        StudyFolder(folder, study), CLUSTER, places, console, cancellation, budget_node_hours=budget
    )


def test_a_dry_run_needs_no_images_and_says_what_it_could_not_verify(
    tmp_path: Path, study: StudyConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "manifest.json").unlink()
    assert len(unverified_inputs(study.configs())) == 1
    submitter(tmp_path / "logs", study, Console(width=400)).dry_run()
    printed = capsys.readouterr().out
    assert printed.count("#SBATCH --job-name") == 4
    assert "not verified: " in printed
    assert "manifest.json does not exist" in printed
    assert "4 jobs, at most 12.0 node-hours" in printed


def test_another_study_without_complete_runs_is_refused_by_name(tmp_path: Path, study: StudyConfig) -> None:
    with pytest.raises(UserError, match="--estimate-from other: found no complete run there"):
        basis_of_other("other", tmp_path)
    complete_runs(tmp_path / "other", study, 1)
    assert len(basis_of_other("other", tmp_path).runs) == 2
    words = ["s.toml", "--cluster", "c.toml", "--logs", str(tmp_path), "--estimate-from", "other"]
    arguments = command_line().parse_args(words)
    assert estimate_basis(arguments, StudyFolder(tmp_path / "new", study), 1) == basis_of_other(
        "other", tmp_path
    )


def test_a_probe_is_a_run_of_one_worker_without_a_framework(study: StudyConfig) -> None:
    probed = Probed(device="cpu", cores=1, images_per_step=2, step_seconds=[0.5, 0.25, 0.25])
    basis = basis_of_probed(study.configs()[0], probed, process_seconds=5)
    assert basis.runs[0].trained_per_second == 8 * 32 * 32
    assert basis.runs[0].startup_seconds == 4
    assert "a probe of 3 steps on this machine (cpu, 1 core)" in local_time(study.configs(), basis)


@pytest.mark.slow
def test_a_real_probe_times_steps_of_the_study(
    tmp_path: Path, study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm.estimate_basis.PROBE_SECONDS", 1)
    data = make_images(tmp_path / "images", 8, 64, 48)
    table = {"folder": str(data), "image_height": 64, "image_width": 48, "foreground": "255"}
    basis = basis_of_probe(study.model_copy(update={"data": table}), 1, on_gpus=True)
    assert basis.runs[0].trained_per_second > 0
    assert basis.runs[0].startup_seconds > 0
    assert "(cpu, 1 core), without the GPUs" in basis.source
    missing = study.model_copy(update={"data": table | {"folder": str(tmp_path / "nosuch")}})
    with pytest.raises(UserError, match=r"--probe: .*nosuch/manifest\.json does not exist"):
        basis_of_probe(missing, 1, on_gpus=False)
