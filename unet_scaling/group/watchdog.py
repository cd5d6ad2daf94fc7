"""The watchdog of one worker: it ends the worker, and the step with it, when it is blocked for too long.

The frameworks' own time-outs are not enough: Horovod looks for a stalled worker on worker 0 alone, and not
while MPI itself is blocked; MPI has no time-out for a worker that does not start.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

# A poll is short beside the time-out, and once a second where that is long.
POLLS_PER_TIMEOUT = 20
LONGEST_POLL_SECONDS = 1.0


class Blocking:
    """A context for whatever can block until another worker acts; entering and leaving cost an addition."""

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


blocking = Blocking()
"""The one instance of this process, which is one worker: `with blocking: ...`, also nested."""


def start_watchdog(timeout_seconds: float, on_timeout: Callable[[], None]) -> None:
    """Call `on_timeout`, once and in a thread of its own, when one blocking call lasts longer than that."""
    threading.Thread(target=_watch, args=[timeout_seconds, on_timeout], daemon=True).start()


def _watch(timeout_seconds: float, on_timeout: Callable[[], None]) -> None:
    # Polls are counted, not read off a clock: a job that Slurm suspends is not blocked meanwhile.
    poll_seconds = min(LONGEST_POLL_SECONDS, timeout_seconds / POLLS_PER_TIMEOUT)
    changes = blocking.changes
    polls = 0
    while polls * poll_seconds < timeout_seconds:
        time.sleep(poll_seconds)
        polls = polls + 1 if blocking.depth and blocking.changes == changes else 0
        changes = blocking.changes
    on_timeout()
