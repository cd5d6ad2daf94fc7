"""Plausible complete runs for tests, written with the real models and the real writer."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unet_scaling.format.older_log import OLDER_LOG_HEADER
from unet_scaling.format.record import RECORD_NAME, RecordWriter
from unet_scaling.format.record_lines import (
    PHASE_COLUMNS,
    Budget,
    ComputeFacts,
    CpuFacts,
    End,
    Epoch,
    Header,
    Probe,
    Result,
    ScriptHeader,
    WorkerFacts,
)
from unet_scaling.group.identity import KEEP_MEMORY
from unet_scaling.measure.ping_pong import HostPair
from unet_scaling.study.config import Framework, RunConfig, StudyConfig

# More than any test's epoch has.
GRADIENT_BYTES = 1_948_580  # of the reference network in float32
# Of back ends, as they compute in it; two are enough here.
FLOAT32 = {"cuda.matmul": "ieee", "cudnn.conv": "ieee"}
TRAIN_IMAGES = 1_000_000
PIXELS = 1_000_000
WARMUP_SLOWDOWN = 4.0
# An IoU that stands for a run that diverged.
DIVERGED = -1.0
IMAGES_PER_EPOCH = 1_120
# Seconds of a played run mean nothing: a number that no test's arithmetic gives.
PLAYED_IMAGES_PER_SECOND = 77.0
SCRIPT_IMAGES = 4800


@dataclass(frozen=True)
class Measured:
    """The timed lines of a run, where a test needs others than those of a throughput alone."""

    epochs: list[Epoch]
    probe: Probe | None = None


def digest(text: str) -> str:
    """A SHA-256 that depends on the text."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_point(
    framework: Framework = "pytorch_native",
    workers: int = 1,
    repeat: int = 1,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    label: str = "",
) -> RunConfig:
    """A point; `options` overrides keys of its tables, {"training": {"precision": "bf16"}}."""
    options = options or {}
    tables: dict[str, dict[str, Any]] = {
        "data": {"folder": "/data/nuclei", "image_height": 128, "image_width": 128},
        "model": {},
        "training": {"epochs": 3, "batch_per_worker": 1},
    }
    merged = {name: tables.get(name, {}) | dict(options.get(name, {})) for name in {**tables, **options}}
    return RunConfig.model_validate(
        {
            "study": "tiny",
            "run": f"{framework}-w{workers:02d}{label}-r{repeat}",
            "framework": framework,
            "workers": workers,
            "repeat": repeat,
            "seed": repeat,
            **merged,
        }
    )


def make_study(name: str, folder: Path | str = "/data", **changes: Any) -> StudyConfig:
    """A study on images of 32 x 32 pixels in a folder; `changes` replace its keys and tables."""
    data = {"folder": str(folder), "image_height": 32, "image_width": 32, "foreground": "255"}
    keys = {"name": name, "workers": [1], "repeats": 1, "data": data, "training": {"epochs": 3}}
    return StudyConfig.model_validate(keys | changes)


def make_workers(
    workers: int, *, cores_each: int = 1, device: str = "cpu", host: str = "node1"
) -> list[WorkerFacts]:
    """Workers of one host that share nothing: cores of their own, and a GPU each unless device is cpu."""
    return [
        WorkerFacts(
            worker=number,
            host=host,
            process=1000 + number,
            device=device,
            device_uuid="" if device == "cpu" else f"GPU-{number}",
            cores=list(range(number * cores_each, (number + 1) * cores_each)),
            threads=cores_each,
            allocator=dict(KEEP_MEMORY),
            environment={},
        )
        for number in range(workers)
    ]


def make_header(point: RunConfig, **changes: object) -> Header:
    """The header of a run of this point; `changes` replace fields."""
    of_workers: Any = changes.get("workers") or make_workers(point.workers)
    is_gpu = any(worker.device_uuid for worker in of_workers)
    fields: dict[str, Any] = {
        "config": point,
        "config_sha256": point.digest(),
        "attempt": 1,
        "started_utc": "2025-01-31T12:00:00Z",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "versions": {"python": "3.11.2", "torch": "2.13.0"},
        "transport": make_transport(point.framework, is_gpu=is_gpu),
        "float32": FLOAT32,
        "job": {},
        "manifest_sha256": digest("manifest"),
        "train_images": TRAIN_IMAGES,
        "test_images": 12,
        "initial_weights_sha256": digest(f"weights of seed {point.seed}"),
        "gradient_bytes": GRADIENT_BYTES,
        "workers": of_workers,
        "compute": make_compute(point),
    }
    return Header(**fields | changes)


