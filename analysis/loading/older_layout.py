"""One log in the older CSV layout, read strictly: every row valid, none lost.

The layout has neither an end nor checksums. Lost rows show by the time of the whole run, and by the places
where the learning rate drops; a digit that was changed into another digit cannot be told.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from analysis.loading.reference_schedule import epochs_asked
from unet_scaling.study.config import Framework
from unet_scaling.study.study_file import OLDER_LOG_HEADER

WHOLE_NUMBER = re.compile(r"[0-9]+")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
SHORTEST_SECONDS = 1e-6  # six digits are written
# Of any number: far beyond each of them, and no sum or axis of a figure overflows.
_LARGEST = 1e12
# Times are written with six decimals: each is off by up to half of the last.
_TIME_ROUNDING_SECONDS = 0.5e-6
# Share of the training time outside epochs. The TensorFlow sibling's runs have up to 2.8 %; at 5 % of 200
# epochs ten whole epochs could hide, and only the learning rate speaks against it.
LARGEST_OUTSIDE = 0.05
# As in the published table.
WARMUP_EPOCHS = 5
# As many epochs have to be left as the warm-up takes.
ENOUGH_EPOCHS = 2 * WARMUP_EPOCHS


@dataclass(frozen=True)
class EpochRow:
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
        for name in ("time_per_epoch", "loss", "lr", "training_time", "test_time"):
            if abs(getattr(self, name)) > _LARGEST:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, beyond {_LARGEST:g}: no training has that"
                )
        if self.time_per_epoch < SHORTEST_SECONDS:
            raise ValueError(f"time_per_epoch is {self.time_per_epoch}, shorter than can be measured")
        if self.test_time < 0:
            raise ValueError(f"test_time is {self.test_time}, it must not be negative")
        if not 0 <= self.iou <= 1:
            raise ValueError(f"iou is {self.iou}, it must be from 0 to 1")


@dataclass(frozen=True)
class Log:
    """One usable log."""

    name: str
    framework: Framework
    workers: int
    rows: Sequence[EpochRow]

    @property
    def warmup_epochs(self) -> int:
        """The published five, or the first alone in a log that would have too few left."""
        return WARMUP_EPOCHS if len(self.rows) >= ENOUGH_EPOCHS else 1

    @property
    def used(self) -> Sequence[EpochRow]:
        """The epochs after the warm-up."""
        return self.rows[self.warmup_epochs :]

    @property
    def seconds_per_epoch(self) -> float:
        """What an epoch lasts: the median of those after the warm-up, as in the published table."""
        return median(row.time_per_epoch for row in self.used)


def read_rows(path: Path) -> tuple[list[EpochRow], list[str]]:
    """Return the rows of a log and its problems; rows may be used only where there is no problem."""
    rows: list[EpochRow] = []
    problems: list[str] = []
    lines = path.read_bytes().decode("utf-8", errors="replace").splitlines(keepends=True)
    if not lines or lines[0].rstrip("\r\n") != OLDER_LOG_HEADER:
        found = lines[0].rstrip("\r\n") if lines else "an empty file"
        return [], [f"{path}:1: the columns must be {OLDER_LOG_HEADER}, found {found[:80]}"]
    for number, line in enumerate(lines[1:], start=2):
        try:
            rows.append(_parse(line))
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
    return rows, problems or [f"{path}: {problem}" for problem in _contradictions(rows)]


def _parse(line: str) -> EpochRow:
    if not line.endswith("\n"):
        raise ValueError("the line is cut off")
    epoch, *cells = line.rstrip("\r\n").split(",")
    names = OLDER_LOG_HEADER.split(",")[1:]
    if len(cells) != len(names):
        raise ValueError(f"{1 + len(cells)} columns, expected {1 + len(names)}")
    if not WHOLE_NUMBER.fullmatch(epoch):
        raise ValueError(f"the epoch is {epoch!r}, no whole number")
    return EpochRow(int(epoch), *(_number(name, cell) for name, cell in zip(names, cells, strict=True)))


def _number(name: str, cell: str) -> float:
    value = float(cell) if NUMBER.fullmatch(cell) else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} is {cell!r}, no finite number")
    return value


def _contradictions(rows: Sequence[EpochRow]) -> list[str]:
    """Return what is wrong with rows that are valid by themselves, such as a row that is missing."""
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
    found += _lost_rows(rows)
    return found


def _lost_rows(rows: Sequence[EpochRow]) -> Iterator[str]:
    """Whole rows that a cut took, told by the time of the whole run and the schedule of the learning rate.

    The published PyTorch logs state 0.06 to 0.07 s more than their 200 epochs take. Half the shortest epoch
    is allowed, so that the loss of any row shows that is not itself so much shorter than all others. Logs of
    the TensorFlow sibling state up to 24 s more: where the learning rate tells that every epoch is there,
    such a time is no lost row.
    """
    total = sum(row.time_per_epoch for row in rows)
    stated = rows[0].training_time
    took = f"the epochs take {total:.3f} s in all, training_time is {stated} s"
    if total > stated + _TIME_ROUNDING_SECONDS * (len(rows) + 1):
        yield f"{took}: both cannot be of one run in seconds"
    elif not sum_is_whole(rows):
        asked = epochs_asked([row.lr for row in rows])
        if asked is None:
            yield f"{took}: rows are missing, or lr is not of the reference's schedule, which would tell"
        elif asked != len(rows):
            yield f"{took}: rows are missing: lr tells {asked} epochs, found {len(rows)}"
        elif seconds_outside(rows) > LARGEST_OUTSIDE * stated:
            share = f"{100 * (1 - total / stated):.1f} % of the training is in no epoch"
            yield f"{took}: {share}, at most {100 * LARGEST_OUTSIDE:.0f} % is accepted"


def sum_is_whole(rows: Sequence[EpochRow]) -> bool:
    """Return whether the epochs add up to the time of the whole run: no row can be missing."""
    return seconds_outside(rows) <= min(row.time_per_epoch for row in rows) / 2


def seconds_outside(rows: Sequence[EpochRow]) -> float:
    """Return the seconds of the training that are in no epoch."""
    return rows[0].training_time - sum(row.time_per_epoch for row in rows)
