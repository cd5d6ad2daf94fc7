"""Who may use this machine while a test runs: several test processes share it, a test of times is alone."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Of all test sessions of this user: two of them disturb each other as two processes of one do.
LOCKS = Path(tempfile.gettempdir()) / f"unet-scaling-tests-{os.getuid()}"


@contextmanager
def the_machine(alone: bool) -> Iterator[None]:
    """Wait until nothing runs that must be alone, or for `alone` until nothing runs at all.

    Who waits for the machine keeps the entrance, so that nobody slips in before.
    """
    LOCKS.mkdir(exist_ok=True)
    with (LOCKS / "entrance").open("w") as entrance, (LOCKS / "machine").open("w") as machine:
        fcntl.flock(entrance, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(entrance, fcntl.LOCK_UN)
        yield
