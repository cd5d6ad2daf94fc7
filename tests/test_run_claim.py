"""A run folder has one attempt at a time; one that was killed keeps nobody waiting for long."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import wait_until
from tests.faults import attempt, fault_point
from tests.studies import make_run
from unet_scaling.run import run_claim
from unet_scaling.run.run_claim import OWNER_NAME, STALE_SECONDS, RunClaim, this_process
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import EXIT_USAGE, UserError, report_name
from unet_scaling.study.files import remove_unfinished, write_json_with_checksum
from unet_scaling.study.record import RECORD_NAME

ELSEWHERE: dict[str, Any] = {"machine": "another boot", "host": "node9"}


def claim(folder: Path, told: list[Exception] | None = None) -> RunClaim:
    return RunClaim(folder, 2, (told if told is not None else []).append)


def owned_by(folder: Path, seconds_ago: float = 0.0, **changes: object) -> Path:
    """A claim that an earlier attempt left, renewed so many seconds ago."""
    path = folder / OWNER_NAME
    write_json_with_checksum(path, this_process(1).model_copy(update=changes).model_dump(mode="json"))
    moment = time.time() - seconds_ago
    os.utime(path, (moment, moment))
    return path


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_claim, "ENDING_SECONDS", 0.0)


def test_a_free_folder_is_taken_and_left(tmp_path: Path) -> None:
    mine = claim(tmp_path)
    assert mine.try_to_take() == ""
    assert (tmp_path / OWNER_NAME).stat().st_mode & 0o777 == 0o600
    mine.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("at_once")
def test_refuses_a_folder_in_which_a_process_of_this_machine_trains(tmp_path: Path) -> None:
    owned_by(tmp_path, job="77", seconds_ago=1e6)
    with pytest.raises(
        UserError, match=f"attempt 1, process {os.getpid()} on .* of job 77.*scancel 77"
    ) as found:
        claim(tmp_path).try_to_take()
    assert found.value.exit_code == EXIT_USAGE


def test_waits_for_a_process_that_may_be_ending(tmp_path: Path) -> None:
    owned_by(tmp_path)
    assert f"process {os.getpid()} on" in claim(tmp_path).try_to_take()


def test_leaves_a_claim_alone_that_was_made_while_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts that start at the same moment both find the folder free."""
    path = owned_by(tmp_path, **ELSEWHERE)
    content = path.read_bytes()
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert "on node9" in claim(tmp_path).try_to_take()
    assert path.read_bytes() == content


def test_what_a_killed_contender_leaves_is_removed_by_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file by which it reads the clock of the file system."""
    made: list[str] = []

    def unfinished(dir: Path, prefix: str) -> object:
        made.append(prefix)
        (dir / f"{prefix}k1ll3d").touch()
        raise OSError(errno.EIO, "killed here")

    owned_by(tmp_path, **ELSEWHERE)
    monkeypatch.setattr("unet_scaling.run.run_claim.tempfile.NamedTemporaryFile", unfinished)
    claim(tmp_path).try_to_take()
    assert len(made) == 1
    remove_unfinished(tmp_path, OWNER_NAME)
    assert [path.name for path in tmp_path.iterdir()] == [OWNER_NAME]


@pytest.mark.parametrize("reused", [False, True])
def test_takes_the_folder_of_a_killed_process_at_once(tmp_path: Path, ended: int, reused: bool) -> None:
    """Also where its number is that of another process by now."""
    if reused:
        owned_by(tmp_path, begun_ticks=1)
    else:
        owned_by(tmp_path, process=ended)
    assert claim(tmp_path).try_to_take() == ""


def test_takes_the_folder_at_once_where_slurm_started_the_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    owned_by(tmp_path, restarts=1, **ELSEWHERE)
    assert claim(tmp_path).try_to_take() == ""


def test_refuses_a_folder_whose_owner_elsewhere_renews_its_claim(tmp_path: Path) -> None:
    path = owned_by(tmp_path, 5, **ELSEWHERE)
    mine = claim(tmp_path)
    assert "on node9" in mine.try_to_take()
    os.utime(path)
    with pytest.raises(UserError, match=r"on node9.*kill \d+ on node9"):
        mine.try_to_take()


def test_takes_the_folder_of_an_owner_elsewhere_that_fell_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned_by(tmp_path, STALE_SECONDS + 5, **ELSEWHERE)
    assert claim(tmp_path).try_to_take() == ""
    owned_by(tmp_path, -3600, **ELSEWHERE)
    waiting = claim(tmp_path)
    assert waiting.try_to_take()
    later = time.monotonic() + STALE_SECONDS + 1
    monkeypatch.setattr("unet_scaling.run.run_claim.time.monotonic", lambda: later)
    assert waiting.try_to_take() == ""


def test_a_claim_that_cannot_be_read_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / OWNER_NAME).write_text("")
    assert OWNER_NAME in claim(tmp_path).try_to_take()


def test_a_full_disk_leaves_no_claim_that_would_keep_the_next_attempt_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(run_claim, "write_json_with_checksum", full)
        with pytest.raises(OSError, match="no space"):
            claim(tmp_path).try_to_take()
    assert claim(tmp_path).try_to_take() == ""


def test_an_owner_that_lost_its_folder_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended for minutes, for instance, while another attempt took it for dead."""
    monkeypatch.setattr(run_claim, "BEAT_SECONDS", 0.02)
    told: list[Exception] = []
    mine = claim(tmp_path, told)
    mine.try_to_take()
    time.sleep(0.1)
    assert told == []
    path = owned_by(tmp_path, attempt=3)
    wait_until(lambda: bool(told), "the owner to notice", seconds=30, pause=0.02)
    assert "taken over by attempt 3" in str(told[0])
    mine.release()
    assert path.exists()


