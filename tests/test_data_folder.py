"""A data folder is checked whole, described by its manifest, and made, through `unet-scaling data`."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.data_folders import blob, cut, make_folder, noise, refused, save
from unet_scaling.base.errors import UserError, run_program
from unet_scaling.data.__main__ import main
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import read_manifest, write_manifest
from unet_scaling.data.synthetic import make

SIZE = {"count": 3, "height": 32, "width": 40, "seed": 2}


class Command:
    """`unet-scaling data` in this process: exit code, output and errors."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["data", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_program(main)
        assert isinstance(ended.value.code, int)
        return ended.value.code, *self._capture.readouterr()


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_inside_of_the_data_folder_is_led_back_to_it(data: Command, folder: Path) -> None:
    code, _, error = data("check", folder / "images")
    assert (code, f"did you mean {folder}?" in error) == (65, True)


def test_the_link_that_is_advised_works(data: Command, folder: Path) -> None:
    (folder / "masks").rename(folder / "ground truth")
    cure = data("check", folder)[2].partition("if these are the masks: ")[2]
    subprocess.run(cure, shell=True, check=True)
    assert data("check", folder)[0] == 0


def test_check_describes_a_sound_folder(data: Command, folder: Path) -> None:
    code, output, _ = data("check", folder, "--foreground", "255")
    manifest = read_manifest(folder / "manifest.json")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()] == [
        "pairs", "sizes", "images", "masks", "values", "foreground", "range", "manifest", "sha256",
    ]  # fmt: skip
    assert manifest.sha256 in output
    pair = manifest.pairs[0]
    assert [pair.stem for pair in manifest.pairs] == ["p0", "p1", "p2", "p3"]
    assert (pair.height, pair.width, pair.image.mode) == (12, 16, "grey 8 bit")
    assert (pair.mask_values, pair.mask_value_count, pair.foreground_pixels) == ([0, 255], 2, 24)
    assert pair.image.bytes == (folder / "images" / "p0.png").stat().st_size


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_check_lists_all_problems_with_their_paths_and_leaves_the_manifest_alone(
    data: Command, tmp_path: Path, suffix: str
) -> None:
    make_folder(tmp_path, count=8, suffix=suffix)
    images = tmp_path / "images"
    masks = tmp_path / "masks"
    assert data("check", tmp_path)[0] == 0
    before = (tmp_path / "manifest.json").read_bytes()
    (masks / f"p0{suffix}").unlink()
    save(masks / f"extra{suffix}", blob())
    cut(images / f"p1{suffix}", 0.7)
    (images / f"p2{suffix}").write_bytes(b"")
    (images / f"p3{suffix}").write_text("this is no picture")
    save(masks / f"p4{suffix}", blob(14, 16))
    save(masks / f"p5{suffix}", blob(value=7))
    cut(masks / f"p6{suffix}", 0.5)
    code, _, errors = data("check", tmp_path, "--foreground", "255")
    assert code == 65
    faulty = [images / f"p{number}{suffix}: " for number in (0, 1, 2, 3)]
    faulty += [masks / f"{name}{suffix}: " for name in ("extra", "p4", "p5", "p6")]
    assert [errors.count(str(place)) for place in faulty] == [1] * 8
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_values_are_judged_over_the_whole_data_set_by_all_their_bits(tmp_path: Path) -> None:
    make_folder(tmp_path)
    save(tmp_path / "masks" / "p2.png", blob(value=1))
    with pytest.raises(UserError) as caught:
        check_folder(tmp_path)
    assert refused(caught, 65, "p0.png: holds 255", "p2.png: holds 1", "'1,255'")
    assert check_folder(tmp_path, "1,255").foreground == "1,255"
    assert check_folder(tmp_path, ">254").pairs[2].foreground_pixels == 0
    # 256 and 512 are both 0 in their low byte, 1 and 2 in their high byte.
    mask = blob(value=256, dtype=np.uint16)
    mask[0, 0] = 512
    save(tmp_path / "masks" / "p0.png", mask)
    assert check_folder(tmp_path, ">256").pairs[0].foreground_pixels == 1
    with pytest.raises(UserError, match="no mask has a foreground pixel"):
        check_folder(tmp_path, ">600")
    for path in (tmp_path / "masks").iterdir():
        save(path, np.full((12, 16), 1, np.uint8))
    with pytest.raises(
        UserError, match=r"every pixel is foreground under the rule 'nonzero'; every mask holds 1"
    ):
        check_folder(tmp_path)


