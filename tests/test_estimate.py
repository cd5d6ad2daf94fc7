"""Estimates of time and cost: from complete runs, from a probe, and what a budget refuses."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import slurm.commands.new
import slurm.commands.run
from slurm.cluster import Cluster, Cost
from slurm.commands.submit import command_line
from slurm.launch.estimate import KnownSeconds, ProbedSpeed, describe_estimate, run_probe, sum_seconds
from slurm.launch.local import plan_local_runs
from slurm.launch.preflight import explain_unjudged, find_iou_warnings, limit_cost
from slurm.launch.study_folder import StudyFolder
from tests.peer_slurm import make_submitter
from tests.records import make_study, make_workers, write_record
from tests.studies import make_images, make_run
from unet_scaling.base.errors import UserError
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import write_manifest
from unet_scaling.format.record import read_record
from unet_scaling.study.config import StudyConfig

CLUSTER = Cluster(launcher="srun", gpus_per_node=2, cores_per_worker=1, max_nodes=7, time="02:00:00")


@pytest.fixture
def study(tmp_path: Path) -> StudyConfig:
    data = make_images(tmp_path / "data", 12)
    training = {"epochs": 3, "batch_per_worker": 2}
    return make_study("sweep", data, workers=[1, 4], training=training, model={"width": 2, "depth": 2})


def complete_runs(folder: Path, study: StudyConfig, workers: tuple[int, ...]) -> KnownSeconds:
    known = KnownSeconds()
    for each in study.configs():
        if each.workers in workers:
            write_record(make_run(folder / each.run, each), each)
    for run in StudyFolder(folder, study).read_runs(study.configs()):
        known.learn(run)
    return known


def test_a_measured_point_takes_what_its_runs_took_and_a_probe_tells_the_others(
    tmp_path: Path, study: StudyConfig
) -> None:
    known = complete_runs(tmp_path / "sweep", study, (1,))
    alone = next(each for each in study.configs() if each.workers == 1)
    taken = sum_seconds(read_record(tmp_path / "sweep" / alone.run / "run.jsonl"))
    assert known.get_median(alone) == taken
    # 10 images train and 2 are evaluated, three times as fast.
    probe = ProbedSpeed(
        config=alone, images=12, images_per_second=10.0, startup_seconds=5.0, source="a probe"
    )
    four = next(each for each in study.configs() if each.workers == 4)
    every = four.training.evaluate_every
    evaluations = 1 + (2 // every if every else 0)
    seconds = 5 + (10 * 3 + 2 * evaluations / 3) / 10 / 4
    assert probe.estimate(four) == pytest.approx(seconds)
    told = describe_estimate([alone, four], known, probe)
    assert told.startswith(f"2 runs: at least {taken + seconds:.0f} s by the complete runs ")
    assert describe_estimate([alone, four], known).endswith("; not known for 1 more of other points")
    assert describe_estimate([four], known) == "duration unknown: no run of these points is complete"


def test_a_probe_tells_nothing_of_another_network_other_images_or_batches(study: StudyConfig) -> None:
    config = study.configs()[0]
    probe = ProbedSpeed(
        config=config, images=12, images_per_second=10.0, startup_seconds=5.0, source="a probe"
    )
    others = {"model": {"width": 4}, "data": {"image_height": 64}, "training": {"batch_per_worker": 3}}
    for table, changes in others.items():
        other = config.model_copy(update={table: getattr(config, table).model_copy(update=changes)})
        assert probe.estimate(other) is None
    rate = config.training.model_copy(update={"rate_scaling": "none", "learning_rate": 0.5})
    assert probe.estimate(config.model_copy(update={"training": rate})) == probe.estimate(config)
    explained = study.model_copy(update={"saliency": {"method": "rise"}})
    with pytest.raises(UserError, match="told by complete runs: --set repeats=1"):
        run_probe(explained, 1)


def test_the_cost_is_that_of_the_limit(study: StudyConfig) -> None:
    assert limit_cost(CLUSTER, study.configs(), one_allocation=False) == Cost(12, 20)
    assert limit_cost(CLUSTER, study.configs(), one_allocation=True) == Cost(4, 8)
    whole = CLUSTER.model_copy(update={"options": ["--exclusive"]})
    assert limit_cost(whole, study.configs(), one_allocation=False) == Cost(12, 24)
    of_cpus = CLUSTER.model_copy(update={"gres": ""})
    assert f"{limit_cost(of_cpus, study.configs(), one_allocation=False)}" == "12.0 node-hours"


@pytest.mark.parametrize("hours", ["nan", "0", "-3", "many"])
def test_a_budget_is_a_positive_number_of_hours(hours: str) -> None:
    with pytest.raises(SystemExit):
        command_line().parse_args(["s.toml", "--cluster", "c.toml", "--budget", hours])


def test_a_dry_run_needs_no_images_and_says_what_it_could_not_verify(
    tmp_path: Path, study: StudyConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "manifest.json").unlink()
    submitter = make_submitter(tmp_path / "logs", study, cluster=CLUSTER, console=Console(width=400))
    submitter.dry_run(verbose=True)
    printed = capsys.readouterr().out
    assert printed.count("#SBATCH --job-name") == 4
    assert printed.count("not verified: ") == 1
    assert "manifest.json does not exist" in printed
    assert "4 jobs, at most 12.0 node-hours, 20.0 GPU-hours (limit 2.0 h each)" in printed


def test_a_dry_run_counts_what_is_missing(
    tmp_path: Path, study: StudyConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    complete_runs(tmp_path / "logs", study, (1,))
    submitter = make_submitter(tmp_path / "logs", study, cluster=CLUSTER, console=Console(width=400))
    submitter.dry_run(verbose=True)
    printed = capsys.readouterr().out
    assert printed.count("#SBATCH --job-name") == 2
    assert "sweep: 4 runs, 2 would start, each as a job\n" in printed
    assert "2 jobs, at most 8.0 node-hours" in printed
    complete_runs(tmp_path / "logs", study, (4,))
    before = sorted(tmp_path.rglob("*"))
    submitter.dry_run()
    assert capsys.readouterr().out == "sweep: 4 runs, 0 would start, each as a job\n"
    replace(submitter, force=("horovod-w01-r1",)).dry_run()
    assert "4 runs, 1 would start" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


A100 = "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("gres", "device", "job", "is_told"),
    [
        ("gpu", "cpu", {}, False),
        ("gpu", "cpu", {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "1"}, True),  # a CPU build on a GPU node
        ("", "cpu", {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "1"}, False),
        ("", "cpu", {}, True),
        ("", A100, {}, False),
        ("gpu", A100, {}, True),
        ("gpu:a100,tmp:100G", A100, {}, True),
        ("gpu:h100", A100, {}, False),
        ("gpu:ampere", A100, {}, True),
        ("gpu:rtx3090", "NVIDIA GeForce RTX 3090", {}, True),
    ],
)
def test_only_runs_on_the_same_kind_of_device_tell_what_a_cluster_takes(
    gres: str,
    device: str,
    job: dict[str, str],
    is_told: bool,
    tmp_path: Path,
    study: StudyConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = study.configs()[0]
    folder = make_run(tmp_path / "logs" / config.run, config)
    header = {"workers": make_workers(config.workers, device=device), "job": job}
    write_record(folder, config, header=header)
    cluster = CLUSTER.model_copy(update={"gres": gres})
    submitter = make_submitter(tmp_path / "logs", study, cluster=cluster, console=Console(width=400))
    replace(submitter, force=(config.run,)).dry_run()
    printed = capsys.readouterr().out
    assert ("1 run: about" in printed) == is_told
    assert (f"duration unknown: complete runs of these points are of {device}" in printed) != is_told
    _, known = plan_local_runs(submitter.folder, Console(quiet=True), force=(config.run,), gres=gres)
    assert (known.get_median(config) is not None) == is_told


def test_what_will_not_be_judged_is_said_before_it_is_paid_for(
    tmp_path: Path, study: StudyConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the most workers, with the epochs that would do; nothing of runs that only evaluate."""
    submitter = make_submitter(tmp_path / "logs", study, cluster=CLUSTER, console=Console(width=400))
    submitter.dry_run()
    steps = "IoU will not be judged: 3 steps on 4 workers, at least 100 are needed: training.epochs = 100"
    assert capsys.readouterr().out.count(steps) == 1
    lines = find_iou_warnings(study.configs())
    assert lines[0] == steps
    assert "2 test samples, at least 5 are needed" in lines[1]
    longer = study.model_copy(update={"training": study.training | {"epochs": 100}})
    assert find_iou_warnings(longer.configs()) == lines[1:]
    assert not explain_unjudged(longer.configs(), 10, 5)
    evaluating = study.model_copy(update={"training": study.training | {"epochs": 0}})
    assert not find_iou_warnings(evaluating.configs())


