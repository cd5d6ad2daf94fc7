"""Records of played runs for tests: one worker that trains as several, with its IoU during training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.records import write_run
from unet_scaling.study.config import Framework
from unet_scaling.study.record_lines import End

DIVERGED = -1.0
IMAGES_PER_EPOCH = 224
# Seconds of a played run mean nothing: a number that no test's arithmetic gives.
PLAYED_IMAGES_PER_SECOND = 77.0


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
