"""Folders of small studies for the tests of the report: noisy, interleaved in time, of both frameworks."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from tests.records import make_workers, write_run
from unet_scaling.study.config import FRAMEWORKS

START = datetime(2025, 1, 31, 12, tzinfo=UTC)
EFFICIENCY_LOST = {"pytorch_native": 0.012, "horovod": 0.05}


def write_one_after_the_other(folder: Path, workers: Sequence[int] = (1, 2), repeats: int = 5) -> Path:
    """All runs of native DDP on one host, then on another those of Horovod: slower, and one repeat more."""
    random = np.random.default_rng(1)
    begun = 0
    for extra, framework in enumerate(FRAMEWORKS):
        speed = 100.0 if extra else 112.0
        for repeat in range(1, repeats + extra + 1):
            for count in workers:
                started = f"{START + timedelta(minutes=begun):%Y-%m-%dT%H:%M:%SZ}"
                header = {"started_utc": started, "workers": make_workers(count, host=f"node{2 - extra}")}
                throughput = speed * count * (1 + 0.005 * random.standard_normal())
                write_run(
                    folder, framework, count, repeat, images_per_second=throughput, iou=0.85, header=header
                )
                begun += 1
    return folder


def write_study(folder: Path, workers: Sequence[int] = (1, 2, 4), repeats: int = 5) -> Path:
    """Both frameworks at these worker counts; Horovod scales worse, IoU hardly depends on the workers."""
    random = np.random.default_rng(1)
    begun = 0
    for repeat in range(1, repeats + 1):
        block = 1 + 0.01 * random.standard_normal()
        learned: dict[int, float] = {}  # both frameworks train the same
        for framework in FRAMEWORKS:
            # In every other repeat Horovod comes first.
            turn = (repeat % 2) * len(workers) * (1 if framework == "pytorch_native" else -1)
            for count in workers:
                noise = block * (1 + 0.005 * random.standard_normal())
                iou = round(0.85 - 0.0005 * count + 0.002 * random.standard_normal(), 6)
                efficiency = 1 / (1 + EFFICIENCY_LOST[framework] * (count - 1))
                write_run(
                    folder,
                    framework,
                    count,
                    repeat,
                    images_per_second=100 * count * efficiency * noise,
                    iou=learned.setdefault(count, iou),
                    header={"started_utc": f"{START + timedelta(minutes=begun + turn):%Y-%m-%dT%H:%M:%SZ}"},
                )
                begun += 1
    return folder
