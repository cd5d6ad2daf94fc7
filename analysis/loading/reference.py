"""Logs in the older CSV layout, read strictly, into the same tables as records.

`log_N.csv` is native DDP on N workers, `log_hvd_N.csv` Horovod. One row per epoch; the last three
columns are of the whole run and repeat in every row.

The statistics are those of the published table: the first five epochs are the warm-up, an epoch lasts
what the median of the others lasts, and throughput is one over it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from analysis.loading.load import tidy
from analysis.loading.measured import Columns
from analysis.loading.older_layout import Row, read_rows
from analysis.loading.runs import printable
from analysis.study import (
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    NAN,
    LeftOut,
    Run,
    Study,
    left_out_table,
    run_table,
)
from unet_scaling.config import FRAMEWORKS, Framework
from unet_scaling.errors import UserError

FILE_NAME = re.compile(r"log_(?P<horovod>hvd_)?(?P<workers>[1-9][0-9]{0,5})\.csv")
WARMUP_EPOCHS = 5
ENOUGH_EPOCHS = 2 * WARMUP_EPOCHS
CANNOT_SAY = (
    "images per epoch are not recorded: throughput is in epochs per second (one over the median epoch, "
    "without the first 5 epochs), and epochs of different worker counts may differ in images",
    "one run per point: no interval, so no difference can be called significant",
    "no provenance: code, versions, seeds, hosts, devices and cores are unknown, "
    "so nothing says whether these runs may be compared",
    "the test images of each IoU are unknown: in the published study they were a subset "
    "that shrank with the workers, so its IoU values cannot be compared",
)


@dataclass(frozen=True)
class Log:
    """One usable log."""

    name: str
    framework: Framework
    workers: int
    rows: Sequence[Row]

    @property
    def warmup_epochs(self) -> int:
        """The published five, or the first alone in a log that would have too few left."""
        return WARMUP_EPOCHS if len(self.rows) >= ENOUGH_EPOCHS else 1


def load_reference(folder: Path) -> Study:
    """Read every log of a folder, of any number of workers.

    Raises UserError where the folder is missing or has no such log.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give one with log_N.csv and log_hvd_N.csv")
    paths = sorted(folder.glob("log*.csv"))
    if not paths:
        raise UserError(f"{folder} has no log_N.csv or log_hvd_N.csv; records are read without --reference")
    found = [read_log(path) for path in paths]
    logs = [log for log in found if isinstance(log, Log)]
    logs.sort(key=lambda log: (FRAMEWORKS.index(log.framework), log.workers))
    return Study(
        name=folder.resolve().name,
        runs=run_table([_run(log) for log in logs]),
        epochs=tidy([(log.name, _epochs(log)) for log in logs], EPOCH_COLUMNS),
        evaluations=tidy([(log.name, _evaluation(log)) for log in logs], EVALUATION_COLUMNS),
        left_out=left_out_table([left for left in found if isinstance(left, LeftOut)]),
        headers={},
        throughput="epochs_per_second",
        unit="epochs / s",
        iou_scope="test images unknown",
        notes=(*CANNOT_SAY, *_short_logs(logs)),
        provenance_known=False,
    )


def _short_logs(logs: Sequence[Log]) -> Iterator[str]:
    names = [f"{log.name} ({len(log.rows)} epochs)" for log in logs if log.warmup_epochs < WARMUP_EPOCHS]
    if names:
        yield f"of short logs only the first epoch is left out as warm-up: {', '.join(names)}"


def read_log(path: Path) -> Log | LeftOut:
    """The run in one log, or the problems that forbid to use it, with file and line."""
    file = FILE_NAME.fullmatch(path.name)
    if file is None:
        return _damaged(path, f"{path}: the name is neither log_N.csv nor log_hvd_N.csv")
    try:
        rows, problems = read_rows(path)
    except OSError as error:
        return _damaged(path, f"{path}: {error.strerror}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return _damaged(path, problems[0] + more)
    framework: Framework = "horovod" if file["horovod"] else "pytorch_native"
    workers = int(file["workers"])
    if len(rows) <= 1:
        reason = f"{len(rows)} epochs, none after the warm-up"
        return LeftOut(path.name, "no throughput", reason, framework, workers, 1)
    return Log(path.name, framework, workers, rows)


def _damaged(path: Path, reason: str) -> LeftOut:
    """The name of a damaged log is still what says its framework and workers, where it says any."""
    name = printable(path.name)
    file = FILE_NAME.fullmatch(path.name)
    if file is None:
        return LeftOut(name, "damaged", printable(reason))
    framework: Framework = "horovod" if file["horovod"] else "pytorch_native"
    return LeftOut(name, "damaged", printable(reason), framework, int(file["workers"]), 1)


def _epochs(log: Log) -> Columns:
    """What the layout has of EPOCH_COLUMNS; the rest is not known."""
    unknown = np.full(len(log.rows), NAN)
    return {
        "epoch": np.array([row.epoch for row in log.rows]),
        "seconds": np.array([row.time_per_epoch for row in log.rows]),
        "fastest_worker_seconds": unknown,
        "images": unknown,
        "steps": unknown,
        "loss": np.array([row.loss for row in log.rows]),
        "learning_rate": np.array([row.lr for row in log.rows]),
        "warmup": np.arange(len(log.rows)) < log.warmup_epochs,
    }


def _evaluation(log: Log) -> Columns:
    """The one evaluation of a log, after its last epoch; counts and images are not known."""
    last = log.rows[-1]
    known = {
        "epochs": len(log.rows),
        "training_seconds": last.training_time,
        "iou": last.iou,
        "seconds": last.test_time,
    }
    return {name: np.array([known.get(name, NAN)]) for name in EVALUATION_COLUMNS[1:]}


def _run(log: Log) -> Run:
    used = log.rows[log.warmup_epochs :]
    seconds_per_epoch = median(row.time_per_epoch for row in used)
    return Run(
        run=log.name,
        framework=log.framework,
        workers=log.workers,
        repeat=1,
        seed=None,
        options="",
        knobs="",
        images_per_second=NAN,
        epochs_per_second=1 / seconds_per_epoch,
        epochs_used=len(used),
        seconds_per_epoch=seconds_per_epoch,
        images_per_epoch=NAN,
        steps_per_epoch=NAN,
        step_seconds=NAN,
        loss=used[-1].loss,
        iou=log.rows[0].iou,
        dice=NAN,
        test_images=NAN,
        training_seconds=log.rows[0].training_time,
        hosts="",
        nodes=NAN,
        devices="",
        cores_per_worker="",
        started_utc="",
    )
