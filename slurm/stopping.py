"""Stop a study on this machine: the first Ctrl-C lets the workers save, a second one ends them at once.

The workers run in a session of their own, so that the terminal's Ctrl-C reaches this process alone; it tells
each worker once.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

# Also the end of the terminal's connection.
STOP_REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Unlike SIGTERM, it leaves workers that still load their images as long as they need to reach a safe point.
WORKER_SIGNAL = signal.SIGUSR2
# `timeout` signals a process and then its group: two signals, one request.
SAME_REQUEST_SECONDS = 0.3


class StopRequest:
    """Whether the user asked to stop, and which workers have been told so."""

    def __init__(self) -> None:
        self.received = False
        self._received_at = 0.0
        self._told: set[int] = set()

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal: note the first one, and raise KeyboardInterrupt at the second."""
        if not self.received:
            self._received_at = time.monotonic()
        elif time.monotonic() - self._received_at > SAME_REQUEST_SECONDS:
            raise KeyboardInterrupt
        self.received = True

    def pass_on(self, mpiexec: int, command: Sequence[str]) -> None:
        """Tell each worker of this mpiexec once, as soon as it is ready to be told."""
        for worker in set(worker_processes(mpiexec, command)) - self._told:
            if _catches(worker, WORKER_SIGNAL):
                with suppress(ProcessLookupError):
                    os.kill(worker, WORKER_SIGNAL)
                self._told.add(worker)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Yield the request to stop; signals that were ignored, as under nohup, stay so."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in STOP_REQUESTS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, request.note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def descendants(process: int) -> dict[int, int]:
    """Return all processes below this one, each with its parent; parents come first."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            # The name in brackets may hold spaces and brackets; the parent is the second field behind it.
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    below: dict[int, int] = {}
    newest = [process]
    while newest:
        newest = [child for child, parent in parents.items() if parent in newest and child not in below]
        below |= {child: parents[child] for child in newest}
    return below


def worker_processes(mpiexec: int, command: Sequence[str]) -> list[int]:
    """Return the workers below mpiexec; what a worker forked has its command line, but is none."""
    below = descendants(mpiexec)
    line = "".join(f"{word}\0" for word in command).encode()
    workers: list[int] = []
    for process, parent in below.items():
        with suppress(OSError):
            if parent not in workers and Path(f"/proc/{process}/cmdline").read_bytes() == line:
                workers.append(process)
    return workers


def kill_below(mpiexec: int) -> None:
    """End everything below mpiexec at once."""
    for process in descendants(mpiexec):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def _catches(process: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for this signal; without one, the signal would end it."""
    with suppress(OSError):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False
