"""One thing done to the records of an honest study, and what the report says: left out, withheld, remarked.

Each recorded fact, altered or unknown in the runs of one arm alone; records that cannot be; and what a study
asked for against what is read.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.assembly.assemble import make_report
from analysis.judge.alike import OF_CLOCK, OF_OTHERS, differing_points
from analysis.judge.answer import COST_TITLE
from analysis.judge.baseline import check_one_worker
from analysis.judge.checks import fairness_checks, fairness_table
from analysis.judge.gpus import BY_COUNTER, BY_POWER
from analysis.numbers.check import PointPair
from analysis.numbers.contrast import WITHHELD
from analysis.read.impossible import impossible_values
from analysis.read.load import load_study
from analysis.report.exports import origins
from analysis.study import Array, Study
from analysis.text import Row
from slurm.launch.study_folder import StudyFolder
from tests.evidence import COMMITTED, evidence
from tests.honest import Honest, Lines, write_honest
from tests.records import FLOAT32, digest
from tests.reports import report_of, reported
from tests.tampering import (
    Change,
    Runs,
    config,
    epochs,
    gpus,
    header,
    in_epochs,
    in_turn,
    processors,
    results,
    scored,
    slower,
    started,
    with_epochs,
    workers,
)
from unet_scaling.base.validation import StrictModel
from unet_scaling.format.record import RECORD_NAME, read_record, set_launch_aside
from unet_scaling.format.record_lines import (
    STARTUP_COLUMNS,
    CpuFacts,
    End,
    Epoch,
    Evaluation,
    GpuFacts,
    Header,
    Probe,
    Startup,
    WorkerFacts,
)
from unet_scaling.study.config import Framework
from unet_scaling.study.options import ImageScales
from unet_scaling.study.repeats import EARLY_SIGNIFICANCE, REPEATS_NAME, note_look
from unet_scaling.study.study_file import STUDY_NAME, recorded_study

Do = Callable[[Path], object]
# Studies that tests copy and change.
TRUTHS: Mapping[str, Honest] = {
    "CPUs": Honest(workers=(1, 2), repeats=3),
    "GPUs": Honest(workers=(1, 2), repeats=3, is_gpu=True),
    "with files": Honest(workers=(2,), repeats=3, has_files=True),
    "6 repeats": Honest(workers=(2,), repeats=6, advantage=0.3),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("honest")
    return {name: write_honest(folder / name, truth) for name, truth in TRUTHS.items()}


REFUSED = "refused"
UNMATCHED = "unmatched"
CLOCK = "same clock of the cores"
GPUS = "GPUs alike"
ORDER = "order interleaved in time"
WORK = "same work per epoch"
TRAINING = "same training"
NODES = "same nodes"
OTHER = "0" * 64


def of_fewer_images(_: Lines, result: Evaluation) -> Evaluation:
    return result.model_copy(update={"images": 11})


def other_weights(_: Lines, result: Evaluation) -> Evaluation:
    return result.model_copy(update={"weights_sha256": digest(f"other weights after {result.epochs}")})


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
    ("Header.dirty", header(dirty=True), "same software", "True in Horovod"),
    ("Header.versions", header(versions=lambda to: to.versions | {"torch": "2.1"}), REFUSED, "2.1"),
    ("Header.float32", header(float32=dict.fromkeys(FLOAT32, "tf32")), REFUSED, "tf32"),
    ("Header.float32", header(float32=FLOAT32 | {"cudnn.conv": "tf32"}), REFUSED, "cudnn.conv tf32"),
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
    ("Epoch.steps", in_epochs(steps=5), WORK, "in horovod"),
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
    ("Epoch.gpu", in_epochs(gpu=None), GPUS, "not recorded in Horovod"),
    ("GpuFacts.power_limit_watts", gpus(power_limit_watts=350.0), GPUS, "350 W in Horovod"),
    ("GpuFacts.energy_joules", in_turn(watts(0.5), slower(1.1)), GPUS, "J in Horovod"),
    ("GpuFacts.sm_clock_mhz", in_turn(gpus(sm_clock_mhz=1500.0), slower(1.1)), GPUS, "1,500 MHz in Horovod"),
    ("Epoch.loss", in_epochs(loss=0.36), TRAINING, "0.36 in horovod"),
]
# Field, change in Horovod's runs, the mark of the row on GPUs, and what is named.
BESIDE_CLAIMS: list[tuple[str, Change, str, str]] = [
    ("GpuFacts.throttle_reasons", gpus(throttle_reasons=["hw_slowdown"]), "no", "100 % in Horovod"),
    ("GpuFacts.other_memory_bytes", gpus(other_memory_bytes=2**34), "no", "100 % in Horovod"),
    ("GpuFacts.utilization", gpus(utilization=0.7), "yes", "70 % in Horovod"),
    ("GpuFacts.power_watts", gpus(power_watts=300.0), "yes", "300 W in Horovod"),
    ("GpuFacts.memory_bytes", gpus(memory_bytes=2**34), "yes", "memory in use: 6.00 GiB"),
    ("GpuFacts.peak_allocated_bytes", gpus(peak_allocated_bytes=2**34), "yes", "16.0 GiB in Horovod"),
]


def all_of(line: str, **fields: Callable[[Any], object]) -> Change:
    """Return a change of these fields of the start, or of the probe, where a record has one."""

    def change(lines: Lines) -> Lines:
        found = getattr(lines, line)
        new = found and found.model_copy(
            update={name: of(getattr(found, name)) for name, of in fields.items()}
        )
        return replace(lines, **{line: new})

    return change


def later(seconds: Sequence[float]) -> list[float]:
    return [5.0 + each for each in seconds]


def threefold(seconds: Sequence[float]) -> list[float]:
    return [3.0 * each for each in seconds]


def evaluated_slowly(_: Lines, result: Evaluation) -> Evaluation:
    return result.model_copy(update={"seconds": 9.0})


def a_little_less(facts: CpuFacts) -> float:
    return 0.98 * (facts.frequency_mhz or 0.0)


def more_of_process(facts: CpuFacts) -> float:
    return 1.2 * facts.process_seconds


def helped(facts: CpuFacts) -> dict[str, float]:
    return facts.thread_seconds | {"other": 0.2 * facts.process_seconds}


OTHERS_ALIKE = "other figures alike"
# Field, change in Horovod's runs, the figure that is named, and the mark of its row.
FIGURES_CHANGED: list[tuple[str, Change, str, str]] = [
    (f"Startup.{name}", all_of("startup", **{name: later}), name, "yes") for name in STARTUP_COLUMNS
] + [
    ("Probe.median_seconds", all_of("probe", median_seconds=threefold), "messages_per_second", "yes"),
    ("Probe.median_seconds", all_of("probe", median_seconds=threefold), "bytes_per_second", "yes"),
    ("Result.seconds", results(evaluated_slowly), "evaluation_seconds", "yes"),
    ("CpuFacts.peak_memory_bytes", processors(peak_memory_bytes=2**31), "peak_memory_bytes", "yes"),
    ("CpuFacts.frequency_mhz", processors(frequency_mhz=a_little_less), "frequency_mhz", "yes"),
    ("CpuFacts.process_seconds", processors(process_seconds=more_of_process), "helpers", "yes"),
    ("CpuFacts.thread_seconds", in_turn(
        processors(process_seconds=more_of_process), processors(thread_seconds=helped)
    ), "helpers", "yes"),
    ("CpuFacts.training_runqueue_seconds", in_turn(
        slower(1.1, processor=False),
        processors(training_runqueue_seconds=lambda to: 0.08 * to.process_seconds),
    ), "waiting", "yes"),
    ("CpuFacts.other_seconds", in_turn(
        slower(1.1), processors(other_seconds=lambda to: 0.045 * to.process_seconds)
    ), "busy_share", "no"),
    ("Epoch.seconds", slower(1.05, processor=False), "uncounted_share", "no"),
]  # fmt: skip
# What an honest study may have otherwise in one arm, and why.
MAY_DIFFER: Mapping[str, str] = {
    "Header.kind": "names the line",
    "Header.format": "one format is read",
    "Header.attempt": "attempts may be many; what they tell is compared (test_refusals.py)",
    "Header.config_sha256": "follows from config",
    "Header.compute": "refused as emulated beside measured (test_emulation.py)",
    "Header.resumed": "as attempt",
    "Header.scales": "follow from the manifest and the size, which are compared",
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
    "CpuFacts.other_workers_seconds": "a part of other_seconds",
    "CpuFacts.cores": "WorkerFacts.cores",
    "CpuFacts.quota": "of a slowed cluster, whose settings are in the header",
    "Startup.kind": "names the line",
    "Probe.kind": "names the line",
    "Probe.bytes": "the sizes of messages, until one is slow",
    "Probe.repeats": "as bytes",
    "Probe.minimum_seconds": "below the medians",
}


def test_every_recorded_field_is_compared_or_may_differ() -> None:
    models: tuple[type[StrictModel], ...] = (
        Header, WorkerFacts, Epoch, GpuFacts, CpuFacts, Startup, Probe,
    )  # fmt: skip
    recorded = {f"{model.__name__}.{field}" for model in models for field in model.model_fields}
    compared = {field for field, *_ in (*ON_CPUS, *ON_GPUS, *BESIDE_CLAIMS, *FIGURES_CHANGED)}
    assert recorded - compared == MAY_DIFFER.keys() - compared
    named = {column for _, _, column, _ in FIGURES_CHANGED}
    assert named == {*OF_OTHERS, *OF_CLOCK}


def test_a_report_says_at_which_scale_its_score_holds(tmp_path: Path, honest: dict[str, Path]) -> None:
    """Of early records, which do not know it, nothing; the honest studies are of such."""
    assert load_study(honest["CPUs"]).iou_scope == "whole test set"
    folder = shutil.copytree(honest["CPUs"], tmp_path / "study")
    scales = ImageScales(median_height=512, median_width=640, lowest=0.2, median=0.2, highest=0.25)
    Runs(folder).change(header(scales=scales))
    words = "640 x 512 brought to 128 x 128, scale 0.2 (0.2 to 0.25)"
    assert load_study(folder).iou_scope == f"whole test set, {words}"
    assert origins(load_study(folder))["scale of the images"] == (words,)


def table_of(study: Study) -> pd.DataFrame:
    return fairness_table(fairness_checks(study)).set_index("check")


@pytest.mark.parametrize(
    ("kind", "field", "change", "shown", "named"),
    [("CPUs", *row) for row in ON_CPUS] + [("GPUs", *row) for row in ON_GPUS],
)
def test_a_fact_of_one_arm_alone_withholds(
    kind: str, field: str, change: Change, shown: str, named: str, tmp_path: Path, honest: dict[str, Path]
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


@pytest.mark.parametrize(("field", "change", "mark", "named"), BESIDE_CLAIMS)
def test_what_one_arms_gpus_met_is_named_unless_it_is_chance(
    field: str, change: Change, mark: str, named: str, tmp_path: Path, honest: dict[str, Path]
) -> None:
    """Of both arms, or of one run of three, it is none of either."""
    cases: list[tuple[Framework | None, Sequence[int], bool]] = [
        ("horovod", (1, 2, 3), True), ("horovod", (2,), False), (None, (1, 2, 3), False),
    ]  # fmt: skip
    for number, (framework, repeats, is_named) in enumerate(cases):
        folder = shutil.copytree(honest["GPUs"], tmp_path / str(number))
        Runs(folder).of(framework, repeats=repeats).change(change)
        row = table_of(load_study(folder)).loc[GPUS]
        assert (named in row["fact"]) == is_named, row["fact"]
        assert (row["mark"], row["withholds"]) == (mark if is_named else "yes", False)


@pytest.mark.parametrize(("field", "change", "column", "mark"), FIGURES_CHANGED)
def test_every_other_figure_is_named_once_where_one_arm_has_another(
    field: str, change: Change, column: str, mark: str, tmp_path: Path, honest: dict[str, Path]
) -> None:
    """In every run of the arm; of both arms it is none of either, nor of one run of three."""
    row_of = CLOCK if column in OF_CLOCK else OTHERS_ALIKE
    name = (OF_OTHERS | OF_CLOCK)[column].name
    cases: list[tuple[Framework | None, Sequence[int], bool]] = [
        ("horovod", (1, 2, 3), True), ("horovod", (2,), False), (None, (1, 2, 3), False),
    ]  # fmt: skip
    for number, (framework, repeats, is_named) in enumerate(cases):
        folder = shutil.copytree(honest["CPUs"], tmp_path / str(number))
        Runs(folder).of(framework, repeats=repeats).change(change)
        row = table_of(load_study(folder)).loc[row_of]
        assert len(str(row["fact"]).split(f"{name}:")) == 1 + is_named, (field, row["fact"])
        assert (row["mark"], row["withholds"]) == (mark if is_named else "yes", False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (all_of("startup", imports_seconds=later), "without its start (7.7 s) and evaluations (1.6 s)"),
        (slower(1.0), "without its start (2.7 s) and evaluations (1.6 s)"),
        (in_turn(slower(5), results(evaluated_slowly)), "without its start (2.7 s) and evaluations (18 s)"),
        (slower(9), ""),
    ],
)  # fmt: skip
def test_time_and_cost_say_what_they_leave_out_where_it_is_long(
    change: Change, words: str, tmp_path: Path, honest: dict[str, Path]
) -> None:
    folder = shutil.copytree(honest["CPUs"], tmp_path / "study")
    Runs(folder).change(change)
    (answer,) = make_report(load_study(folder)).answers
    (detail,) = [tile.detail for tile in answer.tiles if tile.title == COST_TITLE]
    assert ("without its" in detail) == bool(words)
    assert words in detail


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_clocks_of_nodes_that_differ_by_chance_are_no_reason_to_refuse(nodes: int) -> None:
    """Up to 3 %, in 300 studies of 3 repeats; a node of its own in one arm that is 6 % slower is."""
    random = np.random.default_rng(nodes)
    refused = found = 0
    for _ in range(100):
        clocks = 2900 * (1 - 0.03 * random.random(nodes))
        drawn = [
            [clocks[random.integers(nodes, size=workers)].mean() for _ in range(6)] for workers in (1, 2, 4)
        ]
        refused += is_refused(np.array(drawn))
        found += is_refused(np.array(drawn) * ([1.0] * 3 + [0.9] * 3))
    assert (refused, found) == (0, 100)


def is_refused(clocks: Array) -> bool:
    """Return whether the clocks of 3 launches of each framework (points, launches) withhold a claim."""
    figure = OF_CLOCK["frequency_mhz"]
    rows: list[list[Row]] = [
        [{"run": 6 * point + run, "images_per_second": 1.0} for run in range(6)] for point in range(3)
    ]
    sides = {PointPair("", "", "", point): (row[:3], row[3:]) for point, row in enumerate(rows)}
    values = pd.Series(clocks.ravel())
    return any(meaning == "setting" for _, meaning, _ in differing_points(sides, figure, values))


def test_a_faster_framework_at_its_power_limit_is_not_held_back(
    tmp_path: Path, honest: dict[str, Path]
) -> None:
    folder = shutil.copytree(honest["GPUs"], tmp_path / "study")
    Runs(folder).of("horovod").change(in_turn(gpus(throttle_reasons=["sw_power_cap"]), slower(0.8)))
    row = table_of(load_study(folder)).loc[GPUS]
    assert (row["mark"], row["withholds"], "sw_power_cap" in row["fact"]) == ("yes", False, True)


@pytest.mark.parametrize("repeats", [3, 5])
def test_gpus_of_other_nodes_in_every_launch_are_no_reason_to_refuse(repeats: int, tmp_path: Path) -> None:
    truth = Honest(workers=(1, 2, 4, 8), repeats=repeats, is_gpu=True, nodes=0.04)
    marks = []
    for seed in range(4):
        study = write_honest(tmp_path / str(seed), replace(truth, seed=seed))
        marks.append(table_of(load_study(study)).loc[GPUS, "mark"])
    assert marks == ["yes"] * 4


@pytest.mark.parametrize("has_counter", [True, False])
def test_one_number_is_called_the_energy_of_an_image(
    has_counter: bool, tmp_path: Path, honest: dict[str, Path]
) -> None:
    """By the devices' counters, whatever the power was at one moment; one run without leaves none with."""
    folder = shutil.copytree(honest["GPUs"], tmp_path / "study")
    Runs(folder).of("horovod").change(gpus(power_watts=1000.0))
    if not has_counter:
        Runs(folder).of("pytorch_native", workers=[1], repeats=[1]).change(gpus(energy_joules=None))
    table = pd.read_csv(reported(folder) / "gpu.csv").set_index(["framework", "workers"])
    joules = table["joules_per_image"].to_dict()
    assert joules["horovod", 1] / joules["pytorch_native", 1] == pytest.approx(
        1 if has_counter else 1000 / 640, rel=0.05
    )
    assert set(table["energy_from"]) == {BY_COUNTER if has_counter else BY_POWER}


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
    content = json.loads((reported(tmp_path / "study") / "summary.json").read_text())
    fairness = pd.DataFrame(content["checks"]).set_index("check")
    assert fairness.loc["equal on 1 worker", "mark"] == "no"
    assert not fairness.loc["equal on 1 worker", "withholds"]


