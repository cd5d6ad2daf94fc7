"""How a worker ends: requests to stop only set a flag; an error is read before its launch ends."""

import os
import select
import socket
import subprocess
import sys
import time

import pytest

from slurm.render import IGNORE_USR2_UNTIL_HANDLER
from unet_scaling.run.checkpoint import STOP_AT_VARIABLE, Interruption
from unet_scaling.study.config import PROJECT

WORKER = """
import os, sys, time
from unet_scaling.run import checkpoint
checkpoint.GRACE_SECONDS = 1
def give_up(error):
    print(error, file=sys.stderr, flush=True)
    os._exit(1)
worker = checkpoint.Interruption()
worker.listen(give_up)
print("ready", flush=True)
while not (sys.argv[1] == "obeys" and worker.reason()):
    time.sleep(0.1)
worker.acknowledge()
time.sleep(3)
sys.exit(75)
"""


@pytest.mark.parametrize(("manner", "code"), [("waits for ever", 1), ("obeys", 75)])
def test_after_sigterm_a_worker_leaves_in_time_with_or_without_a_safe_point(manner: str, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, manner], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        worker.terminate()
        _, errors = worker.communicate(timeout=60)
    assert worker.returncode == code
    assert ("no safe point within 1 s" in errors) == (code == 1)


EARLY = """
import os, signal
from unet_scaling.run.checkpoint import Interruption
os.kill(os.getpid(), signal.SIGUSR2)
worker = Interruption()
worker.listen(print)
print("before:", worker.reason())
os.kill(os.getpid(), signal.SIGUSR2)
print("after:", worker.reason())
"""


def test_a_signal_that_comes_before_python_listens_ends_nothing() -> None:
    command = ["sh", "-c", IGNORE_USR2_UNTIL_HANDLER, "sh", sys.executable, "-c", EARLY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["before: ", "after: asked to stop by SIGUSR2"]


@pytest.mark.parametrize("limited", [True, False])
def test_the_end_of_the_jobs_time_is_a_request_which_no_jump_of_the_wall_clock_moves(
    limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STOP_AT_VARIABLE, str(time.time() + 100) if limited else "")
    interruption = Interruption()
    monkeypatch.setattr("unet_scaling.run.checkpoint.time.time", lambda: 1e11)
    assert interruption.reason() == ""
    later = time.monotonic() + 101
    monkeypatch.setattr("unet_scaling.run.checkpoint.time.monotonic", lambda: later)
    assert interruption.reason() == ("the job's time is nearly over" if limited else "")


FAILS = """
from unet_scaling.base.errors import UserError, run_worker

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
    program = "from unet_scaling.base.errors import run_worker; import sys; run_worker(lambda: sys.exit(%s))"
    ends = {}
    for given in ("'a map differs'", "", "3"):
        ended = subprocess.run(
            [sys.executable, "-c", program % given], cwd=PROJECT, capture_output=True, text=True, check=False
        )
        ends[given] = (ended.returncode, ended.stderr)
    assert ends == {"'a map differs'": (1, "a map differs\n"), "": (0, ""), "3": (3, "")}