def test_a_cure_follows_from_all_masks_and_works(data: Command, tmp_path: Path) -> None:
    """In most masks, those that are sampled among them, 4 objects are numbered, and in some 20 more."""
    make_folder(tmp_path, count=70)
    for number, path in enumerate(sorted((tmp_path / "masks").iterdir())):
        mask = np.zeros((12, 16), np.uint8)
        for value in range(1, 25 if number % 2 else 5):
            mask[2 * (value // 8) : 2 * (value // 8) + 2, 2 * (value % 8) : 2 * (value % 8) + 2] = value
        save(path, mask)
    assert check_folder(tmp_path, None).foreground == ">0"
    rule: list[str] = []
    for _ in range(2):
        code, _, error = data("check", tmp_path, *rule)
        if code == 0:
            break
        cure = re.search(r"use --foreground '([^']+)'", error)
        assert cure, error
        rule = ["--foreground", cure[1]]
    assert (code, rule) == (0, ["--foreground", ">0"])


@pytest.mark.parametrize(
    ("values", "rule"), [((1, 2), "nonzero"), ((1, 2), ">2"), ((5, 9), ">3"), ((5, 9), "<5"), ((0, 7), ">7")]
)
def test_where_no_pixel_or_every_one_counts_the_cure_divides_them(
    data: Command, tmp_path: Path, values: tuple[int, int], rule: str
) -> None:
    make_folder(tmp_path, count=3)
    for path in (tmp_path / "masks").iterdir():
        mask = np.full((12, 16), values[0], np.uint8)
        mask[:5] = values[1]
        save(path, mask)
    code, _, error = data("check", tmp_path, "--foreground", rule)
    assert code == 65
    cure = re.search(r"--foreground(?:, such as)? '([^']+)'", error)
    assert cure, error
    assert data("check", tmp_path, "--foreground", cure[1])[0] == 0


def test_masks_of_one_value_have_no_rule_and_a_pattern_that_was_tried_is_not_proposed(
    data: Command, tmp_path: Path
) -> None:
    make_folder(tmp_path, count=3)
    for path in (tmp_path / "masks").iterdir():
        save(path, np.zeros((12, 16), np.uint8))
    assert "every mask holds 0 alone; export them anew" in data("check", tmp_path)[2]
    code, _, error = data("check", tmp_path, "--names", "*:*_mask")
    assert code == 65
    assert "--names '*:*_mask' pairs no image with a mask ('p0.png' and 'p0.png'); name the pattern" in error


@pytest.mark.parametrize(("objects", "rest", "given"), [(0, 255, "<1"), (0, 1, "<1"), (3, 250, "<128")])
def test_where_most_pixels_are_foreground_both_readings_are_asked(
    data: Command, tmp_path: Path, objects: int, rest: int, given: str
) -> None:
    """Objects that are stored as the lower value; both answers work, and neither is asked again."""
    make_folder(tmp_path, count=2)
    for path in (tmp_path / "masks").iterdir():
        mask = np.full((12, 16), rest, np.uint8)
        mask[3:6, 4:9] = objects
        save(path, mask)
    rule = [] if given == "<1" else ["--foreground", ">127"]
    if not rule:
        code, _, error = data("check", tmp_path)
        assert code == 65
        assert "92.2% of the pixels are foreground by the rule 'nonzero'" in error
        assert "--foreground 'nonzero'; " in error
        assert f"--foreground '{given}' (7.8%)" in error
    for answer, pixels in ((rule[1] if rule else "nonzero", 12 * 16 - 15), (given, 15)):
        assert data("check", tmp_path, "--foreground", answer)[0] == 0
        assert {pair.foreground_pixels for pair in check_folder(tmp_path, answer).pairs} == {pixels}


def test_a_manifest_is_written_over_no_other_file_and_made_again_where_it_was(
    data: Command, folder: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"my": "own"}')
    code, _, errors = data("check", folder, "--manifest", own)
    assert (code, own.read_text()) == (2, '{"my": "own"}')
    assert "is no manifest of this program" in errors
    beside = tmp_path / "study.manifest.json"
    data("check", folder, "--foreground", "255", "--manifest", beside)
    (folder / "masks" / "p1.png").unlink()
    with pytest.raises(UserError) as caught:
        read_manifest(beside).require_unchanged(folder, beside)
    assert refused(caught, 65, f"data check {folder} --foreground 255 --manifest {beside}")


def test_a_manifest_identifies_the_data_wherever_they_are(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    before = check_folder(folder)
    write_manifest(before, tmp_path / "a.json")
    write_manifest(check_folder(tmp_path / "elsewhere"), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert str(tmp_path) not in (tmp_path / "a.json").read_text()
    assert before.sha256 == hashlib.sha256((tmp_path / "a.json").read_bytes()).hexdigest()
    assert read_manifest(tmp_path / "a.json") == before
    pixels = noise(seed=0)
    pixels[0, 0] ^= 1
    save(folder / "images" / "p0.png", pixels)
    assert check_folder(folder).sha256 != before.sha256


@pytest.mark.parametrize("change", ["missing", "new", "bytes", "folder"])
def test_a_changed_folder_is_noticed_without_reading_it(folder: Path, change: str) -> None:
    manifest = check_folder(folder)
    manifest.require_unchanged(folder, folder / "manifest.json")
    place = folder / "masks" / ("p9.png" if change == "new" else "p1.png")
    if change == "missing":
        place.unlink()
    elif change == "new":
        save(place, blob())
    elif change == "bytes":
        place.write_bytes(place.read_bytes() + b"x")
    else:
        shutil.rmtree(folder)
    with pytest.raises(UserError) as caught:
        manifest.require_unchanged(folder, folder / "manifest.json")
    assert refused(caught, 65, folder if change == "folder" else place.name)


UNSOUND: dict[str, dict[str, object]] = {
    "no pairs": {"pairs": []},
    "other format": {"format": 2},
    "path as name": {"name": "x/p0.png"},
    "other stem": {"stem": "p1"},
    "too much foreground": {"foreground_pixels": 10**6},
    "not sorted": {},
    "torn": {},
    "missing": {},
}


@pytest.mark.parametrize("fault", UNSOUND)
def test_an_unsound_torn_or_missing_manifest_is_refused(folder: Path, fault: str) -> None:
    path = folder / "manifest.json"
    content = json.loads(check_folder(folder).to_json())
    tables = {
        **dict.fromkeys(("height", "stem", "foreground_pixels"), content["pairs"][0]),
        "name": content["pairs"][0]["image"],
    }
    for key, value in UNSOUND[fault].items():
        tables.get(key, content)[key] = value
    if fault == "not sorted":
        content["pairs"].reverse()
    text = json.dumps(content)
    if fault != "missing":
        path.write_text(text[:-20] if fault == "torn" else text)
    with pytest.raises(UserError) as caught:
        read_manifest(path)
    assert refused(caught, 65, path, ".venv/bin/unet-scaling data check")


def test_a_manifest_may_be_kept_elsewhere(data: Command, folder: Path, tmp_path: Path) -> None:
    # Root may write anywhere: a folder of the manifest's name stands for a read-only data folder.
    (folder / "manifest.json").mkdir()
    code, _, errors = data("check", folder)
    assert (code, "--manifest PATH" in errors) == (2, True)
    assert data("check", folder, "--manifest", tmp_path / "m.json")[0] == 0
    assert len(read_manifest(tmp_path / "m.json").pairs) == 4


def test_make_leaves_a_folder_ready_for_training_and_makes_it_once(data: Command, tmp_path: Path) -> None:
    size = [word for key, value in SIZE.items() for word in (f"--{key}", value)]
    assert data("make", tmp_path / "a", *size)[0] == 0
    manifest = read_manifest(tmp_path / "a" / "manifest.json")
    assert [(pair.height, pair.width) for pair in manifest.pairs] == [(32, 40)] * 3
    manifest.require_unchanged(tmp_path / "a", tmp_path / "a" / "manifest.json")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "images").iterdir()}
    assert data("make", tmp_path / "a", *size)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    make(tmp_path / "b" / "deeper", **SIZE)
    assert contents(tmp_path / "b" / "deeper").items() <= contents(tmp_path / "a").items()


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


@pytest.mark.parametrize("what", ["real images", "another file", "count", "height", "seed"])
def test_make_refuses_a_folder_in_use_and_never_suggests_to_remove_it(
    data: Command, tmp_path: Path, what: str
) -> None:
    if what == "real images":
        make_folder(tmp_path)
    elif what == "another file":
        (tmp_path / "thesis.tex").write_text("years of work")
    else:
        make(tmp_path, **SIZE | {what: 4})
    before = contents(tmp_path)
    code, _, errors = data("make", tmp_path, *[word for key in SIZE for word in (f"--{key}", SIZE[key])])
    assert code == 2
    assert str(tmp_path) in errors
    assert "remove" not in errors
    assert contents(tmp_path) == before


def test_wrong_usage_and_unwritable_places_end_with_2(data: Command, tmp_path: Path) -> None:
    assert data()[0] == 2
    code, _, errors = data("check", tmp_path, "--foreground", "white")
    assert (code, "data.foreground" in errors) == (2, True)
    (tmp_path / "file").touch()
    code, _, errors = data("make", tmp_path / "file" / "data")
    assert (code, str(tmp_path / "file") in errors) == (2, True)