def make_transport(framework: Framework, *, is_gpu: bool = False) -> dict[str, str]:
    """What carries the gradients, in the words of this framework's twin."""
    if framework == "horovod":
        return {"controller": "MPI", "built with": "MPI Gloo NCCL" if is_gpu else "MPI Gloo"}
    return {"backend": "cpu:gloo,cuda:nccl" if is_gpu else "gloo"}


def make_compute(point: RunConfig) -> ComputeFacts | None:
    """The profile by which an emulated run waits, as its header names it."""
    if point.emulation.compute is None:
        return None
    name = Path(point.emulation.compute).name
    return ComputeFacts(name=name, sha256=digest(name), device="V100", assumption="figures of a paper")


def make_epochs(point: RunConfig, images_per_second: float, images_per_epoch: int) -> list[Epoch]:
    """Epochs of equal throughput, after a first one that is slow and flagged warm-up."""
    of_step = point.training.batch_per_worker * point.training.accumulate * point.played_workers
    return [
        Epoch(
            epoch=number,
            seconds=seconds,
            worker_seconds=[seconds] * point.workers,
            images=images_per_epoch,
            steps=math.ceil(images_per_epoch / of_step),
            loss=None if point.is_emulated else 0.7 / (number + 1),
            learning_rate=point.training.learning_rate * point.workers,
            warmup=number == 0,
        )
        for number in range(point.training.epochs)
        for seconds in [images_per_epoch / images_per_second * (WARMUP_SLOWDOWN if number == 0 else 1)]
    ]


def make_result(
    header: Header, epochs: list[Epoch], iou: float | None, test_pixels: int = 10 * PIXELS
) -> Result:
    """The evaluation after the last epoch, with pixel counts that give this IoU to six digits.

    None: neither the masks nor the predictions have foreground. Else PIXELS of `test_pixels` are
    foreground, of which some are not found.
    """
    union = 0 if iou is None else PIXELS
    true_positive = round((iou or 0.0) * union)
    return Result(
        epochs=len(epochs),
        training_seconds=sum(epoch.seconds for epoch in epochs),
        images=header.test_images,
        true_positive=true_positive,
        false_positive=0,
        false_negative=union - true_positive,
        true_negative=test_pixels - union,
        iou=true_positive / union if union else None,
        dice=2 * true_positive / (union + true_positive) if union else None,
        image_iou=true_positive / union if union else None,
        seconds=0.5,
        weights_sha256=digest(f"final weights of {header.config.run.removeprefix(header.config.framework)}"),
    )


def write_run(
    study: Path,
    framework: Framework = "pytorch_native",
    workers: int = 1,
    repeat: int = 1,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    label: str = "",
    **record: Any,
) -> Path:
    """Write the folder of one run below `study`, as submission and training would; returns it.

    `label` becomes part of the run's name, for runs that differ in an option; `record` is what `write_record`
    takes.
    """
    point = make_point(framework, workers, repeat, options=options, label=label)
    folder = study / point.run
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(point.model_dump_json())
    write_record(folder, point, **record)
    return folder


def write_record(
    folder: Path,
    point: RunConfig,
    *,
    images_per_second: float = 100.0,
    iou: float | None = 0.8,
    images_per_epoch: int = 480,
    end: End | None = End(status="complete"),  # noqa: B008, frozen
    header: Mapping[str, object] | None = None,
    measured: Measured | None = None,
    test_pixels: int = 10 * PIXELS,
    evaluated: Mapping[str, object] | None = None,
) -> None:
    """Write the record of a run of this point into its folder; `evaluated` replaces fields of its result.

    The throughput after the warm-up epoch is exactly `images_per_second`. `end=None` leaves the end line
    out; `header` replaces fields of the header. `measured` replaces the epochs, and with them the throughput.
    """
    epochs = measured.epochs if measured else make_epochs(point, images_per_second, images_per_epoch)
    first_line = make_header(point, **(header or {}))
    probe = [measured.probe] if measured and measured.probe else []
    result_line = make_result(first_line, epochs, iou, test_pixels).model_copy(update=dict(evaluated or {}))
    results = [] if point.is_emulated else [result_line]
    write_all(folder / RECORD_NAME, [first_line, *probe, *epochs, *results, *([end] if end else [])])


def write_all(path: Path, lines: Iterable[Any]) -> None:
    """Write a record of these lines by the product's own writer."""
    writer = RecordWriter(path)
    for line in lines:
        writer.write(line)
    writer.close()


def older_log(seconds: Sequence[float] = (20.0, 10.0, 10.0), training_time: float | None = None) -> str:
    """The text of a sound log in the older layout with these epoch times."""
    total = sum(seconds) + 0.05 if training_time is None else training_time
    rows = [
        f"{epoch},{time:.6f},0.500000,0.001000,{total:.6f},5.000000,0.900000"
        for epoch, time in enumerate(seconds)
    ]
    return "\n".join([OLDER_LOG_HEADER, *rows]) + "\n"