RUN = "horovod-w02-r2"
OTHER_RUN = "pytorch_native-w02-r1"


def on_run(change: Change) -> Do:
    """Write the record of RUN again, changed."""
    return lambda study: Runs(study).of("horovod", workers=[2], repeats=[2]).change(change)


def copied(of_epochs: Callable[[Lines, Lines], list[Epoch]]) -> Do:
    """Give RUN epochs that are made of its own and of those of another launch."""

    def do(study: Path) -> None:
        ((_, other),) = Runs(study).of("pytorch_native", workers=[2], repeats=[1]).records()
        on_run(lambda lines: with_epochs(lines, of_epochs(lines, other)))(study)

    return do


def in_other_unit(epoch: Epoch) -> dict[str, object]:
    """A clock of another unit."""
    return {"seconds": 1e12 * epoch.seconds, "worker_seconds": [1e12 * each for each in epoch.worker_seconds]}


SAME_WEIGHTS = results(
    lambda lines, result: result.model_copy(update={"weights_sha256": lines.header.initial_weights_sha256})
)


# What is done, which runs are left out for it, and a word of the reason.
IMPOSSIBLE: Mapping[str, tuple[Do, set[str], str]] = {
    "honest": (lambda _: None, set(), ""),
    # Its cores wait for others, and its processes stand still: disturbed, and never impossible.
    "a busy machine": (on_run(slower(0.5, processor=False)), set(), ""),
    "a paused machine": (on_run(slower(200.0, processor=False)), set(), ""),
    "a wall clock that was set": (on_run(header(started_utc="2031-01-01T00:00:00+00:00")), set(), ""),
    "a clock of another unit": (
        on_run(in_turn(epochs(in_other_unit), in_epochs(budget=None, no_budget="off"))), {RUN}, "cannot be",
    ),
    "one epoch of another launch": (
        copied(lambda own, other: [*own.epochs[:2], other.epochs[2], *own.epochs[3:]]), {RUN, OTHER_RUN},
        "epochs 2",
    ),
    "a folder copied under another name": (
        copied(lambda _, other: [*other.epochs]), {RUN, OTHER_RUN}, "one is a copy of the other",
    ),
    "weights that did not change": (on_run(SAME_WEIGHTS), {RUN}, "nothing was trained"),
}  # fmt: skip


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_record_that_cannot_be_is_left_out(honest: dict[str, Path], tmp_path: Path, case: str) -> None:
    change, runs, words = IMPOSSIBLE[case]
    shutil.copytree(honest["with files"], tmp_path / "honest")
    change(tmp_path / "honest")
    # Two of the cases are honest, and not to be compared with the others.
    left_out = {
        run: reason
        for run, reason in report_of(tmp_path / "honest").left_out.items()
        if "kept:" not in reason
    }
    assert set(left_out) == runs, left_out
    assert all(words in reason and RECORD_NAME in reason for reason in left_out.values()), left_out


