"""The report that follows a study: written again when a record changes, until all runs are complete."""

import time
from pathlib import Path

import pytest

import analysis.__main__
from analysis.report.watch import Watched
from slurm.study_folder import StudyFolder
from tests.records import write_record
from unet_scaling.study.config import StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_lines import End


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    """A study of one run of each framework; neither has started."""
    study = {
        "name": "tiny",
        "workers": [1],
        "repeats": 1,
        "data": {"folder": "/data", "image_height": 32, "image_width": 32},
        "training": {"epochs": 3},
    }
    folder = StudyFolder(tmp_path / "tiny", StudyConfig.model_validate(study))
    folder.prepare()
    return folder


def complete(folder: StudyFolder, number: int) -> None:
    config = folder.study.configs()[number]
    write_record(folder.run_folder(config), config)


def test_the_report_follows_the_records_until_all_runs_are_complete(
    folder: StudyFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report" / "report.html"
    watched = Watched(folder.path, tmp_path / "report")
    assert not watched.is_over()
    assert not page.exists()
    assert "0 of 2 runs complete; no report without one" in capsys.readouterr().out
    complete(folder, 0)
    assert not watched.is_over()
    assert capsys.readouterr().out.endswith(" 1 of 2 runs complete; report written\n")
    before = page.stat().st_mtime_ns
    assert not watched.is_over()
    assert page.stat().st_mtime_ns == before
    assert capsys.readouterr().out == ""
    complete(folder, 1)
    assert watched.is_over()


def test_a_run_that_diverged_ends_the_watch(folder: StudyFolder, tmp_path: Path) -> None:
    complete(folder, 0)
    config = folder.study.configs()[1]
    write_record(folder.run_folder(config), config, end=End(status="diverged", reason="loss"))
    assert Watched(folder.path, tmp_path / "report").is_over()


def test_ctrl_c_keeps_the_last_report_and_ends_well(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    complete(folder, 0)
    page = folder.path / "report" / "report.html"
    shown = []

    def interrupt(_seconds: float) -> None:
        shown.append(page.read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert analysis.__main__.main([str(folder.path), "--watch", "3"]) == 0
    assert shown == [page.read_text()]
    assert "ended; the report stays as it is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reference", "logs", "--watch"], "--watch: only for the records of a study"),
        (["logs/none", "--watch", "--images", "3"], "--images: only with --reference"),
    ],
)
def test_only_records_are_watched(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        analysis.__main__.main(arguments)
