"""One log in the older CSV layout, read strictly: every row valid, none lost.

pandas reads the cells. What it would pass over is verified beside it: a line that was cut off, cells that
are missing or too many, numbers that no log has. The layout has neither an end nor checksums: lost rows show
by the time of the whole run, and by the places where the learning rate drops; a digit that was changed into
another digit cannot be told.
"""

import csv
import io
import math
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import pandas as pd

from analysis.loading.reference_schedule import epochs_asked
from unet_scaling.study.config import Framework
from unet_scaling.study.errors import UserError
from unet_scaling.study.run_state import first_problem
from unet_scaling.study.study_file import OLDER_LOG_HEADER

NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Six digits are written.
SHORTEST_SECONDS = 1e-6
# Of any number: far beyond each of them, and no sum or axis of a figure overflows.
_LARGEST = 1e12
_ABOVE_ZERO = 1 / _LARGEST
# Of each column the least and the largest value; times in seconds.
_LIMITS = {
    "time_per_epoch": (SHORTEST_SECONDS, _LARGEST),
    "loss": (-_LARGEST, _LARGEST),
    "lr": (_ABOVE_ZERO, _LARGEST),
    "training_time": (_ABOVE_ZERO, _LARGEST),
    "test_time": (0.0, _LARGEST),
    "iou": (0.0, 1.0),
}
_COLUMNS = 1 + len(_LIMITS)
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
class Log:
    """One usable log; `rows` has one row per epoch: epoch, and the columns of _LIMITS."""

    name: str
    framework: Framework
    workers: int
    rows: pd.DataFrame

    @property
    def warmup_epochs(self) -> int:
        """The published five, or the first alone in a log that would have too few left."""
        return WARMUP_EPOCHS if len(self.rows) >= ENOUGH_EPOCHS else 1

    @property
    def used(self) -> pd.DataFrame:
        """The epochs after the warm-up."""
        return self.rows.iloc[self.warmup_epochs :]

    @property
    def seconds_per_epoch(self) -> float:
        """Return the median seconds of the epochs after the warm-up, as in the published table."""
        return float(self.used["time_per_epoch"].median())


def read_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a log. Raises UserError with the first problem, its line, and how many more are."""
    # The csv module drops what follows a carriage return alone; so marked it is no number.
    text = path.read_bytes().decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\ufffd")
    lines = text.split("\n")
    if lines[0] != OLDER_LOG_HEADER:
        found = lines[0][:80] if text else "an empty file"
        raise UserError(f"{path}:1: the columns must be {OLDER_LOG_HEADER}, found {found}")
    if lines[-1]:
        raise UserError(f"{path}:{len(lines)}: the line is cut off")
    cells = _cells(text)
    invalid = sorted(_invalid_cells(cells), key=itemgetter(0))
    _require_none([f"{path}:{line}: {problem}" for line, problem in invalid])
    rows = cells[["epoch", *_LIMITS]].astype(float)
    _require_none([f"{path}: {problem}" for problem in _contradictions(rows)])
    return rows


def _require_none(problems: Sequence[str]) -> None:
    if problems:
        raise UserError(first_problem(tuple(problems)))


def _cells(text: str) -> pd.DataFrame:
    """Return the cells as text, by line; NaN where a line has fewer, "more" is the first one too many."""
    names = ["epoch", *_LIMITS, "more"]
    cells = pd.read_csv(
        io.StringIO(text),
        header=None,
        names=names,
        dtype=str,
        na_filter=False,
        skip_blank_lines=False,
        quoting=csv.QUOTE_NONE,
        engine="python",
        on_bad_lines=lambda line: line[: len(names)],
    )
    cells.index += 1
    return cells.iloc[1:]


def _invalid_cells(cells: pd.DataFrame) -> Iterator[tuple[Hashable, str]]:
    """Yield the line and the problem of each line of too few or too many cells, and of each invalid cell."""
    found = cells.notna().sum(axis=1)
    whole = cells[found == _COLUMNS]
    for line, columns in found[found != _COLUMNS].items():
        yield line, f"{columns}{' or more' if columns > _COLUMNS else ''} columns, expected {_COLUMNS}"
    for line, epoch in whole["epoch"].items():
        if not epoch.isdecimal() or not epoch.isascii():
            yield line, f"the epoch is {epoch!r}, no whole number"
    for name, limits in _LIMITS.items():
        yield from _invalid_numbers(whole[name], *limits)


def _invalid_numbers(cells: "pd.Series[str]", least: float, most: float) -> Iterator[tuple[Hashable, str]]:
    for line, cell in cells.items():
        value = float(cell) if NUMBER.fullmatch(cell) else math.nan
        if not math.isfinite(value):
            yield line, f"{cells.name} is {cell!r}, no finite number"
        elif not least <= value <= most:
            yield line, f"{cells.name} is {value}, it must be from {least:g} to {most:g}"


def _contradictions(rows: pd.DataFrame) -> Iterator[str]:
    """Yield what is wrong with rows that are valid by themselves, such as a row that is missing."""
    if rows.empty:
        yield "no epochs"
        return
    other = [(place, epoch) for place, epoch in enumerate(rows["epoch"]) if epoch != place]
    if other:
        yield f"epochs are not 0, 1, 2, ...: found {other[0][1]:.0f} where {other[0][0]} belongs"
    for name in ("training_time", "test_time", "iou"):
        values = rows[name].unique()
        if len(values) > 1:
            yield f"{name} is of the whole run, but has {len(values)} values: {values[0]}, {values[1]}"
    yield from _lost_rows(rows)


def _lost_rows(rows: pd.DataFrame) -> Iterator[str]:
    """Whole rows that a cut took, told by the time of the whole run and the schedule of the learning rate.

    The published PyTorch logs state 0.06 to 0.07 s more than their 200 epochs take. Half the shortest epoch
    is allowed, so that the loss of any row shows that is not itself so much shorter than all others. Logs of
    the TensorFlow sibling state up to 24 s more: where the learning rate tells that every epoch is there,
    such a time is no lost row.
    """
    stated = rows["training_time"].iloc[0]
    took = f"the epochs take {rows['time_per_epoch'].sum():.3f} s in all, training_time is {stated} s"
    if seconds_outside(rows) < -_TIME_ROUNDING_SECONDS * (len(rows) + 1):
        yield f"{took}: both cannot be of one run in seconds"
    elif not sum_is_whole(rows):
        yield from (f"{took}: {reason}" for reason in _not_told_by_rate(rows))


def _not_told_by_rate(rows: pd.DataFrame) -> Iterator[str]:
    """Yield why the learning rate does not tell that no row is missing."""
    asked = epochs_asked(rows["lr"].tolist())
    outside = seconds_outside(rows) / rows["training_time"].iloc[0]
    if asked is None:
        yield "rows are missing, or lr is not of the reference's schedule, which would tell"
    elif asked != len(rows):
        yield f"rows are missing: lr tells {asked} epochs, found {len(rows)}"
    elif outside > LARGEST_OUTSIDE:
        accepted = f"at most {100 * LARGEST_OUTSIDE:.0f} % is accepted"
        yield f"{100 * outside:.1f} % of the training is in no epoch, {accepted}"


def sum_is_whole(rows: pd.DataFrame) -> bool:
    """Return whether the epochs add up to the time of the whole run: no row can be missing."""
    return bool(seconds_outside(rows) <= rows["time_per_epoch"].min() / 2)


def seconds_outside(rows: pd.DataFrame) -> float:
    """Return the seconds of the training that are in no epoch."""
    return float(rows["training_time"].iloc[0] - rows["time_per_epoch"].sum())
