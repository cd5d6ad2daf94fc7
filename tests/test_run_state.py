"""The state that the files of a run folder show."""

import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import get_args

import pytest

from tests.records import write_run
from unet_scaling.base.errors import UserError
from unet_scaling.format.record import CHECKSUM_BYTES, CHECKSUM_FORMAT, RECORD_NAME
from unet_scaling.format.run_state import Exclusion, State, recorded_run, run_state
from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import read_config

READS_BEYOND_THE_END = """
import mmap, os, sys
from unet_scaling.base.errors import run_worker

def main():
    with open(sys.argv[1], "r+b") as file:
        file.truncate(100_000)
        mapped = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
        print(mapped[50_000])

run_worker(main)
"""


def test_a_run_of_an_earlier_format_is_not_taken_for_one_to_train_again(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    record = run / RECORD_NAME
    first, *others = record.read_bytes().splitlines(keepends=True)
    earlier = first[: -CHECKSUM_BYTES - 1].replace(b'"format":5', b'"format":4')
    record.write_bytes(b"".join([earlier + CHECKSUM_FORMAT % zlib.crc32(earlier) + b"\n", *others]))
    with pytest.raises(UserError, match=r"header\.format: .* found 4.*; use the version that wrote it"):
        recorded_run(run, read_config(run / "config.json")).require_known_format()


def test_a_bus_error_has_a_sentence(tmp_path: Path) -> None:
    """A mapped file is cut after it was looked at; the kernel then leaves no time for an error report."""
    run = write_run(tmp_path)
    record = run / RECORD_NAME
    record.write_bytes(b"".join(record.read_bytes().splitlines(keepends=True)[:-1]))
    reason = run_state(run).reason
    assert reason.startswith("no end line after 3 of 3 epochs: it failed or still runs")
    assert "(worker 0 was process 1000 on node1); see output.log" in reason
    (tmp_path / "mapped").touch()
    command = [sys.executable, "-c", READS_BEYOND_THE_END, str(tmp_path / "mapped")]
    with (run / "output.log").open("wb") as output:
        code = subprocess.run(command, cwd=PROJECT, stdout=output, stderr=output).returncode
    assert code < 0
    assert run_state(run).reason.startswith(
        "a worker ended by a bus error: a file that was mapped into memory"
    )


def test_a_damaged_report_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, end=None)
    for report in ("{", "[]", json.dumps({"attempt": "one"})):
        (run / "error.attempt1.worker0.json").write_text(report)
        state = run_state(run)
        assert state.state == "failed"
        assert state.reason.startswith(f"a report of a worker that failed in {run} cannot be read: ")


def test_the_glossary_explains_every_state_and_no_other() -> None:
    text = (PROJECT / "docs" / "glossary.md").read_text()
    section = text.split("## State of a run", 1)[1].split("\n## ", 1)[0]
    explained = re.findall(r"^\| ([a-z ]+) \|", section, flags=re.MULTILINE)
    assert explained == ["state", *get_args(State), "word", *get_args(Exclusion)]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)", "Killed"),
        ("=   KILLED BY SIGNAL: 11 (Segmentation fault)", "Segmentation fault"),
        ("mpirun noticed that process rank 1 with PID 7 on node n1 exited on signal 9 (Killed).", "Killed"),
        ("srun: error: node2: task 1: Out Of Memory", "Out Of Memory"),
        ("slurmstepd: error: node2: tasks 0-3: Segmentation fault", "Segmentation fault"),
    ],
)
def test_a_killed_worker_is_told_by_its_signal(said: str, name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path, end=None)
    (run / "output.log").write_text(f"epoch 1\n{said}\n")
    state = run_state(run)
    assert state.state == "failed"
    assert f"({name})" in state.reason
    assert ("training.accumulate" in state.reason) == (name != "Segmentation fault")
