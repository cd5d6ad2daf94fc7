"""Logs in the older CSV layout, read strictly, into the same tables as records.

`log_N.csv` is native DDP on N workers, `log_hvd_N.csv` Horovod. One row per epoch; the last three columns are
of the whole run and repeat in every row. The layout has neither an end nor checksums: lost rows show by the
time of the whole run, and by the places where the learning rate drops; a digit that was changed into another
digit cannot be told.

The statistics are those of the published table: the first five epochs are the warm-up, an epoch lasts what
the median of the others lasts, and throughput is one over it, shown in epochs / h; or, where the images and
the batch are given, the images that its steps took over it.
"""

import math
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.read.impossible import SHORTEST_STEP_SECONDS
from analysis.read.records import Columns, escape_unprintable, row_table, stacked_columns
from analysis.study import (
    EPOCH_COLUMNS,
    EPOCHS_PER_HOUR,
    EVALUATION_COLUMNS,
    NAN,
    SECONDS_PER_HOUR,
    LeftOut,
    Names,
    Run,
    Study,
    left_out_table,
    names_of,
    run_table,
)
from analysis.text import lines
from unet_scaling.base.errors import UserError
from unet_scaling.base.files import read_regular
from unet_scaling.format.older_log import OLDER_LOG_HEADER
from unet_scaling.format.run_state import first_problem
from unet_scaling.study.config import FRAMEWORKS, Framework

# A column of these logs' runs alone: epochs of minutes are hardly any in a second.
FILE_NAME = re.compile(r"log_(?P<horovod>hvd_)?(?P<workers>[1-9][0-9]{0,5})\.csv")
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# What a legend and a column of a table have room for.
LONGEST_NAME_CHARACTERS = 30
# Of images: more than any data set has, and few enough that products stay exact.
_MOST_IMAGES = 10**9
# Of any number: far beyond each of them, and no sum or axis of a figure overflows.
_LARGEST = 1e12
_ABOVE_ZERO = 1 / _LARGEST
# Of each column the least and the largest value; times in seconds, of which six digits are written.
_LIMITS = {
    "time_per_epoch": (1e-6, _LARGEST),
    "loss": (-_LARGEST, _LARGEST),
    "lr": (_ABOVE_ZERO, _LARGEST),
    "training_time": (_ABOVE_ZERO, _LARGEST),
    "test_time": (0.0, _LARGEST),
    "iou": (0.0, 1.0),
}
# Times and rates are written with six decimals: each is off by up to half of the last.
_ROUNDING = 0.5e-6
# Of a sum of rounded numbers.
_SLACK = 1e-12
# Share of the training time outside epochs. The TensorFlow sibling's runs have up to 2.8 %; at 5 % of 200
# epochs ten whole epochs could hide, and only the learning rate speaks against it.
LARGEST_OUTSIDE = 0.05
# The reference study halves the rate at these shares of its epochs; at 0.75 a sibling of it one epoch later.
_DROP_SHARES = (0.4, 0.6, 0.75)
# As in the published table.
WARMUP_EPOCHS = 5


