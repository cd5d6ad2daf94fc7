"""Files are the old or the new one, on a disk that fails for a moment or for good."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from unet_scaling.study import files
from unet_scaling.study.config import PROJECT
from unet_scaling.study.files import (
    checksum_path,
    read_verified,
    remove_unfinished,
    write_atomically,
    write_verified,
)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, which do not take their time here."""
    slept: list[float] = []
    monkeypatch.setattr("unet_scaling.study.retry.time.sleep", slept.append)
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

    monkeypatch.setattr("unet_scaling.study.files.os.fsync", fsync)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_an_error_that_passes_is_waited_for(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    failing(monkeypatch, 2, number)
    write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert len(pauses) == 2


def test_an_error_that_stays_is_raised_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    write_atomically(tmp_path / "file", "old")
    failing(monkeypatch, 100, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert pauses == list(files.PAUSES_SECONDS)


def test_an_error_that_waiting_does_not_cure_is_raised_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    failing(monkeypatch, 1, errno.EACCES)
    with pytest.raises(PermissionError):
        write_atomically(tmp_path / "file", "new")
    assert pauses == []


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


def test_a_damaged_file_does_not_match_its_checksum_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    write_verified(path, bytes(range(64)))
    assert read_verified(path) == bytes(range(64))
    for place in range(64):
        damaged = bytearray(range(64))
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"weights.pt does not match .*weights.pt.sha256"):
            read_verified(path)
    for length in range(64):
        path.write_bytes(bytes(range(length)))
        with pytest.raises(ValueError, match="does not match"):
            read_verified(path)


def test_a_file_without_its_checksum_is_not_read(tmp_path: Path) -> None:
    write_verified(tmp_path / "weights.pt", b"content")
    checksum_path(tmp_path / "weights.pt").unlink()
    with pytest.raises(FileNotFoundError):
        read_verified(tmp_path / "weights.pt")


KILLED = """
import os, sys
from pathlib import Path
from unet_scaling.study import files
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


def test_what_did_not_change_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    write_verified(path, b"content")
    before = {file: file.stat().st_ino for file in tmp_path.iterdir()}
    write_verified(path, b"content")
    assert {file: file.stat().st_ino for file in tmp_path.iterdir()} == before
