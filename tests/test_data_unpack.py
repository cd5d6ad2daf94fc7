"""Archives are unpacked whole or not at all, and nothing leads out of the folder."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data_folders import refused
from tests.record_server import tar_of
from unet_scaling.data.unpack import Limits, unpack
from unet_scaling.study.errors import UserError


def archive(path: Path, files: dict[str, bytes], *extra: tarfile.TarInfo) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(files, *extra))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_pictures_are_sorted_into_images_and_masks(folder: Path, tmp_path: Path) -> None:
    images = archive(tmp_path / "imgs.tar.gz", {"x/y/b.png": b"1", "a.tif": b"2", "x/._a.tif": b"-"})
    masks = archive(tmp_path / "masks.tar.gz", {"out/a.png": b"3", "b.png": b"4", "readme.txt": b"-"})
    unpack([images, masks], folder)
    assert tree(folder) == ["images/a.tif", "images/b.png", "masks/a.png", "masks/b.png"]
    assert (folder / "masks" / "a.png").read_bytes() == b"3"


def test_one_archive_may_hold_both(folder: Path, tmp_path: Path) -> None:
    unpack([archive(tmp_path / "all.tar.gz", {"d/images/a.png": b"1", "d/Masks/a.png": b"2"})], folder)
    assert tree(folder) == ["images/a.png", "masks/a.png"]


GOOD = {"images/a.png": b"1", "masks/a.png": b"2"}


@pytest.mark.parametrize(
    ("files", "extra", "reason"),
    [
        (GOOD | {"../../evil.png": b"x"}, [], "evil"),
        (GOOD | {"images/../../../evil.png": b"x"}, [], "evil"),
        (GOOD, [special("images/b.png", tarfile.SYMTYPE, "/etc/passwd")], "link"),
        (GOOD, [special("images/b.png", tarfile.LNKTYPE, "images/a.png")], "link"),
        (GOOD, [special("images/b.png", tarfile.FIFOTYPE)], "device"),
        (GOOD | {"more/a.png": b"x"}, [], "two files are named 'a.png'"),
        ({"images/a.png": b"1"}, [], "no files for masks/"),
        ({"masks/a.png": b"1"}, [], "no files for images/"),
    ],
)
def test_dishonest_archives_are_refused_and_leave_nothing(
    folder: Path, tmp_path: Path, files: dict[str, bytes], extra: list[tarfile.TarInfo], reason: str
) -> None:
    path = archive(tmp_path / "all.tar.gz", files, *extra)
    with pytest.raises(UserError) as caught:
        unpack([path], folder)
    assert refused(caught, 65, path.name, reason)
    assert list(folder.iterdir()) == []
    assert not list(tmp_path.rglob("evil*"))


def test_an_absolute_path_stays_inside(folder: Path, tmp_path: Path) -> None:
    unpack([archive(tmp_path / "all.tar.gz", GOOD | {f"{tmp_path}/evil.png": b"x"})], folder)
    assert list(tmp_path.glob("evil*")) == []
    assert "images/evil.png" in tree(folder)


@pytest.mark.parametrize("limits", [Limits(files=1), Limits(bytes=1)])
def test_archives_beyond_the_limits_are_refused(folder: Path, tmp_path: Path, limits: Limits) -> None:
    archives = [archive(tmp_path / f"{part}.tar.gz", {f"{part}/a.png": b"1"}) for part in ("images", "masks")]
    with pytest.raises(UserError, match="more files or bytes"):
        unpack(archives, folder, limits)
    unpack(archives, folder, Limits(files=2, bytes=2))


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-20], lambda content: content[:5], flip, lambda _: b""]
)
def test_a_damaged_archive_is_refused_and_leaves_nothing(
    folder: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = archive(tmp_path / "all.tar.gz", GOOD | {"images/noise.png": bytes(range(256)) * 40})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError) as caught:
        unpack([path], folder)
    assert refused(caught, 65, path, "move it elsewhere and run again")
    assert list(folder.iterdir()) == []
