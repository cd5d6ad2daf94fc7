"""The folder of a study: its runs, the order in which they are launched, and what each has come to."""

import fcntl
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from unet_scaling.config import PROJECT, Point, Study, read_point
from unet_scaling.errors import UserError
from unet_scaling.files import write_atomically
from unet_scaling.record import RECORD_NAME, read_record

POINT_NAME = "point.json"


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
                folder.mkdir(parents=True, exist_ok=True)
                if not (folder / POINT_NAME).exists():
                    write_atomically(folder / POINT_NAME, point.model_dump_json(indent=2) + "\n")
            except OSError as error:
                raise UserError(f"the run folder {folder} cannot be made: {error}") from None
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
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise UserError(f"the study folder {self.path} cannot be written: {error}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another submission is working on {self.path}; wait for it to end") from None
            yield

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
        reason = failure_reason(folder)
        return RunState("failed", reason) if reason else RunState("waiting")
    record = read_record(record_path)
    if record.complete:
        return RunState("complete")
    if record.end is not None and not record.problems:
        return RunState(record.end.status, record.end.reason)
    if record.damaged:
        return RunState("invalid", record.problems[0])
    return RunState("failed", failure_reason(folder) or "the record has no end; see output.log")


def failure_reason(folder: Path) -> str:
    """The message of the first worker that failed in the newest attempt; empty where none left one."""
    reports = [json.loads(path.read_text()) for path in folder.glob("error.attempt*.worker*.json")]
    if not reports:
        return ""
    newest = max(report["attempt"] for report in reports)
    first = min(
        (report for report in reports if report["attempt"] == newest), key=lambda report: report["utc"]
    )
    return f"worker {first['worker']} on {first['host']}: {first['message']}"


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
