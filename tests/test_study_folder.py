"""What a run has come to, where its workers could not say it."""

import subprocess
import sys
from pathlib import Path

from tests.records import write_run
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.run_state import run_state

READS_BEYOND_THE_END = """
import mmap, os, sys
from unet_scaling.study.errors import run_worker

def main():
    with open(sys.argv[1], "r+b") as file:
        file.truncate(100_000)
        mapped = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
        print(mapped[50_000])

run_worker(main)
"""


def test_a_bus_error_has_a_sentence(tmp_path: Path) -> None:
    """A mapped file is cut after it was looked at; the kernel then leaves no time for an error report."""
    run = write_run(tmp_path)
    record = run / RECORD_NAME
    record.write_bytes(b"".join(record.read_bytes().splitlines(keepends=True)[:-1]))
    assert run_state(run).reason == "no end line after 3 of 3 epochs: it failed or still runs; see output.log"
    (tmp_path / "mapped").touch()
    command = [sys.executable, "-c", READS_BEYOND_THE_END, str(tmp_path / "mapped")]
    with (run / "output.log").open("wb") as output:
        code = subprocess.run(command, cwd=PROJECT, stdout=output, stderr=output).returncode
    assert code < 0
    assert run_state(run).reason.startswith(
        "a worker ended by a bus error: a file that was mapped into memory"
    )
