"""Logs in the older CSV layout, read strictly, into the same tables as records.

`log_N.csv` is native DDP on N workers, `log_hvd_N.csv` Horovod. One row per epoch; the last three
columns are of the whole run and repeat in every row.

The statistics are those of the published table: the first five epochs are the warm-up, an epoch lasts
what the median of the others lasts, and throughput is one over it, shown in epochs / h; or, where the images
and the batch are given, the images that its steps took over it.
"""

import re
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.loading.budget_columns import Columns
from analysis.loading.consistency import SHORTEST_STEP_SECONDS
from analysis.loading.epoch_work import EpochWork
from analysis.loading.older_layout import Log, read_rows
from analysis.loading.reference_notes import reference_notes
from analysis.loading.rows import tidy
from analysis.loading.runs import escape_unprintable
from analysis.study import (
    EPOCH_COLUMNS,
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
from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.errors import UserError

# A column of these logs' runs alone.
EPOCHS_PER_HOUR = "epochs_per_hour"
FILE_NAME = re.compile(r"log_(?P<horovod>hvd_)?(?P<workers>[1-9][0-9]{0,5})\.csv")


def load_reference(folder: Path, work: EpochWork | None = None, names: Names | None = None) -> Study:
    """Read every log of a folder, of any number of workers.

    With `work`, throughput is in images that the steps of an epoch took, otherwise in epochs. `names`: what
    the two arms are called. Raises UserError where the folder is missing or has no such log, or where an
    epoch of `work` would have no step.
    """
    logs, damaged = _read_logs(folder)
    if work:
        _require_steps(logs, work)
    arms = names or names_of()
    return Study(
        name=folder.resolve().name,
        runs=_with_epochs_per_hour(run_table([_run(log, work) for log in logs])),
        epochs=tidy([(log.name, _epochs(log, work)) for log in logs], EPOCH_COLUMNS),
        evaluations=tidy([(log.name, _evaluation(log)) for log in logs], EVALUATION_COLUMNS),
        left_out=left_out_table(damaged),
        headers={},
        names=arms,
        throughput="images_per_second" if work else EPOCHS_PER_HOUR,
        unit="images / s" if work else "epochs / h",
        iou_scope="test images unknown",
        notes=tuple(reference_notes(logs, work, arms)),
        provenance_known=False,
    )


def _with_epochs_per_hour(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the throughput that is shown: epochs of minutes are hardly any in a second."""
    return runs.assign(**{EPOCHS_PER_HOUR: SECONDS_PER_HOUR * runs["epochs_per_second"]})


def _read_logs(folder: Path) -> tuple[list[Log], list[LeftOut]]:
    """Return the logs of a folder by framework and workers, and those that cannot be used."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one with log_N.csv and log_hvd_N.csv")
    paths = sorted(folder.glob("log*.csv"))
    if not paths:
        raise UserError(f"{folder} has no log_N.csv or log_hvd_N.csv; records are read without --reference")
    read = [read_log(path) for path in paths]
    logs = [log for log in read if isinstance(log, Log)]
    logs.sort(key=lambda log: (FRAMEWORKS.index(log.framework), log.workers))
    return logs, [left_out for left_out in read if isinstance(left_out, LeftOut)]


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


def read_log(path: Path) -> Log | LeftOut:
    """Return the run in one log, or the problems that forbid to use it, with file and line."""
    file = FILE_NAME.fullmatch(path.name)
    if file is None:
        reason = f"{path}: the name is neither log_N.csv nor log_hvd_N.csv"
        return LeftOut(escape_unprintable(path.name), "invalid", escape_unprintable(reason))
    # The name of a damaged log is still what says its framework and workers.
    framework: Framework = "horovod" if file["horovod"] else "pytorch_native"
    point = (framework, int(file["workers"]))
    try:
        rows = _rows_of_file(path)
    except UserError as error:
        return LeftOut(path.name, "invalid", escape_unprintable(str(error)), *point, 1)
    if len(rows) <= 1:
        reason = f"{len(rows)} epochs, none after the warm-up"
        return LeftOut(path.name, "no throughput", reason, *point, 1)
    return Log(path.name, *point, rows)


def _rows_of_file(path: Path) -> pd.DataFrame:
    """Return the rows of what should be a regular file: a pipe would be waited for."""
    try:
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise UserError(f"{path}: no regular file")
        return read_rows(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _epochs(log: Log, work: EpochWork | None) -> Columns:
    """Return what the layout has of EPOCH_COLUMNS, and what is stated; the rest is not known."""
    epochs = np.arange(len(log.rows))
    recorded = {"seconds": "time_per_epoch", "loss": "loss", "learning_rate": "lr"}
    stated = {
        "fastest_worker_seconds": NAN,
        "images": work.images_trained(log.workers) if work else NAN,
        "steps": work.steps(log.workers) if work else NAN,
        "stalled": False,
    }
    columns: Columns = {"epoch": epochs, "warmup": epochs < log.warmup_epochs}
    columns |= {name: log.rows[column].to_numpy() for name, column in recorded.items()}
    return columns | {name: np.full(len(epochs), value) for name, value in stated.items()}


def _evaluation(log: Log) -> Columns:
    """Return the one evaluation of a log, after its last epoch; counts and images are not known."""
    last = log.rows.iloc[-1]
    known = {
        "epochs": len(log.rows),
        "training_seconds": last["training_time"],
        "iou": last["iou"],
        "seconds": last["test_time"],
    }
    return {name: np.array([known.get(name, NAN)]) for name in EVALUATION_COLUMNS[1:]}


def _run(log: Log, work: EpochWork | None) -> Run:
    images = work.images_trained(log.workers) if work else NAN
    steps = work.steps(log.workers) if work else NAN
    return Run(
        run=log.name,
        framework=log.framework,
        workers=log.workers,
        repeat=1,
        seed=None,
        options="",
        knobs="",
        images_per_second=images / log.seconds_per_epoch,
        epochs_per_second=1 / log.seconds_per_epoch,
        epochs_used=len(log.used),
        seconds_per_epoch=log.seconds_per_epoch,
        images_per_epoch=images,
        steps_per_epoch=steps,
        step_seconds=log.seconds_per_epoch / steps,
        loss=float(log.used["loss"].iloc[-1]),
        iou=float(log.rows["iou"].iloc[0]),
        dice=NAN,
        test_images=NAN,
        training_seconds=float(log.rows["training_time"].iloc[0]),
        hosts="",
        nodes=NAN,
        devices="",
        cores_per_worker="",
        started_utc="",
    )
