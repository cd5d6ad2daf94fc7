"""Logs in the older CSV layout, read strictly, into the same tables as records.

`log_N.csv` is native DDP on N workers, `log_hvd_N.csv` Horovod. One row per epoch; the last three
columns are of the whole run and repeat in every row.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from analysis.load import NAN, LeftOut, Run, Study, frame
from unet_scaling.config import FRAMEWORKS, Framework
from unet_scaling.errors import UserError

HEADER = ",time_per_epoch,loss,lr,training_time,test_time,iou"
FILE_NAME = re.compile(r"log_(?P<horovod>hvd_)?(?P<workers>[1-9][0-9]*)\.csv")
WHOLE_NUMBER = re.compile(r"[0-9]+")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WARMUP_EPOCHS = 1
CANNOT_SAY = (
    "images per epoch are not recorded: throughput is in epochs per second, "
    "and epochs of different worker counts may differ in images",
    "one run per point: no interval, so no difference can be called significant",
    "no provenance: code, versions, seeds, hosts, devices and cores are unknown, "
    "so nothing says whether these runs may be compared",
    "the test images of each IoU are unknown: in the published study they were a subset "
    "that shrank with the workers, so its IoU values cannot be compared",
)


@dataclass(frozen=True)
class Row:
    """One epoch. Times in seconds; `training_time`, `test_time` and `iou` are of the whole run."""

    epoch: int
    time_per_epoch: float
    loss: float
    lr: float
    training_time: float
    test_time: float
    iou: float

    def __post_init__(self) -> None:
        for name in ("time_per_epoch", "lr", "training_time"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be above 0")
        if self.test_time < 0:
            raise ValueError(f"test_time is {self.test_time}, it must not be negative")
        if not 0 <= self.iou <= 1:
            raise ValueError(f"iou is {self.iou}, it must be from 0 to 1")


def load_reference(folder: Path) -> Study:
    """Read every log of a folder. The first epoch is the warm-up.

    Raises UserError where the folder is missing or has no such log.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one with log_N.csv and log_hvd_N.csv")
    paths = sorted(folder.glob("log*.csv"))
    if not paths:
        raise UserError(f"{folder} has no log_N.csv or log_hvd_N.csv; records are read without --reference")
    found = [read_log(path) for path in paths]
    runs = [run for run in found if isinstance(run, Run)]
    runs.sort(key=lambda run: (FRAMEWORKS.index(run.framework), run.workers))
    return Study(
        name=folder.resolve().name,
        runs=frame(Run, runs),
        left_out=frame(LeftOut, [left for left in found if isinstance(left, LeftOut)]),
        throughput="epochs_per_second",
        unit="epochs / s",
        iou_scope="test images unknown",
        notes=CANNOT_SAY,
    )


def read_log(path: Path) -> Run | LeftOut:
    """The run in one log, or the problems that forbid to use it, with file and line."""
    name = FILE_NAME.fullmatch(path.name)
    if name is None:
        return LeftOut(path.name, "damaged", f"{path}: the name is neither log_N.csv nor log_hvd_N.csv")
    try:
        rows, problems = read_rows(path)
    except OSError as error:
        return LeftOut(path.name, "damaged", f"{path}: {error.strerror}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return LeftOut(path.name, "damaged", problems[0] + more)
    if len(rows) <= WARMUP_EPOCHS:
        return LeftOut(path.name, "no throughput", f"{len(rows)} epochs, none after the warm-up")
    return _run(path.name, "horovod" if name["horovod"] else "pytorch_native", int(name["workers"]), rows)


def read_rows(path: Path) -> tuple[list[Row], list[str]]:
    """The rows of a log and its problems; rows may be used only where there is no problem."""
    rows: list[Row] = []
    problems: list[str] = []
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines(keepends=True)
    if not lines or lines[0].rstrip("\r\n") != HEADER:
        found = lines[0].rstrip("\r\n") if lines else "an empty file"
        return [], [f"{path}:1: the columns must be {HEADER}, found {found[:80]}"]
    for number, line in enumerate(lines[1:], start=2):
        try:
            rows.append(_parse(line))
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    return rows, problems or [f"{path}: {problem}" for problem in _contradictions(rows)]


def _parse(line: str) -> Row:
    if not line.endswith("\n"):
        raise ValueError("the line is cut off")
    epoch, *cells = line.rstrip("\r\n").split(",")
    names = HEADER.split(",")[1:]
    if len(cells) != len(names):
        raise ValueError(f"{1 + len(cells)} columns, expected {1 + len(names)}")
    if not WHOLE_NUMBER.fullmatch(epoch):
        raise ValueError(f"the epoch is {epoch!r}, no whole number")
    return Row(int(epoch), *(_number(name, cell) for name, cell in zip(names, cells, strict=True)))


def _number(name: str, cell: str) -> float:
    value = float(cell) if NUMBER.fullmatch(cell) else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} is {cell!r}, no finite number")
    return value


def _contradictions(rows: Sequence[Row]) -> list[str]:
    """What is wrong with rows that are sound by themselves; a whole row that is missing shows here."""
    if not rows:
        return ["no epochs"]
    found = []
    epochs = [row.epoch for row in rows]
    if epochs != list(range(len(rows))):
        break_at = next(index for index, epoch in enumerate(epochs) if epoch != index)
        found.append(f"epochs are not 0, 1, 2, ...: found {epochs[break_at]} where {break_at} belongs")
    for name in ("training_time", "test_time", "iou"):
        values = list(dict.fromkeys(getattr(row, name) for row in rows))
        if len(values) > 1:
            found.append(
                f"{name} is of the whole run, but has {len(values)} values: {values[0]}, {values[1]}"
            )
    total = sum(row.time_per_epoch for row in rows)
    if abs(total - rows[0].training_time) > median(row.time_per_epoch for row in rows) / 2:
        stated = rows[0].training_time
        found.append(f"the epochs take {total:.3f} s in all, training_time is {stated} s: rows are missing")
    return found


def _run(name: str, framework: Framework, workers: int, rows: Sequence[Row]) -> Run:
    used = rows[WARMUP_EPOCHS:]
    seconds = [row.time_per_epoch for row in used]
    return Run(
        run=name,
        framework=framework,
        workers=workers,
        repeat=1,
        seed=None,
        options="",
        knobs="",
        images_per_second=NAN,
        epochs_per_second=len(used) / sum(seconds),
        epochs_used=len(used),
        seconds_per_epoch=median(seconds),
        images_per_epoch=NAN,
        loss=used[-1].loss,
        iou=rows[0].iou,
        dice=NAN,
        training_seconds=rows[0].training_time,
        hosts="",
        devices="",
        cores_per_worker="",
    )
