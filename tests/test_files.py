"""Files are the old or the new one, on a disk that fails for a moment or for good."""

import errno
import os
import re
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from unet_scaling.base import files
from unet_scaling.base.files import remove_unfinished, write_atomically
from unet_scaling.study.config import PROJECT


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, which do not take their time here."""
    slept: list[float] = []
    monkeypatch.setattr("unet_scaling.base.texts.time.sleep", slept.append)
    return slept


def failing(monkeypatch: pytest.MonkeyPatch, times: int, number: int) -> None:
    """Let the next `times` syncs of a file fail."""
    real = os.fsync
    left = [times]

    def fsync(descriptor: int) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr("unet_scaling.base.files.os.fsync", fsync)


@pytest.mark.parametrize(
    ("times", "number", "pauses_made", "now"),
    [
        (2, errno.ENOSPC, 2, "new"),
        (2, errno.EDQUOT, 2, "new"),
        (2, errno.EIO, 2, "new"),
        (2, errno.ESTALE, 2, "new"),
        (100, errno.ENOSPC, len(files.PAUSES_SECONDS), "old"),
        (1, errno.EACCES, 0, "old"),  # waiting does not cure it
    ],
)
def test_an_error_that_may_pass_is_waited_for_and_another_leaves_the_old_file(
    times: int,
    number: int,
    pauses_made: int,
    now: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
) -> None:
    write_atomically(tmp_path / "file", "old")
    failing(monkeypatch, times, number)
    with nullcontext() if now == "new" else pytest.raises(OSError, match=re.escape(os.strerror(number))):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == now
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert pauses == list(files.PAUSES_SECONDS[:pauses_made])


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = ["checkpoint-00001-0000002.pt", ".job.json.abc123", "weights.pt"]
    left = [".checkpoint-00001-0000003.pt.abc123", ".checkpoint-00001-0000003.pt.sha256.def456"]
    for name in kept + left:
        (tmp_path / name).touch()
    remove_unfinished(tmp_path, "checkpoint-*")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_files_are_private_unless_said_otherwise(tmp_path: Path) -> None:
    write_atomically(tmp_path / "private", "")
    write_atomically(tmp_path / "readable", "", files.READABLE)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("private", "readable")]
    assert modes == [0o600, 0o644]


KILLED = """
import os, sys
from pathlib import Path
from unet_scaling.base import files
from unet_scaling.study.config import PROJECT

folder = Path(sys.argv[1])
path = folder / "file"
os.fsync = lambda _: None  # that no power fails is all that it would add here
CONTENTS = (b"old", b"new", b"newer")


def killed_at(line, content):
    '''Let a child write, and be killed before its line of this number; return whether it reached it.'''
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    left = line

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != files.__file__:
            return None
        left -= event == "line"
        if left < 0:
            os._exit(9)
        return trace

    sys.settrace(trace)
    files.write_verified(path, content)
    os._exit(0)


first = second = 0
while True:
    for left in folder.iterdir():
        left.unlink()
    files.write_verified(path, CONTENTS[0])
    reached = killed_at(first, CONTENTS[1])
    assert files.read_verified(path) in CONTENTS[:2], first
    again = killed_at(second, CONTENTS[2])
    assert files.read_verified(path) in CONTENTS, (first, second)
    second = second + 11 if again else (first + 1) % 11
    first += not again
    if not (reached or again):
        break
print(first)
"""


def test_a_writer_that_is_killed_at_any_line_leaves_the_old_or_the_new_content(tmp_path: Path) -> None:
    """Also where the next one, which finds what it left, is killed too."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path], capture_output=True, text=True, timeout=120, cwd=PROJECT
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