def write_played(
    folder: Path,
    plays: int,
    repeat: int,
    iou: float | None,
    *,
    framework: Framework = "pytorch_native",
    training: Mapping[str, Any] | None = None,
    workers: int = 1,
    header: Mapping[str, object] | None = None,
    label: str = "",
) -> Path:
    """Write a run of `workers` that plays others; an IoU of DIVERGED is a run that diverged."""
    return write_run(
        folder,
        framework,
        workers,
        repeat,
        images_per_second=PLAYED_IMAGES_PER_SECOND,
        images_per_epoch=IMAGES_PER_EPOCH,
        options={"training": {"plays": plays, **(training or {})}},
        label=f"-plays={plays}{label}",
        header=header,
        **result(iou),
    )


def result(iou: float | None) -> dict[str, Any]:
    """Return what `write_run` takes for a run with this IoU, or one that diverged."""
    if iou == DIVERGED:
        return {"end": End(status="diverged", reason="loss is nan")}
    return {"iou": iou}


def write_all_played(
    folder: Path,
    ious: Mapping[int, Sequence[float | None]],
    *,
    framework: Framework = "pytorch_native",
    training: Mapping[str, Any] | None = None,
    label: str = "",
) -> Path:
    """Write one played run per IoU; their places are the repeats."""
    for plays, values in ious.items():
        for repeat, iou in enumerate(values, start=1):
            write_played(folder, plays, repeat, iou, framework=framework, training=training, label=label)
    return folder


def write_real(folder: Path, workers: int, ious: Sequence[float], images_per_second: float) -> Path:
    """Write one real run per IoU, of about this throughput."""
    for repeat, iou in enumerate(ious, start=1):
        speed = images_per_second * (1 + 0.001 * repeat)
        write_run(
            folder,
            "pytorch_native",
            workers,
            repeat,
            images_per_second=speed,
            images_per_epoch=IMAGES_PER_EPOCH,
            **result(iou),
        )
    return folder


def near(center: float, repeats: int = 5, *, deviation: float = 0.001, seed: int = 1) -> list[float]:
    """Return an IoU for each repeat, close to this one."""
    noise = np.random.default_rng(seed).normal(0, deviation, repeats)
    return [float(iou) for iou in (center + noise).round(5)]


def write_script_run(
    study: Path,
    framework: Framework = "pytorch_native",
    workers: int = 1,
    repeat: int = 1,
    *,
    images_per_second: float = 100.0,
    end: End | None = End(status="complete"),  # noqa: B008, frozen
    **changes: Any,
) -> Path:
    """Write the folder of one run of a script below `study`; `changes` replace fields of its header."""
    fields: dict[str, object] = {
        "framework": framework,
        "repeat": repeat,
        "script": f"train_{framework}.py",
        "script_sha256": digest(framework),
        "options": {},
        "started_utc": f"2025-01-31T12:{repeat:02d}:00+00:00",
        "commit": None,
        "dirty": None,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "transport": {"backend": "gloo"},
        "job": {},
        "workers": make_workers(workers),
    }
    header = ScriptHeader.model_validate(fields | changes)
    label = "".join(f"-{name}={value}" for name, value in header.options.items())
    folder = study / f"script-{framework}-w{workers:02d}{label}-r{repeat}"
    folder.mkdir(parents=True)
    seconds = SCRIPT_IMAGES / images_per_second
    epochs = [
        Epoch(
            epoch=number, seconds=seconds, worker_seconds=[seconds] * workers, images=SCRIPT_IMAGES, steps=50,
            loss=None, warmup=number == 0, no_budget="no model was given",
        )
        for number in range(3)
    ]  # fmt: skip
    write_all(folder / RECORD_NAME, [header, *epochs, *([end] if end else [])])
    return folder


STEPS = 6
# To average takes some time on any clock.
LEAST_SYNC_SECONDS = 1e-9
QUIET = {"communication": 0.0, "runqueue": 0.0}


@dataclass(frozen=True)
class Steps:
    """Seconds of each phase of a step: one number for all workers, or one for each.

    `sync` of a worker is wire and what it waits for others beyond it. `host_paced` are those in which a GPU
    waited for its host. `contended` are CPU seconds of helper
    threads, of other processes and of waiting for a core, of a step.
    """

    data_wait: float | Sequence[float] = 0.010
    host_to_device: float | Sequence[float] = 0.002
    forward: float | Sequence[float] = 0.030
    backward: float | Sequence[float] = 0.050
    sync: float | Sequence[float] = 0.0
    optimizer: float | Sequence[float] = 0.006
    rest: float | Sequence[float] = 0.001
    wire: float = 0.0
    host_paced: float | None = None
    contended: Mapping[str, float] = field(default_factory=lambda: QUIET)
    cores: int = 1
    frequency_mhz: float | None = 3000.0

    def of_worker(self, phase: str, worker: int) -> float:
        value = getattr(self, phase)
        return float(value[worker] if isinstance(value, Sequence) else value)

    def seconds(self, worker: int) -> float:
        return sum(self.of_worker(name.removesuffix("_seconds"), worker) for name in PHASE_COLUMNS)


