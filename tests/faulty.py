"""Run a twin with one fault: python tests/faulty.py TRAIN_PY RUN_FOLDER FAULT_JSON (see faults.Fault).

Nothing of the twin is changed: on one worker, what it calls before a step fails, dies or gets a
signal. How each worker left is written beside the run folder, where launchers tell only one code.
"""

import itertools
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from tests.faults import FILE_BYTES, FILLER_NAME, FLIPPED_VARIABLE, SECONDS_FULL_VARIABLE, Fault
from unet_scaling.base import errors
from unet_scaling.data import images
from unet_scaling.data.batches import RunData
from unet_scaling.group.identity import identify
from unet_scaling.run import checkpoint, recorder
from unet_scaling.strategies.steps import LocalSteps, StaleSteps
from unet_scaling.training import Step


def main() -> None:
    train, folder, text = sys.argv[1:]
    fault = Fault.from_json(text)
    rank = identify(os.environ).rank
    errors.leave = noting_the_code(errors.leave, Path(f"{folder}.exit{rank}"))  # type: ignore[assignment]
    if fault.every_step_is_safe:
        checkpoint.SECONDS_APART = 0
    happens = FAULTS[fault.what if rank == fault.worker else fault.others]
    if fault.step == 0:
        happens([])
    for kind in (Step, LocalSteps, StaleSteps):
        kind.take = before_a_step(kind.take, fault.step, happens)  # type: ignore[method-assign]
    sys.argv = [train, folder]
    runpy.run_path(train, run_name="__main__")


def noting_the_code(leave: Callable[[int], Any], path: Path) -> Callable[[int], None]:
    def noting(code: int) -> None:
        path.write_text(str(code))
        leave(code)

    return noting


def before_a_step(take: Callable[..., Any], number: int, happens: Callable[..., None]) -> Callable[..., Any]:
    """The training step; before the one of this number, counted from 1 in this attempt, it happens."""
    count = 0

    def faulty(step: Step, batches: Iterable[Any], *rest: Any) -> Any:
        nonlocal count
        count += 1
        # What happens finds the images of the step in memory.
        loaded = list(batches)
        if count == number:
            happens(loaded)
        return take(step, loaded, *rest)

    return faulty


# Longer than any time-out here, and not for ever.
STALL_SECONDS = 300
# Longer than a launcher takes to end the others once a worker has left.
SLOW_REMOVAL_SECONDS = 4
# Far longer than a step of a tiny model, far shorter than any time-out here.
PAUSE_SECONDS = 3
# So many images together take longer than the time-out of tests/test_faults.py.
SLOW_IMAGES = 45
SLOW_IMAGE_SECONDS = 0.4
# Shorter than a launcher waits, longer than a safe point of a tiny model is away.
SHORT_GRACE_SECONDS = 2


def fail(*_: Any) -> None:
    raise ArithmeticError("a fault of this test")


def spoil(value: float) -> Callable[..., None]:
    def spoiling(batches: list[Any]) -> None:
        batches[0].images[0, 0, 0, 0] = value

    return spoiling


def send(number: signal.Signals) -> Callable[..., None]:
    return lambda *_: os.kill(os.getpid(), number)


def pause(*_: Any) -> None:
    """Stop this process with all its threads; another process continues it."""
    subprocess.Popen(["sh", "-c", f"sleep {PAUSE_SECONDS}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def pause_often(*_: Any) -> None:
    """Stop this process for half of the rest of its life, and in no step for long."""
    turns = "while kill -STOP {0}; do sleep 0.02; kill -CONT {0}; sleep 0.02; done"
    subprocess.Popen(["sh", "-c", turns.format(os.getpid())], stderr=subprocess.DEVNULL)


def fill_the_disk(_: list[Any]) -> None:
    """Of the run folder, which the test made a small one; SECONDS_FULL later there is room again."""
    filler = Path(sys.argv[1]) / FILLER_NAME
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    threading.Timer(float(os.environ[SECONDS_FULL_VARIABLE]), filler.unlink).start()


def limit_file_size(*_: Any) -> None:
    """As a quota would: what is there stays, and grows by a few lines only."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))


def flip_a_file(*_: Any) -> None:
    path = Path(os.environ[FLIPPED_VARIABLE])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def slow_the_removal(*_: Any) -> None:
    """Of checkpoints, as on a busy file system: another worker could have left meanwhile."""
    remove = recorder.remove_checkpoints  # type: ignore[attr-defined]

    def slowly(folder: Path) -> None:
        time.sleep(SLOW_REMOVAL_SECONDS)
        remove(folder)

    recorder.remove_checkpoints = slowly  # type: ignore[attr-defined]


def slow_then_stuck_decoding(_: list[Any]) -> None:
    """Let each of the first images take a while, in which the decoder works, and the next one for ever."""
    load = images.load_pair
    numbers = itertools.count()

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(SLOW_IMAGE_SECONDS if next(numbers) < SLOW_IMAGES else STALL_SECONDS)
        return load(*arguments, **options)

    images.load_pair = slowly


def terminate_soon(*_: Any) -> None:
    """SIGTERM, with less time than usual to reach a safe point."""
    checkpoint.GRACE_SECONDS = SHORT_GRACE_SECONDS
    os.kill(os.getpid(), signal.SIGTERM)


def stop_in_the_next_evaluation(*_: Any) -> None:
    share = RunData.test_share

    def asked(self: RunData) -> Iterator[tuple[int, Any]]:
        os.kill(os.getpid(), signal.SIGUSR2)
        return share(self)

    RunData.test_share = asked  # type: ignore[method-assign]


def tell_about_the_process(*_: Any) -> None:
    """Note what a wrapper may have changed since the worker told its facts."""
    told = {"mpi4py.MPI": "mpi4py.MPI" in sys.modules, "threads": torch.get_num_threads()}
    Path(f"{sys.argv[1]}.told{identify(os.environ).rank}").write_text(json.dumps(told))


FAULTS: dict[str, Callable[..., None]] = {
    "nothing": lambda *_: None,
    "exception": fail,
    "kill": send(signal.SIGKILL),
    "stop": send(signal.SIGSTOP),
    "pause": pause,
    "pauses": pause_often,
    "sleep": lambda *_: time.sleep(STALL_SECONDS),
    "SIGTERM": send(signal.SIGTERM),
    "SIGUSR2": send(signal.SIGUSR2),
    "nan": spoil(float("nan")),
    "infinity": spoil(float("inf")),
    "full disk": fill_the_disk,
    "file size": limit_file_size,
    "record size": lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY)),
    "flip a file": flip_a_file,
    "slow removal": slow_the_removal,
    "slow, then stuck decoding": slow_then_stuck_decoding,
    "SIGTERM soon": terminate_soon,
    "SIGUSR2 in the evaluation": stop_in_the_next_evaluation,
    "telling": tell_about_the_process,
}

if __name__ == "__main__":
    main()
