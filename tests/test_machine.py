"""A comparison of times is skipped where the machine was busy, and no test gets a second try."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.budgets import write_budget_run
from tests.machine import (
    quiet_machine,
    skip_where_disturbed,
    taken_by_others,
    unexplained,
)
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import RECORD_NAME, Record, read_record

BURN = """
import time
end = time.thread_time() + 0.5
while time.thread_time() < end:
    pass
print("done", flush=True)
"""


def test_what_other_processes_took_skips_a_comparison_of_times_and_is_named() -> None:
    """A child counts as another process until it was waited for."""
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        with pytest.raises(pytest.skip.Exception, match=r"others took \d+% of these cores"), quiet_machine():
            other.stdout.readline()


def with_other_seconds(record: Record, seconds: float) -> Record:
    """The record, where the core of worker 0 gave so much to other processes in the last epoch."""
    *before, last = record.epochs
    assert last.cpu is not None
    cpu = [last.cpu[0].model_copy(update={"other_seconds": seconds}), *last.cpu[1:]]
    return replace(record, epochs=(*before, last.model_copy(update={"cpu": cpu})))


def test_the_record_tells_what_others_took(tmp_path: Path) -> None:
    record = read_record(write_budget_run(tmp_path) / RECORD_NAME)
    assert taken_by_others(record) == 0
    skip_where_disturbed(record)
    disturbed = with_other_seconds(record, 0.4 * sum(epoch.worker_seconds[0] for epoch in record.epochs))
    assert taken_by_others(disturbed) == pytest.approx(0.4)
    with pytest.raises(pytest.skip.Exception, match="others took 40% of these cores"):
        skip_where_disturbed(disturbed, asleep=range(len(record.epochs)))


def test_time_of_a_worker_that_nothing_explains_is_its_host_s_unless_it_slept(tmp_path: Path) -> None:
    """Nine tenths of the time of such a run are its own work."""
    record = read_record(write_budget_run(tmp_path) / RECORD_NAME)
    assert unexplained(record) == pytest.approx(0.1)
    assert unexplained(record, asleep=range(len(record.epochs))) == 0


def test_nothing_that_runs_a_failed_test_again_is_installed_with_the_tests() -> None:
    """`--strict-markers` then refuses a test that asks for it."""
    for name in ("pyproject.toml", "environment/constraints.txt"):
        text = (PROJECT / name).read_text()
        assert "rerun" not in text
        assert "flaky" not in text
    assert "--strict-markers" in (PROJECT / "pyproject.toml").read_text()
