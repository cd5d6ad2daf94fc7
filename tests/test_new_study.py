"""`unet-scaling new` without Slurm: a study by the images, valid as it is written, and never overwritten."""

import sys
from pathlib import Path

import pytest

from slurm.commands import new
from slurm.new_study import (
    FEWEST_STEPS_PER_EPOCH,
    suggested_batch,
    survey_images,
)
from slurm.reference import file_kinds
from tests.data_folders import blob, make_folder, noise, save
from tests.studies import make_images
from unet_scaling.data.batches import split
from unet_scaling.study.errors import UserError
from unet_scaling.study.study_file import read_study

STUDY_KIND, _ = file_kinds()


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the Slurm of this machine, and keep all files in a folder of the test."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["unet-scaling new", *words])
    new.main()


def test_a_folder_of_images_gives_a_study_that_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_images(tmp_path / "data", 40, 64, 48)
    call(monkeypatch, "first", "--data", str(data), "--workers", "1,2")
    study = read_study(tmp_path / "first.toml")
    config = study.configs()[-1]
    assert study.workers == [1, 2]
    assert (config.data.image_height, config.data.image_width) == (64, 48)
    assert config.training.batch_per_worker == 2  # 32 training images, 2 workers, 8 steps
    assert not (tmp_path / "first.cluster.toml").exists()


def test_no_file_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_images(tmp_path / "data", 8)
    (tmp_path / "mine.cluster.toml").write_text("mine")
    with pytest.raises(UserError, match=r"mine\.cluster\.toml exists, and is not overwritten"):
        call(monkeypatch, "mine", "--data", str(data))
    assert (tmp_path / "mine.cluster.toml").read_text() == "mine"
    assert not (tmp_path / "mine.toml").exists()


def test_a_terminal_is_asked_and_its_answers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_images(tmp_path / "data", 8)
    answers = {"Folder": str(data), "Worker": "1", "Epochs": "7", "Repeats": "3"}
    asked: list[str] = []

    def answer(question: str, default: str) -> str:
        asked.append(question)
        return answers[question.split()[0]]

    monkeypatch.setattr(new, "_ask_terminal", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    call(monkeypatch, "asked")
    study = read_study(tmp_path / "asked.toml")
    assert (study.workers, study.repeats, study.training["epochs"]) == ([1], 3, 7)
    call(monkeypatch, "quiet", "--data", str(data), "--yes")
    assert len(asked) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["../mine"], "NAME: found '../mine'"),
        (["mine"], "--data FOLDER: name the folder"),
        (["mine", "--data", "nosuch"], "nosuch/images: cannot be listed"),
        (["mine", "--data", "data", "--epochs", "1"], "--epochs: found 1"),
    ],
)
def test_what_cannot_be_a_study_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path / "data", 8)
    with pytest.raises(UserError, match=message):
        call(monkeypatch, *words)


def test_images_without_manifest_are_checked_and_get_one(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", count=5, height=40, width=72)
    facts = survey_images(folder, None)
    assert (facts.images, facts.height, facts.width, facts.foreground) == (5, 40, 72, "nonzero")
    assert facts.training_images == len(split(5, 0.2, 42).train)
    assert (folder / "manifest.json").exists()
    with pytest.raises(UserError, match=r"data\.foreground: found '255'"):
        survey_images(folder, "255")


def test_masks_of_several_classes_name_them_as_foreground(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", count=3)
    save(folder / "images" / "q.png", noise())
    save(folder / "masks" / "q.png", blob(value=7))
    assert survey_images(folder, None).foreground == "7,255"


@pytest.mark.parametrize("workers", [1, 2, 14, 64])
def test_the_batch_leaves_enough_steps_to_the_largest_worker_count(workers: int) -> None:
    batch = suggested_batch(896, workers)
    assert 896 // (workers * batch) >= FEWEST_STEPS_PER_EPOCH
    assert batch == 16 or 896 // (workers * 2 * batch) < FEWEST_STEPS_PER_EPOCH
