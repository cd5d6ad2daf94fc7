"""The folder of a run: what to train is read from it, what happened is written into it.

point.json                    what to train; written by the submission
run.jsonl                     the record of the newest attempt
run.attempt1.jsonl, ...       records of earlier attempts that did not finish
error.attempt1.worker0.json   why a worker of an attempt failed
log.csv  weights.pt           the older study's log, the trained weights; of a complete run
"""

import argparse
import json
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from torch import nn

from unet_scaling import provenance
from unet_scaling.config import Point, read_point
from unet_scaling.data.loader import RunData
from unet_scaling.errors import EXIT_DIVERGED, UserError
from unet_scaling.files import write_atomically
from unet_scaling.record import (
    RECORD_NAME,
    End,
    Epoch,
    Header,
    Line,
    RecordWriter,
    Result,
    WorkerFacts,
    earlier_attempts,
    read_record,
    set_record_aside,
)
from unet_scaling.weights import save_weights, weights_sha256
from unet_scaling.worker import Group, meet


@dataclass(frozen=True)
class RunFolder:
    """A run that may start: its folder, its point, and which attempt this is (from 1)."""

    path: Path
    point: Point
    attempt: int

    @contextmanager
    def recording(self, group: Group) -> Iterator["Recording"]:
        """Record this attempt; a failure inside leaves its reason in the folder."""
        recording = Recording(self, group)
        try:
            recording.open()
            yield recording
        except Exception as error:
            recording.fail(error)
            raise


def open_run(description: str) -> RunFolder:
    """The run folder named by the command line; raises UserError where there is nothing to train."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "run_folder", type=Path, help="folder with a point.json, as slurm/submission.sh makes them"
    )
    path: Path = parser.parse_args().run_folder
    point = read_point(path / "point.json")
    record = path / RECORD_NAME
    if record.exists() and read_record(record).complete:
        raise UserError(f"{record} is complete; a completed run is never touched. Use another run folder")
    return RunFolder(path, point, attempt=earlier_attempts(path) + record.exists() + 1)


class Recording:
    """Writes the record on worker 0; on the other workers it only takes part in what all must do."""

    def __init__(self, run: RunFolder, group: Group) -> None:
        self._run = run
        self._group = group
        self._writer: RecordWriter | None = None
        self._facts: list[WorkerFacts] = []
        self.epochs: list[Epoch] = []

    def open(self) -> None:
        """Agree with the other workers that this is one run, then claim the record."""
        self._facts = meet(self._group, self._run.point)
        if self._group.rank == 0:
            self._writer = _claim_record(self._run)

    def begin(self, data: RunData, model: nn.Module) -> None:
        """Write the header. Raises UserError on all workers where they do not start from the same weights."""
        digests = self._group.gather_texts(weights_sha256(model))
        if len(set(digests)) > 1:
            raise UserError(f"the workers start from different weights: {', '.join(sorted(set(digests)))}")
        commit, dirty = provenance.commit()
        self._write(
            Header(
                point=self._run.point,
                point_sha256=self._run.point.digest(),
                attempt=self._run.attempt,
                started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
                commit=commit,
                dirty=dirty,
                versions=provenance.versions(),
                transport=self._group.transport,
                job=provenance.job(),
                manifest_sha256=data.manifest_sha256,
                train_images=data.train_images,
                test_images=len(data.test_pixels),
                initial_weights_sha256=digests[0],
                workers=self._facts,
            )
        )

    def epoch(self, epoch: Epoch) -> None:
        self.epochs.append(epoch)
        self._write(epoch)
        self._say(
            f"epoch {epoch.epoch + 1}/{self._run.point.training.epochs}  loss {epoch.loss:.4f}  "
            f"{epoch.seconds:.2f} s  {epoch.images / epoch.seconds:.1f} images/s  "
            f"rate {epoch.learning_rate:g}"
        )

    def result(self, result: Result) -> None:
        self._write(result)
        iou = "undefined" if result.iou is None else f"{result.iou:.4f}"
        self._say(f"after {result.epochs} epochs: IoU {iou} on {result.images} test images")

    def finish(self, model: nn.Module, result: Result) -> None:
        """Write the last result, what a complete run leaves, and then the line that says it is complete."""
        self.result(result)
        if self._writer is not None:
            save_weights(model, self._run.path / "weights.pt")
            write_atomically(self._run.path / "log.csv", older_log(self.epochs, result))
        self._write(End(status="complete"))
        # A worker that left earlier would have its launcher end worker 0 in the middle of this.
        self._group.wait_for_all()

    def fail(self, error: Exception) -> None:
        """Leave the reason in the folder. A folder that cannot be written does not hide the error."""
        try:
            if isinstance(error, UserError) and error.exit_code == EXIT_DIVERGED:
                self._write(End(status="diverged", reason=str(error)))
            path = self._run.path / f"error.attempt{self._run.attempt}.worker{self._group.rank}.json"
            write_atomically(path, json.dumps(self._failure(error), indent=2) + "\n")
        except OSError as problem:
            print(f"error: the reason could not be written: {problem}", file=sys.stderr, flush=True)

    def _failure(self, error: Exception) -> dict[str, object]:
        return {
            "attempt": self._run.attempt,
            "worker": self._group.rank,
            "host": socket.gethostname(),
            "utc": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "error": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc(),
        }

    def _write(self, line: Line) -> None:
        if self._writer is not None:
            self._writer.write(line)

    def _say(self, text: str) -> None:
        if self._group.rank == 0:
            print(text, flush=True)


def _claim_record(run: RunFolder) -> RecordWriter:
    record = run.path / RECORD_NAME
    try:
        if record.exists():
            set_record_aside(run.path)
        return RecordWriter(record)
    except OSError as error:
        raise UserError(f"the record cannot be written: {error}") from None


def older_log(epochs: list[Epoch], result: Result) -> str:
    """The older study's log.csv: one row per epoch, run-wide values repeated in each; seconds and rates."""
    iou = "" if result.iou is None else f"{result.iou:.6f}"
    rows = [
        f"{epoch.epoch},{epoch.seconds:.6f},{epoch.loss:.6f},{epoch.learning_rate:.6f},"
        f"{result.training_seconds:.6f},{result.seconds:.6f},{iou}"
        for epoch in epochs
    ]
    return "\n".join([",time_per_epoch,loss,lr,training_time,test_time,iou", *rows]) + "\n"
