"""A run folder has one attempt at a time; one that was killed keeps nobody waiting for long."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from slurm.launch.processes import launch_environment
from tests.cluster import wait_until
from tests.faults import Fault, attempt, fault_point
from tests.studies import make_images, make_run
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError, error_file_name
from unet_scaling.base.files import write_json_with_checksum
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import write_manifest
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.run import run_claim
from unet_scaling.run.run_claim import OWNER_NAME, STALE_SECONDS, RunClaim, this_process
from unet_scaling.study.config import PROJECT

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


JOB = {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "2"}


@pytest.mark.parametrize(
    ("owner", "seconds_ago", "variables", "taken"),
    [
        ({}, 1e6, {}, False),
        ({"begun_ticks": 1}, 0.0, {}, True),  # killed, and its number is that of another process by now
        ({"restarts": 1, **ELSEWHERE}, 0.0, JOB, True),  # Slurm has started the job again
        ({"restarts": 1, **ELSEWHERE}, 0.0, {}, False),
        (ELSEWHERE, 5.0, {}, False),
        (ELSEWHERE, STALE_SECONDS + 5, {}, True),
        (ELSEWHERE, -3600.0, {}, False),  # of a clock that is ahead
    ],
)
def test_a_folder_is_taken_at_once_only_from_an_owner_that_is_known_to_have_ended(
    owner: dict[str, Any],
    seconds_ago: float,
    variables: dict[str, str],
    taken: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        path = owned_by(tmp_path, seconds_ago, **owner)
        waiting = claim(tmp_path)
        assert (waiting.try_to_take() == "") == taken
    if not taken and owner:
        later = time.monotonic() + STALE_SECONDS + 1
        monkeypatch.setattr("unet_scaling.run.run_claim.time.monotonic", lambda: later)
        assert waiting.try_to_take() == "", "its owner has been silent since the first look"
    assert path.exists()


def test_an_owner_that_lives_is_named_with_what_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned_by(tmp_path, job="77")
    monkeypatch.setattr(run_claim, "ENDING_SECONDS", 0.0)
    with pytest.raises(
        UserError, match=f"attempt 1, process {os.getpid()} on .* job 77.*scancel 77"
    ) as found:
        claim(tmp_path).try_to_take()
    assert found.value.exit_code == EXIT_USAGE
    path = owned_by(tmp_path, 5, **ELSEWHERE)
    mine = claim(tmp_path)
    assert "on node9" in mine.try_to_take()
    os.utime(path)
    with pytest.raises(UserError, match=r"on node9.*kill \d+ on node9"):
        mine.try_to_take()


def test_a_claim_that_cannot_be_read_or_was_made_meanwhile_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts that start at the same moment both find the folder free."""
    (tmp_path / OWNER_NAME).write_text("")
    assert OWNER_NAME in claim(tmp_path).try_to_take()
    content = owned_by(tmp_path, **ELSEWHERE).read_bytes()
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert "on node9" in claim(tmp_path).try_to_take()
    assert (tmp_path / OWNER_NAME).read_bytes() == content


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
def test_attempts_of_one_run_come_one_after_the_other_and_train_the_same_images(tmp_path: Path) -> None:
    """The first is left behind by its launcher; killed, it does not keep the next one waiting.

    Images that changed since are refused; with those of before the run goes on, and names its attempts.
    """
    images = make_images(tmp_path / "images", count=47)
    run = tmp_path / "run"
    options: dict[str, Any] = {"workers": 1, "cores_per_worker": 1, "checkpoint_minutes": 1e-6}
    point = fault_point(images, "pytorch_native", **options)
    make_run(run, point)
    fault = json.dumps(asdict(Fault("sleep", 5, worker=0, every_step_is_safe=True)))
    train = PROJECT / "pytorch_native" / "train.py"
    command = [sys.executable, str(PROJECT / "tests" / "faulty.py"), str(train), str(run), fault]
    left = subprocess.Popen(command, env=launch_environment() | {"PYTHONPATH": str(PROJECT)})
    try:
        fourth = run / "checkpoint-00000-0000004.pt"
        wait_until(fourth.exists, "the first attempt to train", seconds=300, pause=0.1)
        record = (run / RECORD_NAME).stat().st_ino
        second = subprocess.run([sys.executable, str(train), str(run)], capture_output=True, text=True)
        assert second.returncode == EXIT_USAGE
        assert f"{run} is being trained by attempt 1, process {left.pid} on" in second.stderr
        assert (run / RECORD_NAME).stat().st_ino == record
        refusal = run / error_file_name(2, 0)
        assert "two attempts of one run cannot train at once" in refusal.read_text()
    finally:
        left.send_signal(signal.SIGKILL)
        left.wait()
    picture = images / "images" / "003.png"
    before = {path: path.read_bytes() for path in (picture, *images.glob("manifest.json*"))}
    ImageOps.flip(Image.open(picture)).save(picture)
    write_manifest(check_folder(images, "255"), images / "manifest.json")
    refused = attempt(run, point)
    assert refused.codes == {0: EXIT_BAD_DATA}
    assert "were trained on other images: SHA-256 of the data's manifest: " in refused.state.reason
    assert "waiting for the end" not in refused.output
    assert "two attempts of one run" not in refusal.read_text(), "of the attempt of this number before"
    for path, content in before.items():
        path.write_bytes(content)
    resumed = attempt(run, point).record
    assert resumed.complete, resumed.problems
    assert resumed.header is not None
    assert [facts.attempt for facts in resumed.header.attempts()] == [1, 3]
    (earlier,) = resumed.header.earlier
    assert earlier.manifest_sha256 == resumed.header.manifest_sha256
    assert earlier.workers[0].process == left.pid
    assert not (run / OWNER_NAME).exists()


CONTENDERS = """
import os, signal, sys
from pathlib import Path
from unet_scaling.run import run_claim
from unet_scaling.base.files import write_json_with_checksum

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
