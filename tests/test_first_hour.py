"""What a newcomer meets in the first hour: interrupted runs, and the command to go on with."""

import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console

from slurm.after_run import is_to_be_repeated
from slurm.commands import new
from slurm.local import require_ready
from slurm.study_folder import open_study_folder
from tests.data_folders import make_folder
from tests.records import Measured, make_epochs, make_point, write_run
from unet_scaling.study.errors import UserError
from unet_scaling.study.run_state import recorded_run
from unet_scaling.study.study_file import read_study


def test_a_run_whose_epochs_all_follow_a_start_or_resume_is_measured_again(tmp_path: Path) -> None:
    """Each warms up, and none is timed: DDP on 2 workers would be missing from the report."""
    point = make_point("pytorch_native", 2, 1)
    epochs = make_epochs(point, 100.0, 48)
    for number, warm_up in enumerate((1, len(epochs))):
        flagged = [each.model_copy(update={"warmup": place < warm_up}) for place, each in enumerate(epochs)]
        folder = write_run(tmp_path / str(number), "pytorch_native", 2, measured=Measured(flagged))
        run = recorded_run(folder, point)
        assert run.state.is_complete
        assert is_to_be_repeated(run, Console(quiet=True)) == (warm_up > 1)


def test_new_writes_nothing_into_the_folder_of_the_images_and_tells_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are often somebody else's: the manifest goes beside the study, which runs with it."""
    tmp_path = tmp_path / "a study"
    folder = make_folder(tmp_path / "data", count=6, height=32, width=32)
    before = sorted(path.name for path in folder.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["unet-scaling new", "mine", "--data", str(folder), "--into", str(tmp_path)]
    )
    new.main()
    assert sorted(path.name for path in folder.rglob("*")) == before
    printed = capsys.readouterr().out
    assert "20 runs: about " in printed
    assert shlex.split(printed.splitlines()[-1])[-1] == str(tmp_path / "mine.toml")
    study = read_study(tmp_path / "mine.toml")
    assert study.configs()[0].data.manifest_path == tmp_path / "mine.manifest.json"
    require_ready(open_study_folder(tmp_path / "logs", study), study.configs())


def test_a_mistake_that_new_refuses_is_mended_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest that the first left is that of these images, and serves."""
    folder = make_folder(tmp_path / "data", count=6)
    asked = ["unet-scaling new", "mine", "--data", str(folder), "--into", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*asked, "--epochs", "1"])
    with pytest.raises(UserError, match="--epochs"):
        new.main()
    monkeypatch.setattr(sys, "argv", asked)
    new.main()
    assert (tmp_path / "mine.toml").exists()
