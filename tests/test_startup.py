"""The time from the start of a process to its first epoch, in its parts."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trained import TrainedRuns, plain_config
from unet_scaling.group.group import single_worker
from unet_scaling.measure import startup
from unet_scaling.measure.startup import StartupClock, process_age
from unet_scaling.study.measurements import STARTUP_COLUMNS, Startup


def test_a_process_knows_its_age() -> None:
    program = (
        "from unet_scaling.measure.startup import process_age; import time; "
        "time.sleep(1); print(process_age())"
    )
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 1 <= float(done.stdout) <= time.perf_counter() - begin + 0.1


def test_parts_follow_the_marks() -> None:
    now = time.perf_counter()
    clock = StartupClock(opened=now)
    for part, seconds in zip(STARTUP_COLUMNS[1:], (1, 3, 6, 10, 15), strict=True):
        clock.mark(part, now + seconds)
    found = clock.startup(single_worker())
    assert found is not None
    assert [getattr(found, column) for column in STARTUP_COLUMNS[1:]] == [[1.0], [2.0], [3.0], [4.0], [5.0]]
    age = process_age()
    assert age is not None
    assert 0 < found.imports_seconds[0] <= age


def test_where_a_process_does_not_know_its_start_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "STAT", Path("/nowhere"))
    clock = StartupClock(opened=time.perf_counter())
    for part in STARTUP_COLUMNS[1:]:
        clock.mark(part)
    assert clock.startup(single_worker()) is None


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["pytorch_native", "horovod"])
def test_a_run_records_the_start_of_every_worker(
    framework: str, images: Path, trained_run: TrainedRuns
) -> None:
    run = trained_run(plain_config(images, framework))
    startup_line = run.record.startup
    assert isinstance(startup_line, Startup)
    parts = [getattr(startup_line, column) for column in STARTUP_COLUMNS]
    assert all(len(part) == 2 for part in parts)
    assert min(startup_line.imports_seconds) > 0.1
    assert all(0 < sum(worker) < run.launch_seconds for worker in zip(*parts, strict=True))
