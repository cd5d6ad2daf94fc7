"""Pairs of studies for the tests of their comparison."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from analysis.compare.compared import StudyComparison, compare_studies
from analysis.compare.sides import read_side
from tests.records import write_run
from tests.report_studies import START
from unet_scaling.study.config import FRAMEWORKS

Options = Mapping[str, Mapping[str, Any]]
NATIVE = FRAMEWORKS[:1]
# Deviations of the launches of a point, in percent.
SPREAD = (-1.0, 0.4, 0.0, 1.1, -0.5)
OTHER_SPREAD = (0.7, -0.9, 0.2, -0.3, 0.6)
# After START, when those of write_run start, each launch has a minute of its own: no two are at once.
MINUTES = itertools.count(start=10)


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
    """A study of launches that differ by `spread`, in percent of the throughput, one after the other."""
    for framework in frameworks:
        own = {table: keys for table, keys in (options or {}).items() if table not in FRAMEWORKS}
        own |= {framework: (options or {})[framework]} if framework in (options or {}) else {}
        for count in workers:
            for repeat, percent in enumerate(spread, start=1):
                started = START + timedelta(minutes=next(MINUTES))
                write_run(
                    folder,
                    framework,  # type: ignore[arg-type]
                    count,
                    repeat,
                    images_per_second=speed * count * (1 + percent / 100),
                    iou=round(iou + 0.001 * percent, 6),
                    options=own,
                    label=label,
                    header={"started_utc": f"{started:%Y-%m-%dT%H:%M:%SZ}"}
                    | {name.removeprefix("header_"): value for name, value in header.items()},
                )
    return folder


def compared(a: Path, b: Path) -> StudyComparison:
    return compare_studies(read_side("A", a), read_side("B", b))
