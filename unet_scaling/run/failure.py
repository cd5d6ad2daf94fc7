"""Error reports: why a worker of an attempt failed, one JSON file per worker in the run folder."""

import itertools
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch

from unet_scaling.group.identity import identify
from unet_scaling.measure.cpu_counters import peak_memory_bytes
from unet_scaling.study import errors
from unet_scaling.study.config import RunConfig
from unet_scaling.study.dilation import dilated
from unet_scaling.study.errors import EXIT_BUG, StoppedError, UserError, WaitedTooLongError
from unet_scaling.study.files import write_json_with_checksum
from unet_scaling.study.run_state import FailureReport

# In which the other workers report the same failure, before the launcher ends them.
ERROR_DRAIN_SECONDS = 3.0
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# What calls the parts of a run by name: the twin's main, and the loop over epochs (training_loop.py).
CALLERS = ("main", "train_epochs")
# As `main` calls what makes saliency maps.
MAPS_PART = "explain"


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
    time.sleep(dilated(ERROR_DRAIN_SECONDS))
    errors.leave(EXIT_BUG)


def _main_stack() -> traceback.StackSummary:
    return traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])


def _write(folder: Path, config: RunConfig, attempt: int, error: Exception, part: str, trace: str) -> None:
    worker = _rank()
    message = str(error)
    if not isinstance(error, UserError | WaitedTooLongError | errors.NoSafePointError):
        # Of a KeyError the text is the key alone, and a line of the user's says more than one of torch.
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
        write_json_with_checksum(folder / errors.report_name(attempt, worker), report.model_dump())
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
