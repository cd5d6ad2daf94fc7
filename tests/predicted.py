"""Studies whose step times are known exactly: to predict from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.records import write_run
from unet_scaling.study.config import Framework

BATCH = 8
STEPS = 10
LATER = "2126-01-01T00:00:00+00:00"


def write_launches(
    folder: Path,
    seconds: Mapping[int, Sequence[float]],
    framework: Framework = "pytorch_native",
    header: Mapping[str, object] | None = None,
) -> None:
    """Runs of these seconds per step, by worker count; their places are the repeats."""
    for workers, launches in seconds.items():
        for repeat, step in enumerate(launches, start=1):
            images = STEPS * BATCH * workers
            rate = images / STEPS / step
            write_run(
                folder, framework, workers, repeat,
                images_per_second=rate, images_per_epoch=images, header=header,
            )  # fmt: skip
