"""Each recorded fact, altered or unknown in the runs of one arm alone: refused, withheld or remarked."""

import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from analysis.checks import fairness_checks, fairness_table
from analysis.load import load_study
from analysis.machines import check_one_worker
from analysis.study import Study
from tests.honest import Honest, Lines, write_honest
from tests.records import digest
from tests.reports import reported
from tests.tampering import (
    Change,
    Runs,
    config,
    epochs,
    header,
    in_epochs,
    in_turn,
    processors,
    results,
    scored,
    slower,
    started,
    workers,
)
from unet_scaling.study.record_lines import Epoch, Evaluation, GpuFacts, Header, WorkerFacts
from unet_scaling.study.validation import StrictModel

REFUSED = "refused"
UNMATCHED = "unmatched"
CLOCK = "same clock of the cores"
ORDER = "order interleaved in time"
WORK = "same work per epoch"
TRAINING = "same training"
NODES = "same nodes"
OTHER = "0" * 64


def of_fewer_images(_: Lines, result: Evaluation) -> Evaluation:
    return result.model_copy(update={"images": 11})


def other_weights(_: Lines, result: Evaluation) -> Evaluation:
    return result.model_copy(update={"weights_sha256": digest(f"other weights after {result.epochs}")})


def half_the_limit(epoch: Epoch) -> list[GpuFacts]:
    return [facts.model_copy(update={"power_limit_watts": 350.0}) for facts in epoch.gpu or ()]


def watts(share: float) -> Change:
    def of(epoch: Epoch) -> dict[str, object]:
        new = [
            facts.model_copy(
                update={
                    name: share * value
                    for name, value in facts
                    if value is not None and name.split("_")[0] in ("power", "energy")
                }
            )
            for facts in epoch.gpu or ()
        ]
        return {"gpu": new}

    return epochs(of)


# Field, change in Horovod's runs, where it shows, and what is named.
ON_CPUS: list[tuple[str, Change, str, str]] = [
    ("Header.manifest_sha256", header(manifest_sha256=OTHER), REFUSED, "000"),
    ("Header.train_images", header(train_images=999_999), REFUSED, "999,999"),
    ("Header.test_images", in_turn(header(test_images=11), results(of_fewer_images)), REFUSED, "11"),
    ("Header.initial_weights_sha256", header(initial_weights_sha256=OTHER), REFUSED, "000"),
    ("Header.gradient_bytes", header(gradient_bytes=974_290), REFUSED, "974290"),
    ("Header.commit", header(commit="another"), REFUSED, "another"),
    ("Header.dirty", header(dirty=True), REFUSED, "True"),
    ("Header.versions", header(versions=lambda to: to.versions | {"torch": "2.1"}), REFUSED, "2.1"),
    ("Header.dilation", header(dilation=4.0), REFUSED, "dilated"),
    ("Header.link_rate", header(link_rate="1gbit"), REFUSED, "1gbit"),
    ("Header.config", config(training={"learning_rate": 1.0}), UNMATCHED, ""),
    ("Header.job", header(job={"SLURM_JOB_PARTITION": "old"}), NODES, "old"),
    ("Header.job", header(job={"SLURM_CLUSTER_NAME": "slow"}), NODES, "slow"),
    ("Header.started_utc", started(lambda _, at: at + timedelta(days=1)), ORDER, ""),
    ("WorkerFacts.host", workers(host="b"), NODES, "b in Horovod"),
    ("WorkerFacts.cores", workers(cores=lambda worker: [worker.worker + 8]), NODES, "8"),
    ("WorkerFacts.device", workers(device="MIG 1g"), REFUSED, "MIG 1g"),
    ("WorkerFacts.threads", workers(threads=2), REFUSED, "2"),
    ("WorkerFacts.allocator", workers(allocator={"LD_PRELOAD": "x.so"}), REFUSED, "x.so"),
    ("WorkerFacts.environment", workers(environment={"NCCL_ALGO": "Tree"}), REFUSED, "Tree"),
    ("Epoch.images", in_epochs(images=lambda epoch: epoch.images - 1), WORK, "in horovod"),
    ("Epoch.steps", in_epochs(steps=5), REFUSED, "5 steps"),
    ("Epoch.warmup", in_epochs(warmup=lambda epoch: epoch.epoch <= 1), WORK, "in horovod"),
    ("Epoch.loss", in_epochs(loss=0.36), TRAINING, "0.36 in horovod"),
    ("Epoch.learning_rate", in_epochs(learning_rate=0.004), TRAINING, "0.004 in"),
    ("Epoch.cpu", processors(frequency_mhz=1500.0), CLOCK, "1,500 MHz in Horovod"),
    ("Result.weights_sha256", results(other_weights), TRAINING, ""),
    ("Result.iou", scored(0.5), TRAINING, ""),
    # Unknown in Horovod's runs alone.
    ("Header.gradient_bytes", header(gradient_bytes=None), TRAINING, "not recorded in Horovod"),
    ("Header.versions", header(versions={"python": "3.11.7"}), "same software", "not recorded"),
    ("Header.started_utc", header(started_utc="later"), ORDER, ""),
    ("WorkerFacts.allocator", workers(allocator=None), "same way of computing", "not recorded in"),
    ("WorkerFacts.environment", workers(environment=None), "same environment", "not recorded in"),
    ("Epoch.cpu", in_epochs(cpu=None), CLOCK, "not recorded in Horovod"),
    ("Epoch.cpu", in_epochs(cpu=None), "machine quiet", ""),
]
SLOW_GPUS = {"controller": "MPI", "built with": "MPI Gloo"}
ON_GPUS: list[tuple[str, Change, str, str]] = [
    ("Header.transport", header(transport=SLOW_GPUS), "same way of computing", "MPI in Horovod"),
    (
        "WorkerFacts.device_uuid",
        workers(device_uuid=lambda to: f"MIG-{to.worker}"),
        NODES,
        "MIG-0 in Horovod",
    ),
    ("Epoch.gpu", in_epochs(gpu=None), CLOCK, "not recorded in Horovod"),
    ("GpuFacts.power_limit_watts", in_epochs(gpu=half_the_limit), CLOCK, "350 W in Horovod"),
    ("GpuFacts.power_watts", in_turn(watts(0.5), slower(1.1)), CLOCK, "in Horovod"),
    ("Epoch.loss", in_epochs(loss=0.36), TRAINING, "0.36 in horovod"),
]
# What an honest study may have otherwise in one arm, and why.
MAY_DIFFER: Mapping[str, str] = {
    "Header.kind": "names the line",
    "Header.format": "older code is told by its commit",
    "Header.attempt": "attempts may be many; what they tell is compared (test_refusals.py)",
    "Header.config_sha256": "follows from config",
    "Header.compute": "refused as emulated beside measured (test_emulation.py)",
    "Header.resumed": "as attempt",
    "Header.earlier": "as attempt",
    "Header.workers": "WorkerFacts",
    "WorkerFacts.worker": "its place in the list",
    "WorkerFacts.process": "given by the system",
    "Epoch.kind": "names the line",
    "Epoch.epoch": "its place in the record",
    "Epoch.seconds": "what is measured",
    "Epoch.worker_seconds": "what is measured",
    "Epoch.budget": "what is measured",
    "Epoch.no_budget": "says why budget is missing, which is an option",
    "Epoch.gradient_norms": "follow from weights and batches, which are compared",
    "GpuFacts.utilization": "follows from what is measured",
    "GpuFacts.memory_bytes": "of buffers that each framework has",
    "GpuFacts.energy_joules": "follows from power",
}


