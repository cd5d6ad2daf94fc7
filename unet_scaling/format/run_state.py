"""The states of a run, and the state that its folder shows: for submission, status and analysis alike."""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Literal, Self

from unet_scaling.base.errors import (
    BUS_ERROR,
    EXIT_BAD_DATA,
    UserError,
    WaitedTooLongError,
    error_file_name,
    reason_of,
)
from unet_scaling.base.files import read_json_with_checksum, read_regular
from unet_scaling.format.record import (
    RECORD_NAME,
    Record,
    attempt_records,
    disturbed_records,
    read_any_record,
    read_record,
)
from unet_scaling.format.record_lines import FailureReport
from unet_scaling.study.config import RunConfig
from unet_scaling.study.study_file import CONFIG_NAME, JOB_NAME, OUTPUT_NAME, config_path, read_config

State = Literal[
    "waiting",  # not started yet
    "queued",  # Slurm holds its job
    "running",
    "complete",  # the record says so, and is of the configuration in the folder
    "resumable",  # stopped in order, or interrupted from outside: the next attempt goes on
    "diverged",  # a loss or weight was not finite
    "failed",
    "cancelled",  # the user ended its job
    "invalid",  # the record is damaged, or contradicts the configuration or Slurm
    "rejected",  # Slurm refused the job
    "lost",  # Slurm does not know the job, and it left no record
    "unknown",  # Slurm does not answer
]
# Why the analysis leaves out a run that is complete: no epoch after the warm-up, or no fair comparison.
Exclusion = Literal["no throughput", "refused"]

IN_QUEUE: tuple[State, ...] = ("queued", "running")
ACTIVE: tuple[State, ...] = (*IN_QUEUE, "unknown")
# A further submission of the run is what the user wants.
SUBMITTABLE: tuple[State, ...] = (
    "waiting", "rejected", "failed", "cancelled", "resumable", "lost", "invalid",
)  # fmt: skip
STATE_OF_END: Mapping[str, State] = {"complete": "complete", "diverged": "diverged", "stopped": "resumable"}
# How launchers name the signal that ended a worker: MPICH, Intel MPI and Open MPI by number, srun in words.
SIGNALLED = re.compile(
    r"(?i)(?:exit string:.*\(signal|signal:|on signal) (\d+)"
    r"|: tasks? [\d,-]+: (Killed|Out Of Memory|Segmentation fault)"
)
# The stacks of all threads of some workers, and what their launcher adds.
OUTPUT_END_BYTES = 2**16
WAITED = WaitedTooLongError.__name__
# How pydantic reports a record of another format.
OTHER_FORMAT = "header.format: Input should be"


@dataclass(frozen=True)
class RunState:
    """The state of a run, and why."""

    state: State
    reason: str = ""

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"


@dataclass(frozen=True)
class RecordedRun:
    """A run folder as it was read: its configuration, its record if any, and the state that they show."""

    folder: Path
    config: RunConfig
    record: Record | None
    state: RunState

    def require_known_format(self) -> Self:
        """Return it; UserError for a record of an earlier format, which may be complete: it stays."""
        if OTHER_FORMAT in self.state.reason:
            cure = "use the version that wrote it, or another name for this study (--name)"
            raise UserError(f"{self.state.reason}; {cure}", EXIT_BAD_DATA)
        return self


def run_state(folder: Path) -> RunState:
    """Return the state that the files of a run folder show, without Slurm."""
    try:
        config = read_config(config_path(folder))
    except UserError as error:
        return RunState("invalid", str(error))
    return recorded_run(folder, config).state


def recorded_run(folder: Path, config: RunConfig) -> RecordedRun:
    """Read the record in the folder of this run and judge it; the folder may not exist yet."""
    try:
        record = read_record(folder / RECORD_NAME)
    except OSError as error:
        # A link may lead to a record on a disk that is not there now.
        if isinstance(error, FileNotFoundError) and not (folder / RECORD_NAME).is_symlink():
            return RecordedRun(folder, config, None, _state_without_record(folder))
        return RecordedRun(folder, config, None, RunState("invalid", f"{error.filename}: {error.strerror}"))
    return RecordedRun(folder, config, record, _state_by_record(folder, config, record))


