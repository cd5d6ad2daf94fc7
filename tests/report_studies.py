"""Folders of small studies for the tests of the report: noisy, interleaved in time, of both frameworks."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from tests.records import write_run
from unet_scaling.config import FRAMEWORKS

START = datetime(2025, 1, 31, 12, tzinfo=UTC)
EFFICIENCY_LOST = {"pytorch_native": 0.012, "horovod": 0.05}


def write_study(folder: Path, workers: Sequence[int] = (1, 2, 4), repeats: int = 5) -> Path:
    """Both frameworks at these worker counts; Horovod scales worse, IoU hardly depends on the workers."""
    random = np.random.default_rng(1)
    begun = 0
    for repeat in range(1, repeats + 1):
        block = 1 + 0.01 * random.standard_normal()
        for framework in FRAMEWORKS:
            for count in workers:
                noise = block * (1 + 0.005 * random.standard_normal())
                efficiency = 1 / (1 + EFFICIENCY_LOST[framework] * (count - 1))
                write_run(
                    folder,
                    framework,
                    count,
                    repeat,
                    images_per_second=100 * count * efficiency * noise,
                    iou=round(0.85 - 0.0005 * count + 0.002 * random.standard_normal(), 6),
                    header={"started_utc": f"{START + timedelta(minutes=begun):%Y-%m-%dT%H:%M:%SZ}"},
                )
                begun += 1
    return folder
