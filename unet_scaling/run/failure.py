"""Why a worker of an attempt failed: one JSON file per worker in the run folder, written as it fails."""

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
from unet_scaling.study import errors
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_BUG, StoppedError, UserError, WaitedTooLongError
from unet_scaling.study.failure_reports import FailureReport
from unet_scaling.study.files import write_json_with_checksum

ERROR_DRAIN_SECONDS = 3.0
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


@contextmanager
def failures_reported(folder: Path, config: RunConfig, attempt: int) -> Iterator[None]:
    """Leave the reason of a failure inside, in words where it is a lack of memory, and let it go on."""
    try:
        yield
    except StoppedError:
        raise
    except Exception as error:
        explained = _lack_of_memory(error, config) or error
        stack = traceback.extract_tb(error.__traceback__)
        _write(folder, config, attempt, explained, _part_of_main(stack), traceback.format_exc())
        if explained is error:
            raise
        raise explained from error


def give_up_waiting(folder: Path, config: RunConfig, attempt: int) -> None:
    """End this worker, which waited for another one too long. Called in a thread: the main one waits."""
    limit, part = config.training.timeout_seconds, _part_of_main(_main_stack())
    told = (
        f"waited {limit} s (training.timeout_seconds) in {part} for another worker: it stalled, or was lost"
    )
    give_up(folder, config, attempt, WaitedTooLongError(told))


def give_up(folder: Path, config: RunConfig, attempt: int, error: Exception) -> None:
    """End this worker from a thread beside its main one; its report shows where that one was.

    The others are given the time to say the same, so that the one that did not wait is known.
    """
    stack = _main_stack()
    _write(folder, config, attempt, error, _part_of_main(stack), "".join(traceback.format_list(stack)))
    print(f"error: worker {_worker()}: {error}", file=sys.stderr, flush=True)
    time.sleep(ERROR_DRAIN_SECONDS)
    errors.leave(EXIT_BUG)


def _main_stack() -> traceback.StackSummary:
    return traceback.extract_stack(sys._current_frames()[threading.main_thread().ident or 0])


def _write(folder: Path, config: RunConfig, attempt: int, error: Exception, part: str, trace: str) -> None:
    """A folder that cannot be written does not hide the error."""
    worker = _worker()
    report = FailureReport(
        attempt=attempt,
        worker=worker,
        workers=config.workers,
        host=socket.gethostname(),
        utc=datetime.now(UTC).isoformat(timespec="milliseconds"),
        error=type(error).__name__,
        message=str(error),
        during=part,
        traceback=trace,
    )
    try:
        write_json_with_checksum(folder / errors.report_name(attempt, worker), report.model_dump())
    except OSError as problem:
        print(f"error: the reason could not be written: {problem}", file=sys.stderr, flush=True)


def _part_of_main(stack: traceback.StackSummary) -> str:
    """The step of the twin's main in which it happened: join_group, load_data, train_epoch, ..."""
    after_main = [stack[place + 1].name for place in range(len(stack) - 1) if stack[place].name == "main"]
    return after_main[-1] if after_main else "main"


def _worker() -> int:
    """The rank, also where joining the group is what failed."""
    try:
        return identify(os.environ).rank
    except UserError:
        return 0


def _lack_of_memory(error: Exception, config: RunConfig) -> UserError | None:
    """The same error with batch, image size and peak, if it is one of memory; nothing is made smaller."""
    named = isinstance(error, MemoryError | torch.OutOfMemoryError)
    told = isinstance(error, RuntimeError) and any(word in str(error) for word in OUT_OF_MEMORY)
    if not (named or told):
        return None
    data, training = config.data, config.training
    return UserError(
        f"out of memory with training.batch_per_worker = {training.batch_per_worker} images of "
        f"{data.image_height} x {data.image_width}, peak {_peak_gibibytes():.2f} GiB: choose a smaller batch "
        f"with training.accumulate, or fewer workers per node ({str(error).splitlines()[0]})"
    )


def _peak_gibibytes() -> float:
    """Of the device where there is one, of the process otherwise."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**30
    import resource  # not on every system, and needed by a failing worker only

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
