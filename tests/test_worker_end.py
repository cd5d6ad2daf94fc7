"""How a worker that fails ends, and its launch with it."""

import os
import select
import socket
import subprocess
import sys

from unet_scaling.study.config import PROJECT

FAILS = """
from unet_scaling.study.errors import UserError, run_worker

def main() -> None:
    raise UserError("what to mend")

run_worker(main)
"""
# A worker that does not wait asks for the abort within a millisecond of its text.
WORKER_WAITS_SECONDS = 0.5


def test_a_launch_is_aborted_only_when_the_error_text_has_been_read() -> None:
    """mpiexec drops at an abort what its workers have printed and it has not read."""
    launcher, worker_side = socket.socketpair()
    environment = os.environ | {"PMI_FD": str(worker_side.fileno())}
    with launcher, worker_side:
        worker = subprocess.Popen(
            [sys.executable, "-c", FAILS], stderr=subprocess.PIPE, cwd=PROJECT, env=environment,
            pass_fds=[worker_side.fileno()], text=True,
        )  # fmt: skip
        assert worker.stderr is not None
        # The text is there, nobody has read it.
        select.select([worker.stderr], [], [])
        assert select.select([launcher], [], [], WORKER_WAITS_SECONDS)[0] == []
        assert worker.stderr.readline() == "error: what to mend\n"
        assert launcher.recv(100) == b"cmd=abort exitcode=2\n"
        assert worker.wait() == 2


def test_a_worker_that_exits_with_a_sentence_prints_it_and_fails() -> None:
    program = "from unet_scaling.study.errors import run_worker; import sys; run_worker(lambda: sys.exit(%s))"
    ends = {}
    for given in ("'a map differs'", "", "3"):
        ended = subprocess.run(
            [sys.executable, "-c", program % given], cwd=PROJECT, capture_output=True, text=True, check=False
        )
        ends[given] = (ended.returncode, ended.stderr)
    assert ends == {"'a map differs'": (1, "a map differs\n"), "": (0, ""), "3": (3, "")}
