"""The manifest identifies the data, wherever the folder is, and notices when the folder changed."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.data_folders import blob, make_folder, noise, refused, save
from unet_scaling.data.checking import check_folder
from unet_scaling.data.manifest import Manifest, read_manifest, write_manifest
from unet_scaling.study.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data")


def test_equal_data_give_identical_bytes_wherever_they_are(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    write_manifest(check_folder(folder), tmp_path / "a.json")
    write_manifest(check_folder(tmp_path / "elsewhere"), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert str(tmp_path) not in (tmp_path / "a.json").read_text()


def test_its_sum_is_that_of_the_file_and_changes_with_one_pixel(folder: Path, tmp_path: Path) -> None:
    before = check_folder(folder)
    write_manifest(before, tmp_path / "m.json")
    assert before.sha256 == hashlib.sha256((tmp_path / "m.json").read_bytes()).hexdigest()
    assert read_manifest(tmp_path / "m.json") == before
    pixels = noise(seed=0)
    pixels[0, 0] ^= 1
    save(folder / "images" / "p0.png", pixels)
    assert check_folder(folder).sha256 != before.sha256


@pytest.mark.parametrize("change", ["missing", "new", "bytes"])
def test_a_changed_folder_is_noticed_without_reading_it(folder: Path, change: str) -> None:
    manifest = check_folder(folder)
    manifest.require_unchanged(folder)
    place = folder / "masks" / ("p9.png" if change == "new" else "p1.png")
    if change == "missing":
        place.unlink()
    elif change == "new":
        save(place, blob())
    else:
        place.write_bytes(place.read_bytes() + b"x")
    with pytest.raises(UserError) as caught:
        manifest.require_unchanged(folder)
    assert refused(caught, 65, place.name, change, f".venv/bin/unet-scaling data check {folder}")


def test_a_missing_folder_is_named(folder: Path) -> None:
    manifest = check_folder(folder)
    shutil.rmtree(folder)
    with pytest.raises(UserError) as caught:
        manifest.require_unchanged(folder)
    assert refused(caught, 65, folder)


def test_another_foreground_rule_than_that_of_the_check_is_refused(folder: Path) -> None:
    manifest = check_folder(folder, "255")
    manifest.require_foreground(" 255")
    with pytest.raises(UserError) as caught:
        manifest.require_foreground(">127")
    assert refused(caught, 2, "data.foreground", "'>127'", "'255'", "check")


def broken(manifest: Manifest, fault: str) -> str:
    content = json.loads(manifest.to_json())
    first = content["pairs"][0]
    changes = {
        "no pairs": lambda: content.update(pairs=[]),
        "unknown key": lambda: content.update(more=1),
        "other format": lambda: content.update(format=2),
        "text for a number": lambda: first.update(height="12"),
        "path as name": lambda: first["image"].update(name="x/p0.png"),
        "other stem": lambda: first.update(stem="p1"),
        "not sorted": lambda: content["pairs"].reverse(),
        "too much foreground": lambda: first.update(foreground_pixels=10**6),
    }
    changes[fault]()
    return json.dumps(content)


@pytest.mark.parametrize(
    "fault",
    [
        "no pairs",
        "unknown key",
        "other format",
        "text for a number",
        "path as name",
        "other stem",
        "not sorted",
        "too much foreground",
    ],
)
def test_an_unsound_manifest_is_refused(folder: Path, fault: str) -> None:
    path = folder / "manifest.json"
    path.write_text(broken(check_folder(folder), fault))
    with pytest.raises(UserError) as caught:
        read_manifest(path)
    assert refused(caught, 65, path, "not a sound manifest", ".venv/bin/unet-scaling data check")


def test_a_torn_or_missing_manifest_names_the_command_that_makes_one(folder: Path) -> None:
    path = folder / "manifest.json"
    with pytest.raises(UserError, match=r"does not exist; run \.venv/bin/unet-scaling data check"):
        read_manifest(path)
    path.write_text(check_folder(folder).to_json()[:-20])
    with pytest.raises(UserError, match="not a sound manifest"):
        read_manifest(path)


def test_an_unwritable_place_names_the_option_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        write_manifest(check_folder(folder), tmp_path / "file" / "manifest.json")
    assert refused(caught, 2, tmp_path / "file", "--manifest PATH")
