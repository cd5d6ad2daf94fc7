"""From the records of a study's folder to two tables: the runs that can be used, and those left out."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median

import pandas as pd

from analysis.fairness import refusals, remarks
from analysis.options import flat_options, is_knob, label, order, shown, varying
from unet_scaling.config import FRAMEWORKS, Framework, Point, read_point
from unet_scaling.errors import UserError
from unet_scaling.record import RECORD_NAME, Header, Record, read_record

POINT_NAME = "point.json"
NAN = float("nan")


@dataclass(frozen=True)
class Run:
    """One usable run. What is not known is NaN or None, never 0.

    `options` and `knobs` are labels of what varies in the study, in both frameworks or in one only.
    """

    run: str
    framework: Framework
    workers: int
    repeat: int
    seed: int | None
    options: str
    knobs: str
    images_per_second: float
    epochs_per_second: float
    epochs_used: int
    seconds_per_epoch: float
    images_per_epoch: float
    loss: float
    iou: float
    dice: float
    training_seconds: float
    hosts: str
    devices: str
    cores_per_worker: str


@dataclass(frozen=True)
class LeftOut:
    """One run folder or log that is not used, and why. `state` is one word of it."""

    run: str
    state: str
    reason: str


@dataclass(frozen=True)
class Study:
    """The tables of a study and how to read them.

    runs        one row per `Run`, sorted by options, framework, knobs, workers, repeat; further columns
                are the study's axes, as text
    left_out    one row per `LeftOut`
    throughput  the column of `runs` that is the study's throughput; `unit` is its unit
    iou_scope   what the IoU was computed on
    notes       what the reader of any figure should know
    """

    name: str
    runs: pd.DataFrame
    left_out: pd.DataFrame
    axes: tuple[str, ...] = ()
    throughput: str = "images_per_second"
    unit: str = "images / s"
    iou_scope: str = "whole test set"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompleteRun:
    """A run whose record is complete and can give a throughput."""

    name: str
    header: Header
    record: Record


def load_study(folder: Path) -> Study:
    """Read every run of `logs/STUDY`. Nothing is inferred from folder names.

    Raises UserError where the folder is missing or has no run folders.
    """
    complete: dict[str, CompleteRun] = {}
    left_out: list[LeftOut] = []
    for path in run_folders(folder):
        found = read_run(path)
        if isinstance(found, CompleteRun):
            complete[found.name] = found
        else:
            left_out.append(found)
    complete, copies = _without_copies(_sorted(complete.values()))
    refused = refusals({name: run.header for name, run in complete.items()})
    left_out += copies + [LeftOut(run, "refused", reason) for run, reason in refused.items()]
    return _study(
        folder.resolve().name, [run for name, run in complete.items() if name not in refused], left_out
    )


def run_folders(folder: Path) -> list[Path]:
    """The folders below a study's that hold a point or a record."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the one of a study, such as logs/STUDY")
    names = (POINT_NAME, RECORD_NAME)
    found = sorted(path for path in folder.iterdir() if any((path / name).exists() for name in names))
    if not found:
        raise UserError(f"{folder} has no run folders; slurm/submission.sh STUDY.toml makes and submits them")
    return found


def read_run(folder: Path) -> CompleteRun | LeftOut:
    """The run in a folder, or why it cannot be used by itself."""
    try:
        point = read_point(folder / POINT_NAME)
        record = read_record(folder / RECORD_NAME)
    except UserError as error:
        return LeftOut(folder.name, "damaged", str(error))
    except FileNotFoundError:
        return LeftOut(folder.name, "no record", "no record yet: it has not started")
    except OSError as error:
        return LeftOut(folder.name, "damaged", f"{error.filename}: {error.strerror}")
    unusable = _unusable(point, record)
    if unusable:
        return LeftOut(folder.name, *unusable)
    assert record.header is not None
    return CompleteRun(folder.name, record.header, record)