def test_no_committed_record_contradicts_itself() -> None:
    """Dilated, emulated, played and resumed runs are among them."""
    records = [path for name in COMMITTED for path in sorted(evidence(name).glob("*/run.jsonl"))]
    assert len(records) > 400
    assert [problem for path in records for problem in impossible_values(read_record(path))] == []


CHECK = "asked for and read"
FASTER = "native DDP faster"


def ask_for(folder: Path, **changes: object) -> None:
    """Write the study file of another request, and the run folders that it lacks."""
    study = recorded_study(folder)
    assert study is not None
    StudyFolder(folder, study.model_copy(update=changes)).prepare()


def remove(folder: Path, repeat: int, framework: Framework | None = None) -> None:
    for run, _ in [*Runs(folder).of(framework, repeats=[repeat]).records()]:
        shutil.rmtree(run)


def fail(folder: Path) -> None:
    """The runs of both frameworks end without a word."""
    Runs(folder).of(repeats=[3]).change(lambda lines: replace(lines, epochs=lines.epochs[:2], end=None))


def diverge(folder: Path) -> None:
    end = End(status="diverged", reason="the loss is nan")
    Runs(folder).of(repeats=[6]).change(lambda lines: replace(lines, results=[], end=end))


def launch_again(folder: Path, name: str, repeats: Sequence[int], framework: Framework | None = None) -> None:
    """The best of two launches stands, the other one beside it."""
    again = write_honest(folder.with_name("again"), replace(TRUTHS["6 repeats"], seed=2, speed=1.02))
    for run, _ in [*Runs(folder).of(framework, repeats=repeats).records()]:
        set_launch_aside(run, name)
        shutil.copy(again / run.name / RECORD_NAME, run)


