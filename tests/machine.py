"""Who may use this machine while a test runs: several test processes share it, a test of times is alone."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_a_core_each = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two workers need a core each"
)
LOCKS_VARIABLE = "UNET_SCALING_TEST_LOCKS"


def make_locks(config: pytest.Config) -> None:
    """For all processes of this test session, which inherit the name of the folder."""
    if LOCKS_VARIABLE not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="unet-scaling-tests-")
        os.environ[LOCKS_VARIABLE] = folder.name
        config.add_cleanup(folder.cleanup)


@contextmanager
def the_machine(alone: bool) -> Iterator[None]:
    """Wait until nothing runs that must be alone, or for `alone` until nothing runs at all.

    Who waits for the machine keeps the entrance, so that nobody slips in before.
    """
    locks = Path(os.environ[LOCKS_VARIABLE])
    with (locks / "entrance").open("w") as entrance, (locks / "machine").open("w") as machine:
        fcntl.flock(entrance, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(entrance, fcntl.LOCK_UN)
        yield
