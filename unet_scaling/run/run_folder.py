"""The folder of a run: its configuration is read from it, records and results are written into it.

config.json                    what to train; written by the submission
run.jsonl                     the record of the newest attempt
run.attempt1.jsonl, ...       records of earlier attempts that did not finish
error.attempt1.worker0.json   why a worker of an attempt failed
steps.parquet                 the phases of single steps; of a run whose budget was on
checkpoint-*.pt               from which the next attempt goes on; of a run that is not complete
checkpoints.attempt1/         of an attempt from which a later one, of another commit, did not go on
log.csv  weights.pt           the older study's log, the trained weights; of a complete run
pictures.json                 of the first test images, with what was predicted; of a complete run
*.sha256                      of the steps, checkpoints and weights beside it
"""

import argparse
import itertools
import os
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from unet_scaling.base import errors
from unet_scaling.base.errors import (
    EXIT_BAD_DATA,
    EXIT_BUG,
    NoSafePointError,
    StoppedError,
    UserError,
    WaitedTooLongError,
    error_file_name,
    or_user_error,
)
from unet_scaling.base.files import remove_unfinished, write_json_with_checksum
from unet_scaling.base.machine import wall_seconds
from unet_scaling.base.texts import LAUNCH_HINT
from unet_scaling.format.record import (
    RECORD_NAME,
    RecordWriter,
    attempt_to_set_aside,
    read_record,
    set_record_aside,
)
from unet_scaling.format.record_lines import PICTURES_NAME, STEPS_NAME, FailureReport
from unet_scaling.group.group import Group
from unet_scaling.group.identity import identify
from unet_scaling.group.watchdog import start_watchdog, thread_ids
from unet_scaling.group.worker import speed_variables
from unet_scaling.measure.counters import peak_memory_bytes
from unet_scaling.run.checkpoint import Interruption
from unet_scaling.run.run_claim import OWNER_NAME, RunClaim
from unet_scaling.run.training_state import WEIGHTS_NAME
from unet_scaling.study.config import RunConfig
from unet_scaling.study.study_file import CHECKPOINTS, LOG_NAME, config_path, read_config

CLAIM_POLL_SECONDS = 1.0
# The other workers report the same failure in this time, before the launcher ends them.
ERROR_DRAIN_SECONDS = 3.0
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# The functions that call the parts of a run: `main` of a twin, and the loop over epochs.
CALLERS = ("main", "train_epochs")
CURE_OF_WRITING = "see that its disk can be written and has room, and launch it again"
# The function that `main` calls to make saliency maps.
MAPS_PART = "explain"


@dataclass(frozen=True)
class RunFolder:
    """A run that may start: its folder, its configuration, and the number of this attempt (from 1).

    `threads` are those of the process before it joins its group: what the group adds carries gradients.
    `environment` are the variables that decide speed before the framework sets those of its options.
    """

    path: Path
    config: RunConfig
    attempt: int
    threads: frozenset[int] = field(default_factory=thread_ids)
    environment: dict[str, str] = field(default_factory=speed_variables)
    opened: float = field(default_factory=time.perf_counter)
    interruption: Interruption = field(default_factory=Interruption)


@contextmanager
def open_run(description: str) -> Iterator[RunFolder]:
    """Yield the run folder that the command line names; an error inside is reported in the folder.

    Raises UserError where there is nothing to train, or where anyone may write into the folder.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "run_folder", type=Path, help=f"folder with a config.json, as {LAUNCH_HINT} makes them"
    )
    path: Path = parser.parse_args().run_folder
    config = read_config(config_path(path))
    attempt = _next_attempt(path)
    interruption = Interruption()
    interruption.listen(partial(abort_worker, path, config, attempt))
    run = RunFolder(path, config, attempt, interruption=interruption)
    if config.workers > 1:
        limit_seconds = wall_seconds(config.training.timeout_seconds)
        start_watchdog(limit_seconds, partial(abort_after_timeout, path, config, attempt))
    with reporting_errors(path, config, run.attempt):
        yield run


def _next_attempt(path: Path) -> int:
    """Return the number of the attempt that may start here, from 1; UserError where none may."""
    if path.stat().st_mode & stat.S_IWOTH:
        raise UserError(f"{path} may be written by anyone: chmod o-w {path}")
    record = path / RECORD_NAME
    cure = "move it away, or use another run folder"
    # An attempt that is still alive may set it aside at any moment.
    with or_user_error(f"{record} cannot be read", cure, EXIT_BAD_DATA), suppress(FileNotFoundError):
        if read_record(record).complete:
            raise UserError(f"{record} is complete; a completed run is never touched. Use another run folder")
    return attempt_to_set_aside(path) + record.exists()


def take_run_folder(run: RunFolder, group: Group, claim: RunClaim) -> None:
    """Make the run folder this attempt's; UserError on every worker where another attempt is alive.

    Worker 0 claims; all workers return from each try together, so that none is blocked beyond its time-out.
    """
    printed = ""
    while True:
        own = group.run_on_all(lambda: _try_to_take(run, claim) if group.rank == 0 else "")
        owner = group.gather_strings(own)[0]
        if not owner:
            return
        if group.rank == 0 and owner != printed:
            print(f"waiting for the end of an earlier attempt: {owner}", flush=True)
        printed = owner
        time.sleep(CLAIM_POLL_SECONDS)


def _try_to_take(run: RunFolder, claim: RunClaim) -> str:
    """Return the owner whose end is waited for; empty where the folder is this attempt's."""
    with or_user_error(f"{run.path} cannot be claimed", CURE_OF_WRITING):
        owner = claim.try_to_take()
        if not owner:
            # Reports of an attempt of this number that was refused would explain how this one ends.
            for path in run.path.glob(error_file_name(run.attempt, "*")):
                path.unlink(missing_ok=True)
    return owner


