"""Folders of studies that a test compares: launches of a known spread about a known speed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.records import write_run
from unet_scaling.study.config import FRAMEWORKS

Options = Mapping[str, Mapping[str, Any]]
NATIVE = FRAMEWORKS[:1]
# Deviations of the launches of a point, in percent.
SPREAD = (-1.0, 0.4, 0.0, 1.1, -0.5)
OTHER_SPREAD = (0.7, -0.9, 0.2, -0.3, 0.6)


def write_side(
    folder: Path,
    speed: float = 100.0,
    *,
    frameworks: Sequence[str] = NATIVE,
    workers: Sequence[int] = (1,),
    spread: Sequence[float] = SPREAD,
    options: Options | None = None,
    label: str = "",
    iou: float = 0.8,
    **header: object,
) -> Path:
    """A study of launches that differ by `spread`, in percent of the throughput."""
    for framework in frameworks:
        own = {table: keys for table, keys in (options or {}).items() if table not in FRAMEWORKS}
        own |= {framework: (options or {})[framework]} if framework in (options or {}) else {}
        for count in workers:
            for repeat, percent in enumerate(spread, start=1):
                write_run(
                    folder,
                    framework,  # type: ignore[arg-type]
                    count,
                    repeat,
                    images_per_second=speed * count * (1 + percent / 100),
                    iou=round(iou + 0.001 * percent, 6),
                    options=own,
                    label=label,
                    header={name.removeprefix("header_"): value for name, value in header.items()},
                )
    return folder
