"""Patience: how long this worker waits for the others. Then it says so, and ends the whole step with itself.

The frameworks' own time-outs are not enough: Horovod looks for a stalled worker on worker 0 alone, and not
while MPI itself waits for that worker; MPI never tires of waiting for one that does not start.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

POLLS = 20
LONGEST_POLL_SECONDS = 1.0


class Waiting:
    """Entered around whatever may wait for another worker; costs two additions."""

    def __init__(self) -> None:
        self.depth = 0
        self.changes = 0

    def __enter__(self) -> None:
        self.depth += 1
        self.changes += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        self.changes += 1


waiting = Waiting()
"""Of this process, which is one worker: `with waiting: ...`, also nested."""


def start_watchdog(seconds: float, give_up: Callable[[], None]) -> None:
    """From now on call `give_up`, once and in a thread of its own, where one wait lasts longer than that."""
    threading.Thread(target=_watch, args=[seconds, give_up], daemon=True).start()


def _watch(seconds: float, give_up: Callable[[], None]) -> None:
    """Polls are counted, not read off a clock: a job that Slurm suspends has not waited meanwhile."""
    poll = min(LONGEST_POLL_SECONDS, seconds / POLLS)
    seen, polls = waiting.changes, 0
    while polls * poll < seconds:
        time.sleep(poll)
        polls = polls + 1 if waiting.depth and waiting.changes == seen else 0
        seen = waiting.changes
    give_up()
