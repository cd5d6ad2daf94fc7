"""One file in the older CSV layout, read strictly: every row sound, none lost.

The layout has neither an end nor checksums. Lost rows show by the time of the whole run; a digit that was
changed into another digit cannot be told.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADER = ",time_per_epoch,loss,lr,training_time,test_time,iou"
WHOLE_NUMBER = re.compile(r"[0-9]+")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
SHORTEST_SECONDS = 1e-6  # six digits are written


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
        if self.time_per_epoch < SHORTEST_SECONDS:
            raise ValueError(f"time_per_epoch is {self.time_per_epoch}, shorter than can be measured")
        if self.test_time < 0:
            raise ValueError(f"test_time is {self.test_time}, it must not be negative")
        if not 0 <= self.iou <= 1:
            raise ValueError(f"iou is {self.iou}, it must be from 0 to 1")


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
    found += _lost_rows(rows)
    return found


def _lost_rows(rows: Sequence[Row]) -> Iterator[str]:
    """Whole rows that a cut took, told by the time of the whole run.

    The published logs state 0.06 to 0.07 s more than their 200 epochs take. Half the shortest epoch is
    allowed, so that the loss of any row shows that is not itself so much shorter than all others.
    """
    total = sum(row.time_per_epoch for row in rows)
    stated = rows[0].training_time
    if abs(total - stated) > min(row.time_per_epoch for row in rows) / 2:
        yield f"the epochs take {total:.3f} s in all, training_time is {stated} s: rows are missing"
