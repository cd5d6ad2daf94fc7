"""What others wrote reaches every output as plain text; what cannot be read or written ends in one line."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import pytest

from analysis.report.tables import as_csv
from tests.records import make_workers, write_run
from tests.studies import TINY_STUDY
from unet_scaling.base.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_USAGE
from unet_scaling.study.config import PROJECT

HOSTILE = "no\x1b[31mde\x07\u202e1\x9b2J"
NARROW = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Return a study of one complete run, on a host of a hostile name."""
    folder = tmp_path / "logs" / "st\u00fcdy"
    worker = make_workers(1)[0].model_copy(update={"host": HOSTILE})
    write_run(folder, header={"workers": [worker]})
    return folder


def command(
    *words: object, shell: str = '"$@"', environment: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        ["bash", "-c", shell, "bash", sys.executable, "-m", "unet_scaling", *map(str, words)],
        cwd=PROJECT, capture_output=True, env=os.environ | environment, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize(
    "module", ["unet_scaling.base.errors", "numpy", "pandas._libs.lib", "analysis.study"]
)
def test_ctrl_c_while_a_command_is_imported_is_one_line(module: str, study: Path) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "unet_scaling", "report", str(study)]

    def hear() -> None:
        """What a shell starts in the background ignores Ctrl-C."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(words, cwd=PROJECT, stderr=subprocess.PIPE, text=True, preexec_fn=hear) as process:
        lines = iter(process.stderr or ())
        assert any(line.split("|")[-1].strip() == module for line in lines)
        process.send_signal(signal.SIGINT)
        said = [line for line in lines if not line.startswith("import time:")]
    assert (process.returncode, said) == (EXIT_INTERRUPTED, ["error: stopped by the keyboard\n"])


def test_a_host_cannot_steer_the_terminal(study: Path) -> None:
    done = command("status", study, environment={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode()
    assert "no[31mde12J" in "".join(shown.split())
    assert all(letter.isprintable() or letter == "\n" for letter in shown)


@pytest.mark.parametrize(
    ("shell", "environment", "code", "said"),
    [
        (">&-", {}, EXIT_USAGE, b"error: standard output is closed"),
        ("2>&- >&-", {}, EXIT_USAGE, b""),
        (">/dev/full", {}, EXIT_BUG, b"error: standard output: No space left on device"),
        ("", NARROW, 0, b""),
    ],
)  # fmt: skip
def test_a_stream_that_is_closed_full_or_narrow_ends_in_one_line(
    shell: str, environment: dict[str, str], code: int, said: bytes, study: Path
) -> None:
    done = command("status", study, shell=f'"$@" {shell}', environment=environment)
    assert (done.returncode, done.stderr[: len(said)]) == (code, said), done.stderr
    assert done.stderr.count(b"\n") <= 1
    assert b"Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "written"),
    [("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"), ("@SUM(A1)", "'@SUM(A1)"), ("+x", "'+x"), ("-x", "'-x"),
     ("\t=x", "' =x"), ("-3.5", "-3.5"), ("a=b", "a=b"), ("-", "-"), ("\x1b[1m", "[1m")],
)  # fmt: skip
def test_no_text_of_a_table_is_a_formula(text: str, written: str) -> None:
    table = as_csv(pd.DataFrame({"name": [text, "b"], "number": [-1.5, 2]})).decode()
    assert table == f"name,number\n{written},-1.5\nb,2\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"a = {'[' * 1000}", "is not valid TOML"),
        (TINY_STUDY.format(data="~nouser/x", workers=[1], epochs=1), "data.folder: found"),
    ],
)
def test_a_study_file_that_cannot_be_read_is_an_error_of_one_line(
    content: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(content)
    done = command("run", path, "--dry-run")
    assert done.returncode == EXIT_USAGE
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["study.json", "config.json"])
def test_json_that_is_nested_too_deeply_is_an_error_of_one_line(name: str, study: Path) -> None:
    run = next(study.iterdir())
    (study / name if name == "study.json" else run / name).write_text("[" * 100_000)
    done = command("status", study)
    assert b"Traceback" not in done.stderr


def test_what_is_made_under_any_umask_is_written_by_its_owner_alone(study: Path) -> None:
    done = command("report", study, "--output", study / "new" / "report", shell='umask 000; "$@"')
    assert done.returncode == 0, done.stderr
    made = [study / "new", *(study / "new").rglob("*")]
    assert not [path for path in made if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]


def test_a_study_folder_that_anyone_may_write_is_said(study: Path) -> None:
    study.chmod(0o777)
    assert b"may be written by anyone: chmod o-w" in command("status", study).stderr


def test_a_report_folder_that_is_a_link_is_not_followed(study: Path, tmp_path: Path) -> None:
    behind = tmp_path / "behind"
    behind.mkdir()
    (behind / "report.html").write_text("another")
    (study / "report").symlink_to(behind)
    done = command("report", study)
    assert done.returncode == EXIT_USAGE
    assert b"report is a link" in done.stderr
    assert [path.name for path in behind.iterdir()] == ["report.html"]
    assert (behind / "report.html").read_text() == "another"