@dataclass(frozen=True)
class EpochWork:
    """Steps and images of an epoch, which the layout does not record.

    images  of an epoch over all workers, every pass over the training images counted
    batch   images of a worker's step

    As in the reference study, a worker takes its share of the images, rounded up, in full batches, and drops
    the rest: at 1,792 images and a batch of 16, 112 steps on 1 worker, 56 on 2, 18 on 6, 8 on 14.
    """

    images: int
    batch: int

    def steps(self, workers: int) -> int:
        """Return the steps of an epoch."""
        return -(-self.images // workers) // self.batch


@dataclass(frozen=True)
class Log:
    """One usable log; `rows` has one row per epoch: epoch, and the columns of _LIMITS."""

    name: str
    framework: Framework
    workers: int
    rows: pd.DataFrame

    @property
    def warmup_epochs(self) -> int:
        """The published five, or the first alone in a log that would have fewer left."""
        return WARMUP_EPOCHS if len(self.rows) >= 2 * WARMUP_EPOCHS else 1

    @property
    def used(self) -> pd.DataFrame:
        """The epochs after the warm-up."""
        return self.rows.iloc[self.warmup_epochs :]

    @property
    def seconds_per_epoch(self) -> float:
        """The median seconds of the epochs after the warm-up, as in the published table."""
        return float(self.used["time_per_epoch"].median())


def arm_names(text: str) -> Mapping[Framework, str]:
    """Return the two names in a text like "MirroredStrategy,Horovod": of log_N.csv, then of log_hvd_N.csv.

    Raises UserError where they are not two different names, printable and not too long.
    """
    names = [part.strip() for part in text.split(",")]
    allowed = 'give two different names without semicolon, as in --names "MirroredStrategy,Horovod"'
    if len(names) != len(FRAMEWORKS):
        raise UserError(f"--names has {len(names)} names: {text!r}; {allowed}")
    for name in names:
        if ";" in name or not name.isprintable() or not 1 <= len(name) <= LONGEST_NAME_CHARACTERS:
            raise UserError(
                f"--names: {name!r} is not 1 to {LONGEST_NAME_CHARACTERS} printable characters; {allowed}"
            )
    if names[0].casefold() == names[1].casefold():
        raise UserError(f"--names: both arms are called {names[0]!r}; {allowed}")
    return dict(zip(FRAMEWORKS, names, strict=True))


def epoch_work(images: int | None, batch: int | None) -> EpochWork | None:
    """Return what --images and --batch state, or None where neither is given.

    Raises UserError where one is missing, or is no count.
    """
    if images is None and batch is None:
        return None
    if images is None or batch is None:
        raise UserError("--images and --batch are given together: steps need both")
    for option, value in (("--images", images), ("--batch", batch)):
        if not 1 <= value <= _MOST_IMAGES:
            raise UserError(f"{option} is {value}, it must be from 1 to {_MOST_IMAGES:,}")
    return EpochWork(images, batch)


def load_reference(folder: Path, work: EpochWork | None = None, names: Names | None = None) -> Study:
    """Read every log of a folder, of any number of workers.

    With `work`, throughput is in images that the steps of an epoch took, otherwise in epochs. `names`: what
    the two arms are called. Raises UserError where the folder is missing or has no such log, or where an
    epoch of `work` would have no step.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one with log_N.csv and log_hvd_N.csv")
    paths = sorted(folder.glob("log*.csv"))
    if not paths:
        raise UserError(f"{folder} has no log_N.csv or log_hvd_N.csv; records are read without --reference")
    read = [_read_log(path) for path in paths]
    logs = [log for log in read if isinstance(log, Log)]
    logs.sort(key=lambda log: (FRAMEWORKS.index(log.framework), log.workers))
    if work:
        _require_steps(logs, work)
    runs = run_table([_run(log, work) for log in logs])
    arms = names or names_of()
    return Study(
        name=folder.resolve().name,
        runs=runs.assign(**{EPOCHS_PER_HOUR: SECONDS_PER_HOUR * runs["epochs_per_second"]}),
        epochs=stacked_columns({log.name: _epochs(log, work) for log in logs}, EPOCH_COLUMNS),
        evaluations=row_table({log.name: [_evaluation(log)] for log in logs}, EVALUATION_COLUMNS),
        left_out=left_out_table([left_out for left_out in read if isinstance(left_out, LeftOut)]),
        headers={},
        names=arms,
        throughput="images_per_second" if work else EPOCHS_PER_HOUR,
        unit="images / s" if work else "epochs / h",
        iou_scope="test images unknown",
        notes=tuple(_notes(logs, work)),
        provenance_known=False,
    )


def _require_steps(logs: Sequence[Log], work: EpochWork) -> None:
    """Raise UserError where an epoch of a log would have no step, or steps shorter than any can be."""
    for log in logs:
        steps = work.steps(log.workers)
        shortest = log.rows["time_per_epoch"].min()
        if steps == 0:
            share = f"the share of each of its {log.workers} workers in {work.images} images"
            raise UserError(
                f"{log.name}: {share} holds no full batch of {work.batch}; correct --images or --batch"
            )
        if shortest / steps < SHORTEST_STEP_SECONDS:
            raise UserError(
                f"{log.name}: {steps:,} steps in an epoch of {shortest:g} s are shorter than a step can be; "
                f"correct --images {work.images} or --batch {work.batch}"
            )


def _read_log(path: Path) -> Log | LeftOut:
    """Return the run in one log, or the problems that forbid to use it, with file and line."""
    file = FILE_NAME.fullmatch(path.name)
    if file is None:
        reason = f"{path}: the name is neither log_N.csv nor log_hvd_N.csv"
        return LeftOut(escape_unprintable(path.name), "invalid", escape_unprintable(reason))
    # The name of a damaged log is still what says its framework and workers.
    framework: Framework = "horovod" if file["horovod"] else "pytorch_native"
    point = (framework, int(file["workers"]))
    try:
        # A pipe would be waited for.
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise UserError(f"{path}: no regular file")
        rows = _read_rows(path)
    except (OSError, UserError) as error:
        reason = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return LeftOut(path.name, "invalid", escape_unprintable(reason), *point, 1)
    if len(rows) <= 1:
        reason = f"{len(rows)} epochs, none after the warm-up"
        return LeftOut(path.name, "no throughput", reason, *point, 1)
    return Log(path.name, *point, rows)


def _epochs(log: Log, work: EpochWork | None) -> Columns:
    """Return what the layout has of EPOCH_COLUMNS, and what is stated; the rest is not known."""
    epochs = np.arange(len(log.rows))
    recorded = {"seconds": "time_per_epoch", "loss": "loss", "learning_rate": "lr"}
    columns: Columns = {name: log.rows[column].to_numpy() for name, column in recorded.items()}
    stated = {"fastest_worker_seconds": NAN, "stalled": False, **_work_of(log, work)}
    columns |= {name: np.full(len(epochs), value) for name, value in stated.items()}
    return columns | {"epoch": epochs, "warmup": epochs < log.warmup_epochs}


def _work_of(log: Log, work: EpochWork | None) -> dict[str, float]:
    """Return steps of an epoch, and images that all workers together took in them."""
    if work is None:
        return {"images": NAN, "steps": NAN}
    steps = work.steps(log.workers)
    return {"images": steps * work.batch * log.workers, "steps": steps}


def _evaluation(log: Log) -> dict[str, Any]:
    """Return the one evaluation of a log, after its last epoch; counts and images are not known."""
    last = log.rows.iloc[-1]
    known = {"epochs": len(log.rows), "training_seconds": last["training_time"]}
    known |= {"iou": last["iou"], "seconds": last["test_time"]}
    return {name: known.get(name, NAN) for name in EVALUATION_COLUMNS[1:]}


def _run(log: Log, work: EpochWork | None) -> Run:
    images, steps = _work_of(log, work).values()
    return Run(
        run=log.name,
        framework=log.framework,
        workers=log.workers,
        repeat=1,
        images_per_second=images / log.seconds_per_epoch,
        epochs_per_second=1 / log.seconds_per_epoch,
        epochs_used=len(log.used),
        seconds_per_epoch=log.seconds_per_epoch,
        images_per_epoch=images,
        steps_per_epoch=steps,
        step_seconds=log.seconds_per_epoch / steps,
        loss=float(log.used["loss"].iloc[-1]),
        iou=float(log.rows["iou"].iloc[0]),
        training_seconds=float(log.rows["training_time"].iloc[0]),
    )


def _read_rows(path: Path) -> pd.DataFrame:
    """Return the rows of a log. Raises UserError with the first problem, its line, and how many more are."""
    # A carriage return alone is no end of a line; so marked it is no number.
    text = read_regular(path).decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\ufffd")
    lines = text.split("\n")
    if lines[0] != OLDER_LOG_HEADER:
        found = lines[0][:80] if text else "an empty file"
        raise UserError(f"{path}:1: the columns must be {OLDER_LOG_HEADER}, found {found}")
    if lines[-1]:
        raise UserError(f"{path}:{len(lines)}: the line is cut off")
    cells = [line.split(",") if line else [] for line in lines[1:-1]]
    problems = [
        f"{path}:{line}: {problem}" for line, row in enumerate(cells, start=2) for problem in _invalid(row)
    ]
    if problems:
        raise UserError(first_problem(tuple(problems)))
    rows = pd.DataFrame(cells, columns=["epoch", *_LIMITS]).astype(float)
    problems = [f"{path}: {problem}" for problem in _contradictions(rows)]
    if problems:
        raise UserError(first_problem(tuple(problems)))
    return rows


def _invalid(row: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the cells of a line."""
    if len(row) != 1 + len(_LIMITS):
        yield f"{len(row)} columns, expected {1 + len(_LIMITS)}"
        return
    epoch, *numbers = row
    if not epoch.isdecimal() or not epoch.isascii():
        yield f"the epoch is {epoch!r}, no whole number"
    for cell, (name, (least, most)) in zip(numbers, _LIMITS.items(), strict=True):
        value = float(cell) if NUMBER.fullmatch(cell) else math.nan
        if not math.isfinite(value):
            yield f"{name} is {cell!r}, no finite number"
        elif not least <= value <= most:
            yield f"{name} is {value}, it must be from {least:g} to {most:g}"


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
    """Yield that a cut took whole rows, told by the time of the whole run and the schedule of the rate.

    The published PyTorch logs state 0.06 to 0.07 s more than their 200 epochs take. Half the shortest epoch
    is allowed, so that the loss of any row shows that is not itself so much shorter than all others. Logs of
    the TensorFlow sibling state up to 24 s more: where the learning rate tells that every epoch is there,
    such a time is no lost row.
    """
    stated = rows["training_time"].iloc[0]
    took = f"the epochs take {rows['time_per_epoch'].sum():.3f} s in all, training_time is {stated} s"
    if _seconds_outside(rows) < -_ROUNDING * (len(rows) + 1):
        yield f"{took}: both cannot be of one run in seconds"
        return
    if _is_sum_whole(rows):
        return
    asked = _epochs_asked(rows["lr"].tolist())
    outside = _seconds_outside(rows) / stated
    if asked is None:
        yield f"{took}: rows are missing, or lr is not of the reference's schedule, which would tell"
    elif asked != len(rows):
        yield f"{took}: rows are missing: lr tells {asked} epochs, found {len(rows)}"
    elif outside > LARGEST_OUTSIDE:
        accepted = f"at most {100 * LARGEST_OUTSIDE:.0f} % is accepted"
        yield f"{took}: {100 * outside:.1f} % of the training is in no epoch, {accepted}"


def _is_sum_whole(rows: pd.DataFrame) -> bool:
    """Return whether the epochs add up to the time of the whole run: no row can be missing."""
    return bool(_seconds_outside(rows) <= rows["time_per_epoch"].min() / 2)


def _seconds_outside(rows: pd.DataFrame) -> float:
    """Return the seconds of the training that are in no epoch."""
    return float(rows["training_time"].iloc[0] - rows["time_per_epoch"].sum())


def _epochs_asked(rates: Sequence[float]) -> int | None:
    """Return the epochs that the reference's schedule tells, or None where the rates are not of it.

    `rates`: the learning rate of every epoch, in order. The first drop / 0.4 is what was asked for, where all
    three drops are there, each a halving at its place, and nothing else changes the rate but a rise to the
    scaled rate after the first epoch.
    """
    drops = [epoch for epoch in range(1, len(rates)) if rates[epoch] != rates[epoch - 1]]
    if drops[:1] == [1] and rates[1] > rates[0]:
        del drops[0]
    if len(drops) != len(_DROP_SHARES):
        return None
    if any(abs(2 * rates[place] - rates[place - 1]) > 3 * _ROUNDING + _SLACK for place in drops):
        return None
    epochs = round(drops[0] / _DROP_SHARES[0])
    first, second, third = (round(epochs * share, 6) for share in _DROP_SHARES)
    late = math.floor(third)
    return epochs if drops[:2] == [first, second] and drops[2] in (late, late + 1) else None


def _notes(logs: Sequence[Log], work: EpochWork | None) -> list[str]:
    """Return what these logs cannot say, what was assumed of them, and where they differ."""
    counts = sorted({log.workers for log in logs})
    outside = []
    for log in logs:
        if not _is_sum_whole(log.rows):
            seconds_outside = _seconds_outside(log.rows)
            share = 100 * seconds_outside / log.rows["training_time"].iloc[0]
            outside.append(f"{log.name} {seconds_outside:.1f} s ({share:.1f} %)")
    native = {log.workers: log for log in logs if log.framework == FRAMEWORKS[0]}
    pairs = [(native.get(log.workers), log) for log in logs if log.framework != FRAMEWORKS[0]]
    return lines(
        "notes",
        said="older",
        work=work,
        steps=[f"{work.steps(workers)} on {workers}" for workers in counts] if work else [],
        short=[f"{log.name} ({len(log.rows)} epochs)" for log in logs if log.warmup_epochs < WARMUP_EPOCHS],
        outside=outside,
        first_drop=_DROP_SHARES[0],
        differing=[
            f"{first.name} and {second.name} in {what}"
            for first, second in pairs
            if first and (what := _difference(first, second))
        ],
    )


def _difference(first: Log, second: Log) -> str:
    """Return in what two trainings on equal workers differ, as far as their logs show it."""
    if len(first.rows) != len(second.rows):
        return f"epochs ({len(first.rows)} and {len(second.rows)})"
    rates = [log.rows["lr"].to_numpy() for log in (first, second)]
    places = np.flatnonzero(rates[0] != rates[1])
    if not len(places):
        return ""
    place = places[0]
    return f"learning rate ({rates[0][place]:g} and {rates[1][place]:g} in epoch {place})"
