"""A study on this machine: cores of a played worker, the work to look at it, its progress and time left."""

import cProfile
import importlib
import io
import re
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from slurm.launch.estimate import KnownSeconds, sum_seconds
from slurm.launch.local import StudyProgress, cores_per_worker
from tests.records import write_record
from tests.studies import make_images, make_point, make_run, tiny_study
from unet_scaling.base.errors import UserError
from unet_scaling.base.progress import STEPS_VARIABLE, counted
from unet_scaling.format import record
from unet_scaling.format.run_state import recorded_run
from unet_scaling.study.config import RunConfig
from unet_scaling.study.study_file import read_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return tiny_study(tmp_path, make_images(tmp_path / "data", 12), epochs=3)


@pytest.mark.parametrize(
    ("workers", "training", "cores", "each"),
    [
        ([1, 2, 4], "", 8, 2),
        ([1], "plays = [1, 2, 4]", 8, 2),
        ([1], "plays = 2", 8, 4),
        ([1, 2], "plays = 2", 8, 4),
        ([1], "plays = [1, 14]", 2, 1),
        ([1], "plays = [1, 4]\ncores_per_worker = 6", 8, 8),
        ([1], "plays = [1, 4]\ncores_per_worker = [1, 6]", 8, 8),
    ],
)
def test_a_played_worker_has_the_cores_of_a_real_one(
    workers: list[int], training: str, cores: int, each: int, tmp_path: Path
) -> None:
    path = tiny_study(tmp_path, tmp_path, workers, more=training)
    assert cores_per_worker(read_study(path), cores) == each


def test_cores_that_a_study_sets_are_refused_where_the_machine_has_fewer(tmp_path: Path) -> None:
    path = tiny_study(tmp_path, tmp_path, more="cores_per_worker = [1, 2]")
    assert cores_per_worker(read_study(path), 4) == 2
    with pytest.raises(UserError, match="cores_per_worker = 2 need 4 cores, this machine gives 3"):
        cores_per_worker(read_study(path), 3)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("slurm.commands.status", ["tiny"]),
        ("slurm.commands.run", ["tiny.toml", "--dry-run"]),
        (
            "slurm.commands.submit",
            ["tiny.toml", "--dry-run", "--cluster", "slurm/clusters/generic_srun.toml"],
        ),
    ],
)
def test_work_grows_with_the_runs_alone_and_each_record_is_read_once(
    module: str, words: list[str], study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the points are complete, and the others are estimated from them."""
    read: list[Path] = []

    def noted(path: Path) -> bytes:
        read.append(path)
        return path.read_bytes()

    monkeypatch.setattr(record, "read_regular", noted)
    written = study.read_text().replace("batch_per_worker = 2", "batch_per_worker = [2, 4]")
    monkeypatch.setattr("slurm.commands.status.MOST_TABLE_ROWS", 0)
    calls = []
    for size in (24, 8, 16, 24):  # the first imports what the others find
        study.write_text(re.sub("repeats = .*", f"repeats = {size}", written))
        for config in read_study(study).configs():
            folder = study.parent / "tiny" / config.run
            if config.training.batch_per_worker == 2 and not folder.exists():
                write_record(make_run(folder, config), config)
        paths = [str(study) if word == study.name else word for word in words]
        monkeypatch.setattr("sys.argv", ["unet-scaling", *paths, "--logs", str(study.parent)])
        read.clear()
        calls.append(calls_of(importlib.import_module(module).main))
        assert 0 < len(read) == len(set(read))
    few, some, many = calls[1:]
    assert many - 2 * some + few < (4 * 8) ** 2, calls


def calls_of(program: Callable[[], object]) -> int:
    """Return how many functions a program calls: what a clock would say on a machine without noise."""
    profile = cProfile.Profile()
    profile.runcall(program)
    return sum(entry.callcount for entry in profile.getstats())


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
    assert known.estimate(points[1:]) == 2 * sum_seconds(run.record)
    text = io.StringIO()
    with StudyProgress(Console(file=text, width=120), known) as progress:
        progress.begin(points[1], points, points[2:])
        progress.show()
        progress.end("complete in 3 s")
        progress.begin(points[2], points, points[3:])
        monkeypatch.setattr("slurm.launch.local.PIPE_SECONDS", 0.0)
        train(monkeypatch, progress.steps_file, 0, 2, 5)
        progress.show()
        progress.end("complete in 4 s")
    first, _, between, second = text.getvalue().splitlines()
    assert between.startswith("  epoch 1/4, step 2/5, 0 s so far")
    assert first.startswith("[2/3] pytorch_native-w1-r2 ... complete in 3 s; about ")
    assert first.endswith(" left")
    assert second == "[3/3] pytorch_native-w1-r3 ... complete in 4 s"
