"""The folder of a study: its runs, the order in which they are launched, and what each has come to."""

import fcntl
import os
import random
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from unet_scaling.study.config import PROJECT, RunConfig, StudyConfig
from unet_scaling.study.errors import BUS_ERROR, UserError, WaitedTooLongError, report_name
from unet_scaling.study.files import (
    PRIVATE,
    open_to_append,
    read_json_with_checksum,
    write_json_with_checksum,
)
from unet_scaling.study.record import RECORD_NAME, read_record
from unet_scaling.study.study_file import CONFIG_NAME, PATH_KEYS, STUDY_NAME, read_config, recorded_study

JOB_NAME = "job.json"
OUTPUT_NAME = "output.log"
# The stacks of all threads of some workers, and what their launcher adds.
LAST_WORDS_BYTES = 2**16
LOCK_NAME = ".lock"


@dataclass(frozen=True)
class RunState:
    """What a run has come to, by its record alone, and why."""

    state: str
    reason: str = ""


@dataclass(frozen=True)
class StudyFolder:
    """`logs/<study>/` with one folder per run."""

    path: Path
    study: StudyConfig

    def prepare(self) -> list[RunConfig]:
        """Make the run folders that are missing; return all points in the order to launch them.

        Raises UserError where a folder holds a run of another configuration, and changes none then.
        """
        configs = in_launch_order(self.study)
        self.require_same(configs)
        for config in configs:
            folder = self.run_folder(config)
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                if not (folder / CONFIG_NAME).exists():
                    write_json_with_checksum(folder / CONFIG_NAME, config.model_dump(mode="json"))
            except OSError as error:
                raise UserError(f"the run folder {folder} cannot be made: {error}") from None
        write_json_with_checksum(self.path / STUDY_NAME, self.study.model_dump(mode="json"))
        return configs

    def run_folder(self, config: RunConfig) -> Path:
        return self.path / config.run

    def state(self, config: RunConfig) -> RunState:
        """`waiting`, `complete`, `diverged`, `invalid` or `failed`, with the reason."""
        return run_state(self.run_folder(config))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second launcher out of this study while the first one works on it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open_to_append(self.path / LOCK_NAME)
        except OSError as error:
            raise UserError(f"the study folder {self.path} cannot be written: {error}") from None
        with lock, ExitStack() as stack:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(_who_works_on(self.path)) from None
            except OSError:
                stack.enter_context(self._claimed())
            # Workers inherit it: where the launcher is killed, they keep others out as long as they live.
            os.set_inheritable(lock.fileno(), True)
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

    def require_same(self, configs: Sequence[RunConfig]) -> None:
        """Raise UserError where the folder holds a run of another configuration than its point now has."""
        for config in configs:
            path = self.run_folder(config) / CONFIG_NAME
            there = read_config(path) if path.exists() else config
            if there != config:
                key, was, now = _first_difference(there, config)
                raise UserError(
                    f"{path} holds another configuration: {key} is {was!r} there, {now!r} in the study; "
                    f"{_way_on(key, was)}give this study another name (--name), or move {self.path} away"
                )


def open_study_folder(path: Path, study: StudyConfig) -> StudyFolder:
    """Return the folder of a study; one that was renamed keeps the name that its runs were made with."""
    recorded = recorded_study(path)
    if recorded is not None and recorded.name != study.name:
        study = study.model_copy(update={"name": recorded.name})
    return StudyFolder(path, study)


def _who_works_on(path: Path) -> str:
    """Return in words which processes hold the lock of this study, and what to do."""
    holders = _holders(path / LOCK_NAME)
    if not holders:
        return f"another submission is working on {path}, perhaps on another machine; wait for it to end"
    named = ", ".join(f"{process} ({name})" for process, name in holders.items())
    return (
        f"another submission is working on {path}, or workers of one that was killed: processes {named} "
        f"on {socket.gethostname()}; wait for their end, or: kill {next(iter(holders))}"
    )


def _holders(lock: Path) -> dict[int, str]:
    """Return the processes of this machine that have the file open, the oldest first, with their names."""
    holders = {}
    for process in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        place = Path("/proc", str(process))
        with suppress(OSError):  # it has ended, or is another user's
            if any(link.samefile(lock) for link in (place / "fd").iterdir() if link.exists()):
                holders[process] = (place / "comm").read_text().strip()
    holders.pop(os.getpid(), None)
    return holders


def cores_per_worker(study: StudyConfig, cores: int) -> int:
    """Equal at every worker count: what the largest one leaves to each; a UserError where that is none."""
    largest = max(study.workers)
    if largest > cores:
        raise UserError(
            f"study {study.name}: workers = {largest} need {largest} cores, this machine gives {cores}; "
            f"the largest worker count here is {cores}"
        )
    return cores // largest


def in_launch_order(study: StudyConfig) -> list[RunConfig]:
    """Repeat by repeat; within a repeat shuffled, the same way each time, unless the study says otherwise.

    A slow drift of the machine then meets all points alike.
    """
    configs = study.configs()
    if study.order == "listed":
        return configs
    ordered: list[RunConfig] = []
    for repeat, group in groupby(configs, key=lambda config: config.repeat):
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
    return RunState("failed", failure_reason(folder) or _no_end(folder))


def _no_end(folder: Path) -> str:
    """Where no worker could say why it ended: what its last words on standard error mean, if anything."""
    output = folder / OUTPUT_NAME
    if output.exists() and BUS_ERROR.encode() in output.read_bytes()[-LAST_WORDS_BYTES:]:
        return (
            "a worker ended by a bus error: a file that was mapped into memory was cut while it was in use, "
            f"or /dev/shm is full; see {OUTPUT_NAME}"
        )
    return f"the record has no end; see {OUTPUT_NAME}"


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
    content = read_json_with_checksum(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no report")
    return content


def _silent(reports: Sequence[dict[str, Any]]) -> str:
    """Who did not say that it waited; a worker that was stopped may still report its own end."""
    waited = {told["worker"] for told in reports if told["error"] == WaitedTooLongError.__name__}
    others = sorted(set(range(reports[0]["workers"])) - waited)
    return f"; no such word from worker {', '.join(map(str, others))}" if others else ""


def _first_difference(there: RunConfig, asked: RunConfig) -> tuple[str, object, object]:
    """Return the first key in which two points differ, with both values."""
    one, other = _flat(there.model_dump()), _flat(asked.model_dump())
    key = next(key for key in other if one.get(key) != other[key])
    return key, one.get(key), other[key]


def _way_on(key: str, was: object) -> str:
    """Return how runs that were made for another path can go on; empty where no path differs."""
    if tuple(key.split(".")) not in PATH_KEYS:
        return ""
    return (
        f"to go on with these runs, let {was} lead to the same images (a link will do) "
        f"and add --set {key}={was}; else "
    )


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