def test_copies_of_training_images_among_the_test_images_are_named(
    tmp_path: Path, study: StudyConfig
) -> None:
    folder = tmp_path / "data"
    for kind in ("images", "masks"):
        files = sorted((folder / kind).iterdir())
        for file in files[1:]:
            file.write_bytes(files[0].read_bytes())
    manifest = check_folder(folder, "255")
    write_manifest(manifest, folder / "manifest.json")
    (line,) = [line for line in find_iou_warnings(study.configs()) if "trained on" in line]
    assert line.startswith("2 of 2 test images are trained on, too: ")


@pytest.mark.slow
def test_a_real_probe_times_steps_of_the_study(
    tmp_path: Path, study: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm.launch.estimate.PROBE_SECONDS", 1)
    data = make_images(tmp_path / "images", 8, 64, 48)
    table = {"folder": str(data), "image_height": 64, "image_width": 48, "foreground": "255"}
    speed = run_probe(study.model_copy(update={"data": table}), 1)
    assert speed.images_per_second > 0
    assert speed.startup_seconds > 0
    missing = study.model_copy(update={"data": table | {"folder": str(tmp_path / "nosuch")}})
    with pytest.raises(UserError, match=r"--probe: .*nosuch/manifest\.json does not exist"):
        run_probe(missing, 1)


@pytest.mark.slow
def test_a_dry_run_tells_the_time_that_new_probed_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm.commands.new, "QUICK_PROBE_SECONDS", 1)
    monkeypatch.setenv("PATH", "")  # without sinfo
    data = make_images(tmp_path / "images", 40)
    new = ["mine", "--data", str(data), "--into", str(tmp_path), "--workers", "1", "--foreground", "255"]
    monkeypatch.setattr(sys, "argv", ["unet-scaling new", *new])
    slurm.commands.new.main()
    told = re.search(r"at least \d+ (s|min)", capsys.readouterr().out)
    assert told

    def dry_run(*options: str) -> str:
        words = [str(tmp_path / "mine.toml"), "--logs", str(tmp_path / "logs"), "--dry-run", *options]
        monkeypatch.setattr(sys, "argv", ["unet-scaling run", *words])
        slurm.commands.run.main()
        return capsys.readouterr().out

    assert told.group() in dry_run()
    assert "duration unknown" in dry_run("--set", "training.batch_per_worker=1")
    maps = ("--set", "saliency.method=rise")
    assert "--set repeats=1 runs each point once" in dry_run(*maps)
    with pytest.raises(UserError, match="--set repeats=1 runs each point once"):
        dry_run(*maps, "--probe")
    monkeypatch.setattr("platform.node", lambda: "another")
    assert "duration unknown" in dry_run()
    (tmp_path / "mine.probe.json").write_text("{}")
    with pytest.raises(UserError, match=r"mine\.probe\.json.*--probe"):
        dry_run()
