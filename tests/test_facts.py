"""Each recorded fact, altered or unknown in the runs of one arm alone: refused, withheld or remarked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.findings.fairness_table import fairness_checks, fairness_table
from analysis.loading.load import load_study
from analysis.study import Study
from tests.records import digest, make_epochs, make_header, make_point, make_result, make_workers
from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.measurements import CpuFacts, GpuFacts
from unet_scaling.study.record import RECORD_NAME, RecordWriter
from unet_scaling.study.record_lines import End, Epoch, Header, WorkerFacts
from unet_scaling.study.validation import StrictModel

Changes = Mapping[str, Any]
REFUSED = "refused"
CPU = CpuFacts(
    process_seconds=0.1, thread_seconds={"training": 0.1}, training_runqueue_seconds=0.0, other_seconds=0.0,
    other_workers_seconds=0.0, cores=1, frequency_mhz=3000.0,
)  # fmt: skip
GPU = GpuFacts(
    utilization=0.9, memory_bytes=10**9, power_watts=600.0, energy_joules=300.0, power_limit_watts=700.0
)
GPUS = {"transport": {"backend": "nccl"}}
GPUS_OF_HOROVOD = {"transport": {"controller": "MPI", "built with": "MPI Gloo NCCL"}}


def write(
    folder: Path, framework: Framework, workers: int, repeat: int, device: str, changes: Changes
) -> None:
    """Write a run by the real writer; `changes` replace fields of its lines and of their parts."""
    point = make_point(
        framework, workers, repeat, options={"training": {"epochs": 4}} | changes.get("options", {})
    )
    every = [
        worker.model_copy(
            update={"cores": [core + changes.get("cores_from", 0) for core in worker.cores]}
            | ({"device_uuid": changes["uuid"].format(worker.worker)} if "uuid" in changes else {})
            | dict(changes.get("worker", {}))
        )
        for worker in make_workers(workers, device=device)
    ]
    place = (repeat + 1 + FRAMEWORKS.index(framework)) % 2 if framework in FRAMEWORKS else 2
    began = changes.get("started", "2025-01-31T12:{:02d}:{:02d}Z").format(
        8 * repeat + 3 * workers, 20 * place
    )
    started = {"started_utc": began, "workers": every}
    gpus = GPUS if framework == "pytorch_native" else GPUS_OF_HOROVOD
    header = make_header(
        point, **started | (gpus if device != "cpu" else {}) | dict(changes.get("header", {}))
    )
    measured: dict[str, list[CpuFacts] | list[GpuFacts]] = {
        "cpu": [CPU.model_copy(update=changes.get("cpu", {}))] * workers
    }
    if device != "cpu":
        measured["gpu"] = [GPU.model_copy(update=changes.get("gpu", {}))] * workers
    speed = 30.0 * workers * changes.get("speed", 1.0) * (1 + 0.001 * repeat)
    epochs = [
        epoch.model_copy(
            update=measured
            | (dict(changes.get("epoch", {})) if epoch.epoch else {})
            | (dict(changes.get("second", {})) if epoch.epoch == 1 else {})
        )
        for epoch in make_epochs(point, speed, 48)
    ]
    result = make_result(header, epochs, changes.get("iou", 0.8)).model_copy(update=changes.get("result", {}))
    run = folder / point.run
    run.mkdir(parents=True)
    (run / "config.json").write_text(point.model_dump_json())
    writer = RecordWriter(run / RECORD_NAME)
    for line in (header, *epochs, result, End(status="complete")):
        writer.write(line)
    writer.close()


def write_arms(
    folder: Path, changes: Changes, *, device: str = "cpu", repeats: int = 3, arm: Framework = "horovod"
) -> Path:
    """Both frameworks, and the changed one, on 1 and 2 workers; odd and even repeats in another order."""
    for framework in dict.fromkeys((*FRAMEWORKS, arm)):
        for workers in (1, 2):
            for repeat in range(1, repeats + 1):
                write(folder, framework, workers, repeat, device, changes if framework == arm else {})
    return folder


def table_of(study: Study) -> pd.DataFrame:
    return fairness_table(fairness_checks(study)).set_index("check")


CLOCK = "same clock of the cores"
ORDER = "order interleaved in time"
WORK = "same work per epoch"
SLOW_GPUS = {"transport": {"controller": "MPI", "built with": "MPI Gloo"}}
# Field, changes in Horovod's runs, where they show, and what is named: both values.
ON_CPUS: list[tuple[str, Changes, str, str, str]] = [
    ("Header.manifest_sha256", {"header": {"manifest_sha256": "0" * 64}},
     REFUSED, "000", digest("manifest")[:9]),
    ("Header.train_images", {"header": {"train_images": 999_999}}, REFUSED, "999,999", "1,000,000"),
    ("Header.test_images", {"header": {"test_images": 11}}, REFUSED, "11", "12"),
    ("Header.initial_weights_sha256", {"header": {"initial_weights_sha256": "0" * 64}},
     REFUSED, "000", "but"),
    ("Header.gradient_bytes", {"header": {"gradient_bytes": 974_290}}, REFUSED, "974290", "1948580"),
    ("Header.commit", {"header": {"commit": "another"}}, REFUSED, "another", "0123456"),
    ("Header.dirty", {"header": {"dirty": True}}, REFUSED, "True", "False"),
    ("Header.versions", {"header": {"versions": {"python": "3.11.2", "torch": "2.1"}}},
     REFUSED, "2.1", "2.13.0"),
    ("Header.dilation", {"header": {"dilation": 4.0}}, REFUSED, "dilated", ""),
    ("Header.link_rate", {"header": {"link_rate": "1gbit"}}, REFUSED, "1gbit", "not limited"),
    ("Header.config", {"options": {"training": {"epochs": 4, "learning_rate": 1.0}}}, "unmatched", "", ""),
    ("Header.job", {"header": {"job": {"SLURM_JOB_PARTITION": "old"}}}, "same nodes", "old", "no Slurm"),
    ("Header.started_utc", {"started": "2025-02-01T12:{:02d}:{:02d}Z"}, ORDER, "", ""),
    ("WorkerFacts.host", {"worker": {"host": "b"}}, "same nodes", "b in Horovod", "node1 in native DDP"),
    ("WorkerFacts.cores", {"cores_from": 8}, "same nodes", "8 in Horovod", "0 in native DDP"),
    ("WorkerFacts.device", {"worker": {"device": "MIG 1g"}}, REFUSED, "MIG 1g", "cpu"),
    ("WorkerFacts.threads", {"worker": {"threads": 2}}, REFUSED, "2", "1"),
    ("WorkerFacts.allocator", {"worker": {"allocator": {"LD_PRELOAD": "x.so"}}}, REFUSED, "x.so", "not set"),
    ("WorkerFacts.environment", {"worker": {"environment": {"NCCL_ALGO": "T"}}}, REFUSED, "T", "not set"),
    ("Epoch.images", {"epoch": {"images": 47}}, WORK, "47 in horovod", "48 in pytorch_native"),
    ("Epoch.steps", {"epoch": {"steps": 5}}, REFUSED, "5 steps", "48 images"),
    ("Epoch.warmup", {"second": {"warmup": True}}, WORK, "1 in horovod", "0 in pytorch_native"),
    ("Epoch.loss", {"epoch": {"loss": 0.36}}, "same training", "0.36 in horovod", "0.35 in pytorch_native"),
    ("Epoch.learning_rate", {"epoch": {"learning_rate": 0.004}}, "same training", "0.004 in", "0.001 in"),
    ("Epoch.cpu", {"cpu": {"frequency_mhz": 1500.0}}, CLOCK, "1,500 MHz in Horovod", "3,000 MHz in native"),
    ("Result.weights_sha256", {"result": {"weights_sha256": "0" * 64}},
     "same training", "000", "pytorch_native"),
    ("Result.iou", {"iou": 0.79}, "same training", "790000", "800000"),
    # Unknown in Horovod's runs alone.
    ("Header.gradient_bytes", {"header": {"gradient_bytes": None}},
     "same training", "not recorded in Horovod", "1948580"),
    ("Header.versions", {"header": {"versions": {"python": "3.11.2"}}},
     "same software", "not recorded", "2.13.0"),
    ("Header.started_utc", {"started": "later"}, ORDER, "", ""),
    ("WorkerFacts.allocator", {"worker": {"allocator": None}},
     "same way of computing", "not recorded in", "recorded in"),
    ("WorkerFacts.environment", {"worker": {"environment": None}},
     "same environment", "not recorded in", "recorded in"),
    ("Epoch.cpu", {"epoch": {"cpu": None}}, CLOCK, "not recorded in Horovod", "3,000 MHz in native DDP"),
    ("Epoch.cpu", {"epoch": {"cpu": None}}, "machine quiet", "", ""),
]  # fmt: skip
ON_GPUS: list[tuple[str, Changes, str, str, str]] = [
    ("Header.transport", {"header": SLOW_GPUS},
     "same way of computing", "MPI in Horovod", "NCCL in native DDP"),
    ("WorkerFacts.device_uuid", {"uuid": "MIG-{}"}, "same nodes", "MIG-0 in Horovod", "GPU-0 in native DDP"),
    ("Epoch.gpu", {"epoch": {"gpu": None}}, CLOCK, "not recorded in Horovod", "700 W in native DDP"),
    ("GpuFacts.power_limit_watts", {"gpu": {"power_limit_watts": 350.0}}, CLOCK, "350 W in Horovod", "700 W"),
    ("GpuFacts.power_watts", {"gpu": {"power_watts": 350.0}, "speed": 0.9},
     CLOCK, "in Horovod", "in native DDP"),
    ("Epoch.loss", {"epoch": {"loss": 0.36}}, "same training", "0.36 in horovod", "0.35 in pytorch_native"),
]  # fmt: skip
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


@pytest.mark.parametrize("device", ["cpu", "H200"])
def test_an_honest_study_may_claim(tmp_path: Path, device: str) -> None:
    study = load_study(write_arms(tmp_path, {}, device=device))
    assert study.left_out.empty
    table = table_of(study)
    assert not table["withholds"].any()
    assert set(table["mark"]) == {"yes", "not known"}
    # Of one number in all runs; and of records without their study.
    assert list(table.index[table["mark"] == "not known"]) == [CLOCK, "asked for and read"]


@pytest.mark.parametrize(
    ("device", "field", "changes", "shown", "here", "there"),
    [("cpu", *row) for row in ON_CPUS] + [("H200", *row) for row in ON_GPUS],
)
def test_a_fact_of_one_arm_alone_withholds(
    tmp_path: Path, device: str, field: str, changes: Changes, shown: str, here: str, there: str
) -> None:
    study = load_study(write_arms(tmp_path, changes, device=device))
    if shown == "unmatched":
        assert study.runs["options"].nunique() == 2, field
        return
    if shown == REFUSED:
        assert len(study.runs) == len(study.left_out) == 6, field
        told = " ".join(study.left_out["reason"])
    else:
        table = table_of(study)
        told = str(table.loc[shown, "fact"])
        assert table.loc[shown, "withholds"], f"{field}: {told}"
    assert here in told
    assert there in told


def test_losses_may_differ_by_rounding_where_arithmetic_may(tmp_path: Path) -> None:
    study = load_study(
        write_arms(tmp_path, {"epoch": {"loss": 0.35 * (1 + 1e-5)}, "iou": 0.79}, device="H200")
    )
    study.epochs.loc[study.epochs["epoch"] > 1, "loss"] = 0.1
    assert table_of(study).loc["same training", "mark"] == "yes"


def test_a_wrapper_that_trains_alone_loses_its_claim(tmp_path: Path) -> None:
    alone = {"result": {"weights_sha256": "0" * 64}, "speed": 1.3}
    write_arms(tmp_path / "study", alone, repeats=5, arm="accelerate")
    assert main([str(tmp_path / "study"), "--output", str(tmp_path / "report")]) == 0
    wrappers = pd.read_csv(tmp_path / "report" / "frameworks.csv").set_index("framework")
    outcomes = wrappers[wrappers["workers"] == 2]["outcome"]
    assert outcomes["accelerate"] == "withheld"
    assert "same training" in wrappers[wrappers["workers"] == 2]["doubts"]["accelerate"]
    assert outcomes["horovod"] == "no significant difference"


def test_a_difference_on_one_worker_stands_beside_the_claim(tmp_path: Path) -> None:
    write_arms(tmp_path / "study", {"speed": 0.9}, repeats=5)
    assert main([str(tmp_path / "study"), "--output", str(tmp_path / "report")]) == 0
    fairness = pd.read_csv(tmp_path / "report" / "fairness.csv").set_index("check")
    assert fairness.loc["equal on 1 worker", "mark"] == "no"
    assert not fairness.loc["equal on 1 worker", "withholds"]


def test_one_arm_always_first_is_remarked(tmp_path: Path) -> None:
    study = load_study(write_arms(tmp_path, {"started": "2025-01-31T12:{:02d}:50Z"}, repeats=5))
    row = table_of(study).loc["either framework first"]
    assert (row["mark"], row["withholds"]) == ("no", False)
    assert "native DDP" in row["fact"]