def write_budget_run(
    folder: Path,
    framework: Framework = "pytorch_native",
    workers: int = 1,
    repeat: int = 1,
    steps: Steps | None = None,
    *,
    pace: float = 1.0,
    probe: Probe | None = None,
    facts: Sequence[WorkerFacts] | None = None,
    budget: str | None = "on",
    about: Mapping[str, object] | None = None,
    stalled: Mapping[int, Steps] | None = None,
    **named: Any,
) -> Path:
    """Write a run whose steps take this long, times `pace`. `budget` None: none could be known.

    `about` replaces fields of the header; `stalled` the steps of these epochs; `named` are options and label.
    """
    each = steps or Steps()
    point = make_point(framework, workers, repeat, **named)
    images = STEPS * workers * point.training.batch_per_worker * point.training.accumulate
    epochs = [
        _epoch(
            number,
            (stalled or {}).get(number, each),
            workers,
            images,
            pace * (4 if number == 0 else 1),
            budget,
        )
        for number in range(point.training.epochs)
    ]
    header = {"workers": list(facts or make_workers(workers, cores_each=each.cores)), **(about or {})}
    measured = Measured(epochs, probe)
    return write_run(folder, framework, workers, repeat, header=header, measured=measured, **named)


def make_probe(latency: float = 1e-4, bandwidth: float = 1e9) -> Probe:
    """A network of this latency, seconds, and bandwidth, bytes a second."""
    sizes = [4**power for power in range(1, 13)]
    times = [latency + size / bandwidth for size in sizes]
    return Probe(bytes=sizes, repeats=[20] * len(sizes), median_seconds=times, minimum_seconds=times)


def make_pair(hosts: tuple[str, str], latency: float, seconds: float, size: int = 2**20) -> HostPair:
    """What a ping-pong between two hosts measures where a message of this size takes so long, one way."""
    return HostPair(
        ranks=(0, 1),
        hosts=hosts,
        medium="shared memory" if hosts[0] == hosts[1] else "network",
        bytes=[1, size],
        repeats=[3, 3],
        median_seconds=[latency, seconds],
        minimum_seconds=[latency, seconds],
        latency_seconds=latency,
        bytes_per_second=size / (seconds - latency),
    )


def _epoch(number: int, steps: Steps, workers: int, images: int, pace: float, budget: str | None) -> Epoch:
    scale = STEPS * pace
    seconds = [scale * steps.seconds(worker) for worker in range(workers)]
    return Epoch(
        epoch=number,
        seconds=max(seconds),
        worker_seconds=seconds,
        images=images,
        steps=STEPS,
        loss=0.5,
        learning_rate=0.001,
        warmup=number == 0,
        budget=_budget(steps, workers, scale) if budget else None,
        no_budget=None if budget else "where sync begins is not known",
        cpu=[_processor(steps, worker, scale) for worker in range(workers)],
    )


def _budget(steps: Steps, workers: int, scale: float) -> Budget:
    phases = {
        name: [scale * steps.of_worker(name.removesuffix("_seconds"), worker) for worker in range(workers)]
        for name in PHASE_COLUMNS
    }
    if workers > 1:
        phases["sync_seconds"] = [max(each, LEAST_SYNC_SECONDS) for each in phases["sync_seconds"]]
    paced = None if steps.host_paced is None else [scale * steps.host_paced] * workers
    return Budget.model_validate(phases | {"wire_seconds": scale * steps.wire, "host_paced_seconds": paced})


def _processor(steps: Steps, worker: int, scale: float) -> CpuFacts:
    whole = scale * steps.seconds(worker)
    communication = scale * steps.contended["communication"]
    training = min(0.9 * whole, steps.cores * whole - communication)
    runqueue = steps.contended.get("runqueue")  # a kernel may not tell
    other = steps.contended.get("other")  # nor do older records
    other_workers = steps.contended.get("other_workers")
    return CpuFacts(
        process_seconds=training + communication,
        thread_seconds={"training": training, "communication": communication, "other": 0.0},
        training_runqueue_seconds=None if runqueue is None else scale * runqueue,
        other_seconds=None if other is None else scale * other,
        other_workers_seconds=None if other_workers is None else scale * other_workers,
        cores=steps.cores,
        peak_memory_bytes=2**28 + worker,
        frequency_mhz=steps.frequency_mhz,
    )
