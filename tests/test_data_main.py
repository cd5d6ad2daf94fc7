"""The commands of python -m unet_scaling.data, as a person runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.data_folders import blob, cut, make_folder, save
from unet_scaling.data.__main__ import main
from unet_scaling.data.manifest import read_manifest
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import run_program


def run(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the program; what it prints is captured by the test."""
    monkeypatch.setattr(sys, "argv", ["data", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_program(main)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_check_writes_the_manifest_and_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path)
    assert run("check", tmp_path, "--foreground", "255", monkeypatch=monkeypatch) == 0
    manifest = read_manifest(tmp_path / "manifest.json")
    assert capsys.readouterr().out.splitlines() == [
        "pairs       4",
        "sizes       16 x 12 (4)",
        "images      grey 8 bit (4)",
        "masks       grey 8 bit (4)",
        "values      0, 255",
        "foreground  255: 12.5% / 12.5% / 12.5% of an image (lowest / median / highest)",
        "range       0 to 255 of 255: 256 of 256 levels",
        f"manifest    {tmp_path}/manifest.json",
        f"sha256      {manifest.sha256}",
    ]


def test_problems_end_with_65_and_leave_the_manifest_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path)
    run("check", tmp_path, monkeypatch=monkeypatch)
    before = (tmp_path / "manifest.json").read_bytes()
    cut(tmp_path / "images" / "p1.png", 0.5)
    save(tmp_path / "masks" / "extra.png", blob())
    assert run("check", tmp_path, monkeypatch=monkeypatch) == 65
    assert "2 problems found" in capsys.readouterr().err
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_a_manifest_may_be_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "data")
    # Root may write anywhere: a folder of the manifest's name stands for a read-only data folder.
    (tmp_path / "data" / "manifest.json").mkdir()
    assert run("check", tmp_path / "data", monkeypatch=monkeypatch) == 2
    assert "--manifest PATH" in capsys.readouterr().err
    assert run("check", tmp_path / "data", "--manifest", tmp_path / "m.json", monkeypatch=monkeypatch) == 0
    assert len(read_manifest(tmp_path / "m.json").pairs) == 4


def test_make_leaves_a_folder_ready_for_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--count", 3, "--height", 40, "--width", 48, "--seed", 5)
    assert run("make", tmp_path, *size, monkeypatch=monkeypatch) == 0
    manifest = read_manifest(tmp_path / "manifest.json")
    assert [(pair.height, pair.width) for pair in manifest.pairs] == [(40, 48)] * 3
    manifest.require_unchanged(tmp_path)
    assert run("make", tmp_path, *size, monkeypatch=monkeypatch) == 0
    assert "exists already" in capsys.readouterr().out
    assert read_manifest(tmp_path / "manifest.json") == manifest


def test_make_on_a_folder_of_real_images_suggests_another_folder_and_never_to_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run("make", tmp_path / "mine", monkeypatch=monkeypatch) == 2
    told = capsys.readouterr().err
    assert "another folder" in told
    assert "remove" not in told
    assert run("make", tmp_path / "made", "--count", 2, monkeypatch=monkeypatch) == 0
    assert run("make", tmp_path / "made", "--count", 3, monkeypatch=monkeypatch) == 2
    assert "remove" not in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == before


def test_wrong_usage_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch=monkeypatch) == 2
    assert run("check", tmp_path, "--foreground", "white", monkeypatch=monkeypatch) == 2
    assert "data.foreground" in capsys.readouterr().err


def test_the_commands_explain_themselves_without_importing_torch() -> None:
    program = "import sys; sys.argv = ['data', '--help']; from unet_scaling.data.__main__ import main\n"
    program += "try:\n    main()\nexcept SystemExit:\n    print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert all(word in done.stdout for word in ("check", "fetch", "make", "images/ and masks/"))
    assert done.stdout.endswith("False\n")


def test_output_that_is_not_a_terminal_gets_no_progress_bar(tmp_path: Path) -> None:
    make_folder(tmp_path)
    command = [sys.executable, "-m", "unet_scaling.data", "check", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