def _unusable(point: Point, record: Record) -> tuple[str, str] | None:
    """(state, reason) of a record that gives no throughput of this point."""
    if record.problems:
        more = f" (and {len(record.problems) - 1} more)" if len(record.problems) > 1 else ""
        return "damaged" if record.damaged else "failed", record.problems[0] + more
    assert record.header is not None
    if record.header.point_sha256 != point.digest():
        return "damaged", f"{record.path} is of another configuration than {POINT_NAME} beside it"
    if record.end is None:
        asked = record.header.point.training.epochs
        return "failed", f"no end line after {len(record.epochs)} of {asked} epochs: it failed or still runs"
    if record.end.status != "complete":
        return record.end.status, f"{record.end.status}: {record.end.reason or 'no reason recorded'}"
    if all(epoch.warmup for epoch in record.epochs):
        return (
            "no throughput",
            f"{len(record.epochs)} epochs, none after the warm-up: train at least 2 epochs",
        )
    return None


def _sorted(runs: Iterable[CompleteRun]) -> list[CompleteRun]:
    """By options, framework, knobs, workers and repeat."""
    runs = list(runs)
    axes = varying([run.header.point for run in runs])
    shared, knobs = [axis for axis in axes if not is_knob(axis)], [axis for axis in axes if is_knob(axis)]

    def key(run: CompleteRun) -> tuple[object, ...]:
        point = run.header.point
        options = order(point, shared), FRAMEWORKS.index(point.framework), order(point, knobs)
        return *options, point.workers, point.repeat, run.name

    return sorted(runs, key=key)


def _without_copies(runs: Sequence[CompleteRun]) -> tuple[dict[str, CompleteRun], list[LeftOut]]:
    """A repeat of a point counts once, however many folders hold it."""
    first: dict[Hashable, CompleteRun] = {}
    copies = []
    for run in runs:
        point = run.header.point
        identity = (point.framework, point.workers, point.repeat, tuple(flat_options(point).items()))
        kept = first.setdefault(identity, run)
        if kept is not run:
            copies.append(LeftOut(run.name, "refused", f"the same repeat of the same point as {kept.name}"))
    return {run.name: run for run in first.values()}, copies


def _study(name: str, runs: Sequence[CompleteRun], left_out: Sequence[LeftOut]) -> Study:
    axes = varying([run.header.point for run in runs])
    table = frame(Run, [_row(run, axes) for run in runs])
    for axis in axes:
        values = [flat_options(run.header.point) for run in runs]
        table[axis] = [shown(options[axis]) if axis in options else None for options in values]
    return Study(
        name=name,
        runs=table,
        left_out=frame(LeftOut, sorted(left_out, key=lambda left: left.run)),
        axes=axes,
        notes=remarks([run.header for run in runs]),
    )


def frame(row: type[Run] | type[LeftOut], rows: Sequence[Run | LeftOut]) -> pd.DataFrame:
    """Rows as a table that has its columns even where there is no row."""
    table = pd.DataFrame([asdict(each) for each in rows], columns=[field.name for field in fields(row)])
    return table.astype({"seed": "Int64"}) if row is Run else table


def _row(run: CompleteRun, axes: Sequence[str]) -> Run:
    """One row of the table: throughput is images over seconds, both summed over the epochs in use."""
    header, point, result = run.header, run.header.point, run.record.results[-1]
    used = [epoch for epoch in run.record.epochs if not epoch.warmup]
    seconds = sum(epoch.seconds for epoch in used)
    images = sum(epoch.images for epoch in used)
    return Run(
        run=run.name,
        framework=point.framework,
        workers=point.workers,
        repeat=point.repeat,
        seed=point.seed,
        options=label(point, [axis for axis in axes if not is_knob(axis)]),
        knobs=label(point, [axis for axis in axes if is_knob(axis)]),
        images_per_second=images / seconds,
        epochs_per_second=len(used) / seconds,
        epochs_used=len(used),
        seconds_per_epoch=median(epoch.seconds for epoch in used),
        images_per_epoch=images / len(used),
        loss=used[-1].loss,
        iou=NAN if result.iou is None else result.iou,
        dice=NAN if result.dice is None else result.dice,
        training_seconds=result.training_seconds,
        hosts=_distinct(worker.host for worker in header.workers),
        devices=_distinct(worker.device for worker in header.workers),
        cores_per_worker=_distinct(str(len(worker.cores)) for worker in header.workers),
    )


def _distinct(values: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(values))