def new_record(run: RunFolder) -> RecordWriter:
    """Return the writer of this attempt's record; that of the attempt before is set aside.

    Raises UserError where it cannot be written, and where another attempt began meanwhile.
    """
    record = run.path / RECORD_NAME
    with or_user_error(f"{record} cannot be written", CURE_OF_WRITING):
        number = attempt_to_set_aside(run.path) + record.exists()
        if number != run.attempt or (record.exists() and read_record(record).complete):
            raise UserError(f"{run.path}: another attempt began while this one started; start it again")
        # Remove what killed workers were writing: the largest, a checkpoint, may fill a quota.
        reports = error_file_name("*", "*")
        for names in (CHECKPOINTS, STEPS_NAME, WEIGHTS_NAME, LOG_NAME, PICTURES_NAME, OWNER_NAME, reports):
            remove_unfinished(run.path, names)
        if record.exists():
            set_record_aside(run.path)
        return RecordWriter(record)


@contextmanager
def reporting_errors(folder: Path, config: RunConfig, attempt: int) -> Iterator[None]:
    """Write an error report for any exception raised inside and re-raise it.

    A lack of memory is re-raised as a UserError that names batch, image size and peak.
    """
    try:
        yield
    except StoppedError:
        raise
    except Exception as error:
        part = _part_of_run(traceback.extract_tb(error.__traceback__))
        explained = _out_of_memory(error, config, part)
        _write(folder, config, attempt, explained or error, part, traceback.format_exc())
        if explained is None:
            raise
        raise explained from error


def abort_after_timeout(folder: Path, config: RunConfig, attempt: int) -> None:
    """End this worker, blocked by another one for too long. Called in a thread: the main one is blocked."""
    limit_seconds = config.training.timeout_seconds
    part = _part_of_run(_main_stack())
    problem = (
        f"waited {limit_seconds} s (training.timeout_seconds) in {part} for another worker: "
        f"it stalled, or was lost"
    )
    abort_worker(folder, config, attempt, WaitedTooLongError(problem))


def abort_worker(folder: Path, config: RunConfig, attempt: int, error: Exception) -> None:
    """Report an error and end this worker, from a thread; the report shows where its main thread was.

    The others get time to report too, so that the one which blocked them is known.
    """
    stack = _main_stack()
    _write(folder, config, attempt, error, _part_of_run(stack), "".join(traceback.format_list(stack)))
    print(f"error: worker {_rank()}: {error}", file=sys.stderr, flush=True)
    time.sleep(wall_seconds(ERROR_DRAIN_SECONDS))
    errors.leave(EXIT_BUG)


def _main_stack() -> traceback.StackSummary:
    return traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])


def _write(folder: Path, config: RunConfig, attempt: int, error: Exception, part: str, trace: str) -> None:
    worker = _rank()
    message = str(error)
    if not isinstance(error, UserError | WaitedTooLongError | NoSafePointError):
        # The text of a KeyError is the key alone: name a line, best one of the user's own code.
        frames = list(traceback.extract_tb(error.__traceback__))
        own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
        place = f" at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""
        message = f"{type(error).__name__}{place}: {message}"
    report = FailureReport(
        attempt=attempt,
        worker=worker,
        workers=config.workers,
        host=socket.gethostname(),
        utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
        error=type(error).__name__,
        message=message,
        during=part,
        traceback=trace,
    )
    try:
        write_json_with_checksum(folder / error_file_name(attempt, worker), report.model_dump())
    except OSError as problem:
        # A folder that cannot be written must not hide the error itself.
        print(f"error: the reason could not be written: {problem}", file=sys.stderr, flush=True)


def _part_of_run(stack: traceback.StackSummary) -> str:
    """Return the part of the run in which this is: join_group, load_data, train_epoch, ..."""
    names = [frame.name for frame in stack]
    parts = [part for caller, part in itertools.pairwise(names) if caller in CALLERS]
    return parts[-1] if parts else "main"


def _rank() -> int:
    """Return the rank, also where joining the group is what failed."""
    try:
        return identify(os.environ).rank
    except UserError:
        return 0


def _out_of_memory(error: Exception, config: RunConfig, part: str) -> UserError | None:
    """Return an error that names batch, image size and peak, if this is a lack of memory."""
    if not is_out_of_memory(error):
        return None
    data = config.data
    size = "" if config.has_own_task else f" images of {data.image_height} x {data.image_width}"
    batch = f"training.batch_per_worker = {config.training.batch_per_worker}"
    cure = "choose a smaller batch with training.accumulate"
    if part == MAPS_PART:
        batch = f"saliency.batch = {config.saliency.batch}"
        cure = "choose a smaller saliency.batch"
    of_device = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    peak_gibibytes = (of_device or peak_memory_bytes()) / 2**30
    return UserError(
        f"out of memory with {batch}{size}, peak {peak_gibibytes:.2f} GiB: {cure}, "
        f"or fewer workers per node ({str(error).splitlines()[0]})"
    )


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory lacked, of the host or the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