def test_every_recorded_field_is_compared_or_may_differ() -> None:
    models: tuple[type[StrictModel], ...] = (Header, WorkerFacts, Epoch, GpuFacts)
    recorded = {f"{model.__name__}.{field}" for model in models for field in model.model_fields}
    compared = {field for field, *_ in (*ON_CPUS, *ON_GPUS)}
    assert recorded - compared == MAY_DIFFER.keys()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Honest studies on CPUs and GPUs, which no test may change."""
    folder = tmp_path_factory.mktemp("honest")
    return {
        name: write_honest(folder / name, Honest(workers=(1, 2), repeats=3, is_gpu=name == "GPUs"))
        for name in ("CPUs", "GPUs")
    }


def table_of(study: Study) -> pd.DataFrame:
    return fairness_table(fairness_checks(study)).set_index("check")


@pytest.mark.parametrize(
    ("kind", "field", "change", "shown", "named"),
    [("CPUs", *row) for row in ON_CPUS] + [("GPUs", *row) for row in ON_GPUS],
)
def test_a_fact_of_one_arm_alone_withholds(
    kind: str,
    field: str,
    change: Change,
    shown: str,
    named: str,
    tmp_path: Path,
    honest: dict[str, Path],
) -> None:
    folder = shutil.copytree(honest[kind], tmp_path / "study")
    Runs(folder).of("horovod").change(change)
    study = load_study(folder)
    if shown == UNMATCHED:
        assert study.runs["options"].nunique() == 2, field
        return
    if shown == REFUSED:
        assert len(study.runs) == len(study.left_out) == 6, field
        told = " ".join(study.left_out["reason"])
    else:
        table = table_of(study)
        told = str(table.loc[shown, "fact"])
        assert table.loc[shown, "withholds"], f"{field}: {told}"
    assert named in told


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (started(lambda _, at: at - timedelta(days=19)), "19 days"), (workers(host="old"), "old"),
        (processors(frequency_mhz=1500.0), "1,500 MHz"),
    ],
)  # fmt: skip
def test_a_baseline_of_another_day_host_or_clock_is_doubted(
    change: Change, named: str, tmp_path: Path, honest: dict[str, Path]
) -> None:
    folder = shutil.copytree(honest["CPUs"], tmp_path / "study")
    Runs(folder).of(workers=[1]).change(change)
    row = table_of(load_study(folder)).loc["same baseline"]
    assert (row["mark"], named in row["fact"]) == ("no", True), row["fact"]


@pytest.mark.parametrize(("low", "mark"), [(1.021, "no"), (1.009, "yes")])
def test_a_difference_on_one_worker_is_shown_by_its_whole_interval(low: float, mark: str) -> None:
    row = {"workers": 1, "framework": "horovod", "ratio": 1.042, "ratio_low": low, "ratio_high": 1.077}
    assert check_one_worker(pd.DataFrame([row])).mark == mark


def test_a_difference_on_one_worker_stands_beside_the_claim(tmp_path: Path) -> None:
    write_honest(tmp_path / "study", Honest(workers=(1, 2)))
    Runs(tmp_path / "study").of("horovod").change(slower(1.1))
    fairness = pd.read_csv(reported(tmp_path / "study") / "fairness.csv").set_index("check")
    assert fairness.loc["equal on 1 worker", "mark"] == "no"
    assert not fairness.loc["equal on 1 worker", "withholds"]
