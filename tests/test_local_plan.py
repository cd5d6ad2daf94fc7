"""How many cores a played worker has, and how much work it is to look at a study."""

import cProfile
import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm.local import cores_per_worker
from tests.records import write_record
from tests.studies import TINY_STUDY, make_images, make_run
from unet_scaling.study import record
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import read_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    data = make_images(tmp_path / "data", 12)
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_STUDY.format(data=data, workers=[1, 2], epochs=3))
    return path


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
    path = tmp_path / "tiny.toml"
    path.write_text(TINY_STUDY.format(data=tmp_path, workers=workers, epochs=2) + training)
    assert cores_per_worker(read_study(path), cores) == each


def test_cores_that_a_study_sets_are_refused_where_the_machine_has_fewer(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    training = "cores_per_worker = [1, 2]"
    path.write_text(TINY_STUDY.format(data=tmp_path, workers=[1, 2], epochs=2) + training)
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
    monkeypatch.setattr("slurm.status.MOST_TABLE_ROWS", 0)
    calls = []
    for size in (1, 8, 16, 24):  # the first imports what the others find
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
