"""The folder of a study: its runs, the order in which they are launched, and what each has come to."""

import fcntl
import os
import random
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from unet_scaling.config import PROJECT, Point, Study
from unet_scaling.errors import UserError, WaitedTooLongError, report_name
from unet_scaling.files import PRIVATE, open_to_append, read_sealed, write_sealed
from unet_scaling.record import RECORD_NAME, read_record
from unet_scaling.study_file import POINT_NAME, STUDY_NAME, read_point

JOB_NAME = "job.json"
OUTPUT_NAME = "output.log"


@dataclass(frozen=True)
class RunState:
    """What a run has come to, by its record alone, and why."""

    state: str
    reason: str = ""


@dataclass(frozen=True)
class StudyFolder:
    """`logs/<study>/` with one folder per run."""

    path: Path
    study: Study

    def prepare(self) -> list[Point]:
        """Make the run folders that are missing; return all points in the order to launch them.

        Raises UserError where a folder holds a run of another configuration, and changes none then.
        """
        points = in_launch_order(self.study)
        for point in points:
            self._require_same(point)
        for point in points:
            folder = self.run_folder(point)
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                if not (folder / POINT_NAME).exists():
                    write_sealed(folder / POINT_NAME, point.model_dump(mode="json"))
            except OSError as error:
                raise UserError(f"the run folder {folder} cannot be made: {error}") from None
        write_sealed(self.path / STUDY_NAME, self.study.model_dump(mode="json"))
        return points

    def run_folder(self, point: Point) -> Path:
        return self.path / point.run

    def state(self, point: Point) -> RunState:
        """`waiting`, `complete`, `diverged`, `invalid` or `failed`, with the reason."""
        return run_state(self.run_folder(point))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second launcher out of this study while the first one works on it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open_to_append(self.path / ".lock")
        except OSError as error:
            raise UserError(f"the study folder {self.path} cannot be written: {error}") from None
        with lock, ExitStack() as stack:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another submission is working on {self.path}; wait for it to end") from None
            except OSError:
                stack.enter_context(self._claimed())
            yield

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """The same by a file, on a file system without locks: it outlives a process that is killed."""
        claim = self.path / ".claim"
        try:
            descriptor = os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        except FileExistsError:
            raise UserError(
                f"another submission, {claim.read_text()}, is working on {self.path}; "
                f"if it has died, remove {claim}"
            ) from None
        try:
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
            os.close(descriptor)
            yield
        finally:
            claim.unlink()

    def _require_same(self, point: Point) -> None:
        path = self.run_folder(point) / POINT_NAME
        if path.exists():
            there = read_point(path)
            if there != point:
                raise UserError(
                    f"{path} holds another configuration: {_first_difference(there, point)}; "
                    f"give this study another name (--name), or move {self.path} away"
                )


def in_launch_order(study: Study) -> list[Point]:
    """Repeat by repeat; within a repeat shuffled, the same way each time, unless the study says otherwise.

    A slow drift of the machine then meets all points alike.
    """
    points = study.points()
    if study.order == "listed":
        return points
    ordered: list[Point] = []
    for repeat, group in groupby(points, key=lambda point: point.repeat):
        block = list(group)
        random.Random(f"{study.seed} {repeat}").shuffle(block)  # noqa: S311  (no secret depends on it)
        ordered += block
    return ordered


def run_state(folder: Path) -> RunState:
    """What the run in this folder has come to, by its record."""
    record_path = folder / RECORD_NAME
    if not record_path.exists():
        reason = failure_reason(folder) or _silent_end(folder)
        return RunState("failed", reason) if reason else RunState("waiting")
    record = read_record(record_path)
    if record.complete:
        return RunState("complete")
    if record.end is not None and not record.problems:
        attempt = record.header.attempt if record.header else 0
        later = failure_reason(folder, after=attempt)
        reason = f"{record.end.reason}; a later attempt failed: {later}" if later else record.end.reason
        return RunState(record.end.status, reason)
    if record.damaged:
        return RunState("invalid", record.problems[0])
    return RunState("failed", failure_reason(folder) or "the record has no end; see output.log")


def failure_reason(folder: Path, after: int = 0) -> str:
    """The message of the first worker that failed in the newest attempt; empty where none left one.

    `after` leaves out the attempts up to that one.
    """
    try:
        reports = [_report(path) for path in sorted(folder.glob(report_name("*", "*")))]
    except (OSError, ValueError) as error:
        return f"a report of a worker that failed in {folder} cannot be read: {error}"
    newest = max((report["attempt"] for report in reports), default=0)
    if newest <= after:
        return ""
    told = sorted((report for report in reports if report["attempt"] == newest), key=lambda told: told["utc"])
    first = told[0]
    reason = f"worker {first['worker']} on {first['host']}: {first['message']}"
    return reason + _silent(told) if first["error"] == WaitedTooLongError.__name__ else reason


def _silent_end(folder: Path) -> str:
    """Where no job is to be asked: workers were started, and died before any could say why."""
    output = folder / OUTPUT_NAME
    started = output.exists() and output.stat().st_size > 0 and not (folder / JOB_NAME).exists()
    return f"the workers left neither a record nor a reason; see {OUTPUT_NAME}" if started else ""


def _report(path: Path) -> dict[str, Any]:
    content = read_sealed(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no report")
    return content


def _silent(reports: Sequence[dict[str, Any]]) -> str:
    """Who did not say that it waited; a worker that was stopped may still report its own end."""
    waited = {told["worker"] for told in reports if told["error"] == WaitedTooLongError.__name__}
    others = sorted(set(range(reports[0]["workers"])) - waited)
    return f"; no such word from worker {', '.join(map(str, others))}" if others else ""


def _first_difference(there: Point, asked: Point) -> str:
    """The first key in which two points differ, with both values."""
    one, other = _flat(there.model_dump()), _flat(asked.model_dump())
    key = next(key for key in other if one.get(key) != other[key])
    return f"{key} is {one.get(key)!r} there, {other[key]!r} in the study"


def _flat(table: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def logs_folder() -> Path:
    return PROJECT / "logs"


def main() -> int:
    """For job scripts: succeed when the run in the folder given is complete."""
    state = run_state(Path(sys.argv[1]))
    print(state.state, state.reason)
    return 0 if state.state == "complete" else 1


if __name__ == "__main__":
    sys.exit(main())