@pytest.mark.slow
def test_two_attempts_of_one_run_never_train_at_once(images: Path, tmp_path: Path) -> None:
    """The first is left behind by its launcher; killed, it does not keep the next one waiting."""
    run = tmp_path / "run"
    point = fault_point(images, "pytorch_native", workers=1, timeout_seconds=60)
    make_run(run, point)
    fault = '{"what": "sleep", "step": 3, "worker": 0}'
    train = PROJECT / "pytorch_native" / "train.py"
    command = [sys.executable, str(PROJECT / "tests" / "faulty.py"), str(train), str(run), fault]
    left = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(PROJECT)})
    try:
        wait_until((run / RECORD_NAME).exists, "the first attempt to begin", seconds=300, pause=0.1)
        record = (run / RECORD_NAME).stat().st_ino
        second = subprocess.run([sys.executable, str(train), str(run)], capture_output=True, text=True)
        assert second.returncode == EXIT_USAGE
        assert f"{run} is being trained by attempt 1, process {left.pid} on" in second.stderr
        assert (run / RECORD_NAME).stat().st_ino == record
        refusal = run / report_name(2, 0)
        assert "two attempts of one run cannot train at once" in refusal.read_text()
    finally:
        left.send_signal(signal.SIGKILL)
        left.wait()
    third = attempt(run, point)
    assert third.record.complete, third.record.problems
    assert "waiting for the end" not in third.output
    assert not (run / OWNER_NAME).exists()
    assert not refusal.exists()


CONTENDERS = """
import os, signal, sys
from pathlib import Path
from unet_scaling.run import run_claim
from unet_scaling.study.files import write_json_with_checksum

folder = Path(sys.argv[1])
os.fsync = lambda _: None


class Contender:
    '''A process that tries to take the folder, and waits to be told before its line of this number.'''

    def __init__(self, line=0):
        said, self.says = os.pipe()
        self.told, tell = os.pipe()
        self.left = line
        self.process = os.fork()
        if self.process:
            os.close(self.says)
            self.said, self.tell = said, tell
            return
        mine = run_claim.RunClaim(folder, 2, print)
        sys.settrace(self.trace)
        waits = all(mine.try_to_take() for _ in range(1 if line else 3))
        sys.settrace(None)
        os.write(self.says, b"waits" if waits else b"owns")
        signal.pause()

    def trace(self, frame, event, _):
        if frame.f_code.co_filename == run_claim.__file__:
            self.left -= event == "line"
            if self.left == 0 and event == "line":
                os.write(self.says, b"at the line")
                os.read(self.told, 1)
            return self.trace

    def answer(self):
        return os.read(self.said, 20).decode()

    def go_on(self):
        os.write(self.tell, b".")
        return self.answer()

    def kill(self):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


line = 0
reached = "at the line"
while reached == "at the line":
    line += 1
    for is_killed in (False, True):
        # What a killed one left is old at once.
        run_claim.STALE_SECONDS = 0.0 if is_killed else 60.0
        for left in folder.iterdir():
            left.unlink()
        dead = run_claim.this_process(1).model_copy(update={"begun_ticks": 1})
        write_json_with_checksum(folder / run_claim.OWNER_NAME, dead.model_dump(mode="json"))
        one = Contender(line)
        reached = one.answer()
        if is_killed:
            one.kill()
        other = Contender()
        answers = [other.answer()]
        if not is_killed:
            answers.append(one.go_on() if reached == "at the line" else reached)
            one.kill()
        other.kill()
        assert answers.count("owns") == 1 if is_killed else answers.count("owns") <= 1, line
print(line)
"""


def test_two_attempts_that_find_a_claim_abandoned_never_both_own_the_folder(tmp_path: Path) -> None:
    """Real processes: at each line of the one, the other does all it does, or the first is killed there."""
    done = subprocess.run(
        [sys.executable, "-c", CONTENDERS, tmp_path], capture_output=True, text=True, timeout=120, cwd=PROJECT
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30