def fewer_asked_than_made_again(folder: Path) -> None:
    launch_again(folder, "attempt1", ALL)
    ask_for(folder, repeats=3)


def looked_at(folder: Path) -> None:
    note_look(folder, 3, 6, by_hand=True, adaptive=False)


def history_removed(folder: Path) -> None:
    looked_at(folder)
    ask_for(folder)
    (folder / REPEATS_NAME).unlink()


ALL = range(1, 7)


ASKED: dict[str, tuple[Callable[[Path], object], str, str, float, str]] = {
    "complete": (lambda _: None, "yes", FASTER, 0.05, "all 12 runs"),
    "records only": (lambda study: (study / STUDY_NAME).unlink(), "not known", WITHHELD, 0.05, STUDY_NAME),
    "still running": (lambda study: remove(study, 6), "no", FASTER, EARLY_SIGNIFICANCE, "5 of 6"),
    "failed in both": (fail, "no", FASTER, EARLY_SIGNIFICANCE, "(1 failed)"),
    "diverged in both": (diverge, "no", FASTER, 0.05, "(1 diverged)"),
    "points to come": (lambda study: ask_for(study, workers=[2, 4]), "no", FASTER, 0.05, "no run is read of"),
    "a gap": (lambda study: remove(study, 2, "horovod"), "no", WITHHELD, EARLY_SIGNIFICANCE, "2 of Horovod"),
    "a gap in both": (lambda study: remove(study, 2), "no", WITHHELD, EARLY_SIGNIFICANCE, "repeats 2 of"),
    "one quiet launch again": (
        lambda study: launch_again(study, "disturbed1", [1], "horovod"), "no", WITHHELD, 0.05,
        "1 of them not",
    ),
    "one arm again": (
        lambda study: launch_again(study, "attempt1", ALL, "horovod"), "no", WITHHELD, 0.05, "6 launches of",
    ),
    "both arms again": (
        lambda study: launch_again(study, "attempt1", ALL), "no", FASTER, 0.05, "6 of Horovod",
    ),
    "both again, and fewer asked": (fewer_asked_than_made_again, "no", FASTER, 0.025, "6 of Horovod"),
    "a look that is noted": (looked_at, "yes", FASTER, 0.025, "all 12 runs"),
    "a look whose note is gone": (history_removed, "yes", FASTER, 0.025, "all 12 runs"),
    "repeats that nothing tells of": (
        lambda study: ask_for(study, repeats=3), "no", FASTER, 0.025, "3 not asked for",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_a_folder_says_what_became_of_what_was_asked_for(
    honest: dict[str, Path], tmp_path: Path, case: str
) -> None:
    change, mark, outcome, significance, words = ASKED[case]
    study = shutil.copytree(honest["6 repeats"], tmp_path / "honest")
    change(study)
    report = make_report(load_study(study))
    row = report.fairness.set_index("check").loc[CHECK]
    assert (row["mark"], list(report.comparisons["outcome"])) == (mark, [outcome]), row["fact"]
    assert row["withholds"] == (outcome == WITHHELD)
    assert report.study.significance == significance
    assert words in row["fact"], row["fact"]
