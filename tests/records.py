"""Plausible complete runs for tests, written with the real models and the real writer."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.measurements import Probe
from unet_scaling.study.record import RECORD_NAME, RecordWriter
from unet_scaling.study.record_lines import ComputeFacts, End, Epoch, Header, Result, WorkerFacts

# More than any test's epoch has.
GRADIENT_BYTES = 1_948_580  # of the reference network in float32
TRAIN_IMAGES = 1_000_000
PIXELS = 1_000_000
WARMUP_SLOWDOWN = 4.0


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
        "training": {"epochs": 3, "batch_per_worker": 8},
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
    return {"backend": "nccl" if is_gpu else "gloo"}


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
    images_per_epoch: int = 48,
    end: End | None = End(status="complete"),  # noqa: B008, frozen
    header: Mapping[str, object] | None = None,
    measured: Measured | None = None,
    test_pixels: int = 10 * PIXELS,
) -> None:
    """Write the record of a run of this point into its folder.

    The throughput after the warm-up epoch is exactly `images_per_second`. `end=None` leaves the end line
    out; `header` replaces fields of the header. `measured` replaces the epochs, and with them the throughput.
    """
    epochs = measured.epochs if measured else make_epochs(point, images_per_second, images_per_epoch)
    first_line = make_header(point, **(header or {}))
    probe = [measured.probe] if measured and measured.probe else []
    results = [] if point.is_emulated else [make_result(first_line, epochs, iou, test_pixels)]
    write_all(folder / RECORD_NAME, [first_line, *probe, *epochs, *results, *([end] if end else [])])


def write_all(path: Path, lines: Iterable[Any]) -> None:
    """Write a record of these lines by the product's own writer."""
    writer = RecordWriter(path)
    for line in lines:
        writer.write(line)
    writer.close()