def last_complete(run: RecordedRun) -> RecordedRun:
    """Return the run by its record that was set aside to be measured again, until the new one is complete.

    A launch that diverged since is a result, too: then the run is returned as it is.
    """
    if run.state.state in ("complete", "diverged"):
        return run
    complete: dict[str, RecordedRun] = {}
    for path in (*attempt_records(run.folder), *disturbed_records(run.folder)):
        record = read_any_record(path)
        state = _state_by_record(run.folder, run.config, record)
        if record.header and state.is_complete:
            complete[record.header.started_utc] = replace(run, record=record, state=state)
    return complete[max(complete)] if complete else run


def first_problem(problems: tuple[str, ...]) -> str:
    """Return the first of several problems, and how many more there are."""
    return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _state_by_record(folder: Path, config: RunConfig, record: Record) -> RunState:
    if record.damaged:
        return RunState("invalid", first_problem(record.problems))
    header = record.header
    if header and header.config != config and header.config_sha256 != config.digest():
        return RunState("invalid", f"{record.path} is of another configuration than {CONFIG_NAME} beside it")
    if record.end is None or record.problems:
        return RunState("failed", failure_reason(folder) or _why_no_end(folder, record))
    state = STATE_OF_END[record.end.status]
    if state == "complete":
        return RunState(state)
    reason = record.end.reason or "no reason recorded"
    later = failure_reason(folder, after=header.attempt if header else 0)
    return RunState(state, f"{reason}; a later attempt failed: {later}" if later else reason)


def _state_without_record(folder: Path) -> RunState:
    reason = failure_reason(folder)
    output = folder / OUTPUT_NAME
    # The output of a job of Slurm may hold something before any worker starts.
    if not reason and not (folder / JOB_NAME).exists() and output.exists() and output.stat().st_size > 0:
        reason = _why_killed(folder) or f"the workers left neither a record nor a reason; see {OUTPUT_NAME}"
    return RunState("failed", reason) if reason else RunState("waiting")


def _why_no_end(folder: Path, record: Record) -> str:
    """Return what can be said where no worker reported why it ended."""
    if BUS_ERROR.encode() in _end_of_output(folder):
        return (
            "a worker ended by a bus error: a file that was mapped into memory was cut while it was in use, "
            f"or /dev/shm is full; see {OUTPUT_NAME}"
        )
    if record.problems or record.header is None:
        return first_problem(record.problems)
    killed = _why_killed(folder)
    if killed:
        return killed
    epochs = f"{len(record.epochs)} of {record.header.config.training.epochs} epochs"
    first = record.header.workers[0]
    runs = f"still runs (worker 0 was process {first.process} on {first.host})"
    return f"no end line after {epochs}: it failed or {runs}; see {OUTPUT_NAME}"


def _why_killed(folder: Path) -> str:
    """Return which signal ended a worker, as its launcher says; empty where it says none."""
    number, word = ([("", ""), *SIGNALLED.findall(_end_of_output(folder).decode(errors="replace"))])[-1]
    name = signal.strsignal(int(number)) if number else word
    if not name:
        return ""
    advice = "fewer workers per host, or a smaller batch with training.accumulate"
    cause = f": perhaps the host lacked memory: {advice}" if name in ("Killed", "Out Of Memory") else ""
    return f"a worker was ended by a signal ({name}){cause}; see {OUTPUT_NAME}"


def _end_of_output(folder: Path) -> bytes:
    try:
        return read_regular(folder / OUTPUT_NAME)[-OUTPUT_END_BYTES:]
    except OSError:
        return b""


def failure_reason(folder: Path, after: int = 0) -> str:
    """Return the message of the first worker that failed in the newest attempt; empty where none left one.

    `after` leaves out the attempts up to that one.
    """
    try:
        paths = sorted(folder.glob(error_file_name("*", "*")))
        every = [FailureReport.model_validate(read_json_with_checksum(path)) for path in paths]
    except (OSError, ValueError) as error:
        place = getattr(error, "filename", None) or folder
        return f"a report of a worker that failed in {place} cannot be read: {reason_of(error)}"
    newest = max((report.attempt for report in every), default=0)
    if newest <= after:
        return ""
    reports = [report for report in every if report.attempt == newest]
    first = min(reports, key=attrgetter("utc"))
    reason = f"worker {first.worker} on {first.host}: {first.message}"
    if first.error != WAITED:
        return reason
    # The others waited for one of the workers that did not report waiting. A worker that was stopped may
    # still report its own end, which does not count here.
    waited = {report.worker for report in reports if report.error == WAITED}
    others = sorted(set(range(first.workers)) - waited)
    return f"{reason}; worker {', '.join(map(str, others))} did not report" if others else reason
