"""The progress of a study on this machine: steps as they are done, the time that is left."""

import io
import re
import time
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from slurm.estimate import KnownSeconds, recorded_seconds
from slurm.local import StudyProgress
from tests.records import write_record
from tests.studies import make_point
from unet_scaling.study.config import RunConfig
from unet_scaling.study.progress import STEPS_VARIABLE, counted
from unet_scaling.study.run_state import recorded_run


def some_points(repeats: int) -> list[RunConfig]:
    point = make_point(Path("/data"), epochs=4)
    runs = [{"run": f"pytorch_native-w1-r{number}", "repeat": number} for number in range(1, repeats + 1)]
    return [point.model_copy(update=run) for run in runs]


def train(monkeypatch: pytest.MonkeyPatch, file: Path, epoch: int, steps: int, of: int) -> None:
    """Take steps of an epoch as worker 0 does."""
    monkeypatch.setenv(STEPS_VARIABLE, str(file))
    list(islice(counted(range(of), epoch, 0, of), steps + 1))


def test_a_terminal_shows_step_speed_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    points = some_points(2)
    text = io.StringIO()
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with StudyProgress(Console(file=text, width=160, force_terminal=True), KnownSeconds()) as progress:
        progress.begin(points[0], points, points[1:])
        assert "starting for" in text.getvalue()
        for steps in (1, 3):
            train(monkeypatch, progress.steps_file, 1, steps, 5)
            progress.show()
        progress.end("complete in 40 min")
    assert "[1/2] pytorch_native-w1-r1" in text.getvalue()
    said = re.search(
        r"epoch 2/4, step 3/5, ([\d.]+) images/s, \d+ s so far, about \d+ min left", text.getvalue()
    )
    assert said
    assert float(said.group(1)) == pytest.approx(2 * points[0].training.batch_per_worker / 40, abs=0.1)


def test_a_pipe_gets_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = some_points(3)
    (tmp_path / points[0].run).mkdir()
    write_record(tmp_path / points[0].run, points[0])
    known = KnownSeconds()
    run = recorded_run(tmp_path / points[0].run, points[0])
    known.learn(run)
    assert run.record is not None
    assert known.foreseen(points[1:]) == 2 * recorded_seconds(run.record)
    text = io.StringIO()
    with StudyProgress(Console(file=text, width=120), known) as progress:
        progress.begin(points[1], points, points[2:])
        progress.show()
        progress.end("complete in 3 s")
        progress.begin(points[2], points, points[3:])
        monkeypatch.setattr("slurm.local.PIPE_SECONDS", 0.0)
        train(monkeypatch, progress.steps_file, 0, 2, 5)
        progress.show()
        progress.end("complete in 4 s")
    first, _, between, second = text.getvalue().splitlines()
    assert between.startswith("  epoch 1/4, step 2/5, 0 s so far")
    assert first.startswith("[2/3] pytorch_native-w1-r2 ... complete in 3 s; about ")
    assert first.endswith(" left")
    assert second == "[3/3] pytorch_native-w1-r3 ... complete in 4 s"
