"""Pairs are joined by stem, and every file without a partner is named."""

from pathlib import Path

import pytest

from tests.data_folders import blob, make_folder, noise, refused, save
from unet_scaling.data.pairs import FilePair, find_pairs
from unet_scaling.study.errors import UserError


def test_pairs_are_joined_by_stem_across_formats(tmp_path: Path) -> None:
    save(tmp_path / "images" / "b.tif", noise())
    save(tmp_path / "masks" / "b.PNG", blob())
    save(tmp_path / "images" / "a.png", noise())
    save(tmp_path / "masks" / "a.tiff", blob())
    assert find_pairs(tmp_path) == ([FilePair("a", "a.png", "a.tiff"), FilePair("b", "b.tif", "b.PNG")], [])


def test_both_differences_are_reported_at_once(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "masks" / "p1.png").unlink()
    save(tmp_path / "masks" / "extra.png", blob())
    pairs, problems = find_pairs(tmp_path)
    assert [pair.stem for pair in pairs] == ["p0", "p2", "p3"]
    assert problems == [
        f"{tmp_path}/images/p1.png: has no mask",
        f"{tmp_path}/masks/extra.png: has no image",
    ]


def test_two_files_of_one_stem_are_a_problem(tmp_path: Path) -> None:
    make_folder(tmp_path)
    save(tmp_path / "images" / "p2.tif", noise())
    _, problems = find_pairs(tmp_path)
    assert problems == [f"{tmp_path}/images: p2.png and p2.tif have the same stem 'p2'; keep one of them"]


@pytest.mark.parametrize("name", ["notes.txt", "photo.jpg", "folder.png/"])
def test_foreign_entries_are_a_problem(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path)
    place = tmp_path / "images" / name
    if name.endswith("/"):
        place.mkdir()
    else:
        place.write_text("x")
    assert [name.strip("/") in problem for problem in find_pairs(tmp_path)[1]] == [True]


def test_a_name_that_would_garble_a_terminal_is_refused_and_shown_escaped(tmp_path: Path) -> None:
    make_folder(tmp_path)
    save(tmp_path / "images" / "a\x1b[2J\n.png", noise())
    (problem,) = find_pairs(tmp_path)[1]
    assert r"a\x1b[2J\n.png" in problem
    assert "control characters" in problem


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "images" / ".DS_Store").write_bytes(b"x")
    assert find_pairs(tmp_path)[1] == []


def test_empty_folders_are_a_problem(tmp_path: Path) -> None:
    make_folder(tmp_path, count=0)
    for part in ("images", "masks"):
        (tmp_path / part).mkdir(parents=True)
    assert find_pairs(tmp_path) == ([], [f"{tmp_path}: images/ and masks/ are empty"])


def test_a_folder_without_images_and_masks_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_pairs(tmp_path)
    assert refused(caught, 65, tmp_path / "images", "a data folder holds images/ and masks/")
