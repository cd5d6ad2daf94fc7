"""A synthetic folder is made once, finished when interrupted, and never put over other files."""

from pathlib import Path

import pytest

from tests.data_folders import refused
from unet_scaling.data.checking import check_folder
from unet_scaling.data.synthetic import make
from unet_scaling.study.errors import UserError

SIZE = {"count": 3, "height": 32, "width": 40, "seed": 2}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_equal_parameters_make_equal_sound_folders(tmp_path: Path) -> None:
    assert make(tmp_path / "a", **SIZE)
    assert make(tmp_path / "b" / "deeper", **SIZE)
    assert contents(tmp_path / "a") == contents(tmp_path / "b" / "deeper")
    manifest = check_folder(tmp_path / "a")
    assert [(pair.height, pair.width) for pair in manifest.pairs] == [(32, 40)] * 3


def test_a_folder_made_before_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path, **SIZE)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert not make(tmp_path, **SIZE)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


def test_an_interrupted_folder_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "whole", **SIZE)
    drawn = []

    def interrupted(folder: Path, parameters: object, index: int) -> None:
        drawn.append(index)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("unet_scaling.data.synthetic._write_pair", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "torn", **SIZE)
    assert drawn
    assert make(tmp_path / "torn", **SIZE)
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError) as caught:
        make(tmp_path, **SIZE)
    assert refused(caught, 2, tmp_path, "is not empty", "another folder")
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


@pytest.mark.parametrize("change", [{"count": 4}, {"height": 33}, {"seed": 3}])
def test_a_folder_made_with_other_parameters_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    make(tmp_path, **SIZE)
    before = contents(tmp_path)
    with pytest.raises(UserError, match="other parameters"):
        make(tmp_path, **(SIZE | change))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("key", "value"), [("count", 0), ("height", -1), ("seed", -1)])
def test_impossible_parameters_name_the_option(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(UserError, match=f"--{key}: found {value}"):
        make(tmp_path, **(SIZE | {key: value}))
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        make(tmp_path / "file" / "data", **SIZE)
    assert refused(caught, 2, tmp_path / "file")
