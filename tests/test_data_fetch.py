"""Fetching trusts only checksums, never takes a part for the whole, and says what to do offline."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data_folders import blob, make_folder, noise, refused, save
from tests.record_server import DOI, RecordServer, serving, tar_of
from unet_scaling.data.checking import check_folder
from unet_scaling.data.fetch import INDENTS, Deposit, fetch
from unet_scaling.study.errors import UserError


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = make_folder(tmp_path_factory.mktemp("source"), count=3, height=64, width=64)
    return {
        f"{part}.tar.gz": tar_of(
            {f"{part}/{path.name}": path.read_bytes() for path in (folder / part).iterdir()}
        )
        for part in ("images", "masks")
    }


@pytest.fixture
def server(archives: dict[str, bytes]) -> Iterator[RecordServer]:
    with serving(RecordServer(dict(archives))) as record:
        yield record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def deposit(server: RecordServer) -> Deposit:
    known = {"masks.tar.gz": server.checksums["masks.tar.gz"]}
    return Deposit(DOI, f"{server.url}/api/records", known)


def offline(server: RecordServer) -> Deposit:
    """A deposit at a port where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Deposit(DOI, f"http://127.0.0.1:{port}/api/records", deposit(server).known_checksums)


def test_the_data_set_of_the_study_is_pinned() -> None:
    assert INDENTS.doi == "10.5281/zenodo.7639190"
    assert INDENTS.known_checksums["masks.tar.gz"] == "md5:047f601bdd2b5526fa8c50ea1b4c5f52"


def test_a_record_becomes_a_sound_data_folder(server: RecordServer, folder: Path) -> None:
    server.files["readme.txt"] = b"not an archive"
    server.checksums["readme.txt"] = "md5:0"
    assert fetch(folder, deposit(server))
    assert len(check_folder(folder).pairs) == 3
    assert server.asked == ["/api/records/1234", "/files/images.tar.gz", "/files/masks.tar.gz"]


def test_what_is_there_is_not_asked_for_again(server: RecordServer, folder: Path) -> None:
    fetch(folder, deposit(server))
    server.asked.clear()
    assert not fetch(folder, deposit(server))
    assert server.asked == []


def test_an_interrupted_download_is_no_archive_and_only_it_is_repeated(
    server: RecordServer, folder: Path
) -> None:
    server.broken = {"masks.tar.gz"}
    with pytest.raises(UserError) as caught:
        fetch(folder, deposit(server))
    assert refused(caught, 65, DOI, folder / "archives")
    assert [path.name for path in (folder / "archives").iterdir()] == ["images.tar.gz"]
    assert not (folder / "images").exists()
    server.broken.clear()
    server.asked.clear()
    assert fetch(folder, deposit(server))
    assert server.asked == ["/api/records/1234", "/files/masks.tar.gz"]


def test_a_partial_archive_under_the_right_name_is_downloaded_again(
    server: RecordServer, folder: Path
) -> None:
    (folder / "archives").mkdir(parents=True)
    (folder / "archives" / "images.tar.gz").write_bytes(server.files["images.tar.gz"][:50])
    assert fetch(folder, deposit(server))
    assert len(check_folder(folder).pairs) == 3


def test_a_wrong_checksum_is_refused(server: RecordServer, folder: Path) -> None:
    server.checksums["images.tar.gz"] = "md5:" + "0" * 32
    with pytest.raises(UserError) as caught:
        fetch(folder, deposit(server))
    assert refused(caught, 65, DOI, "hash", "images.tar.gz")
    assert list((folder / "archives").iterdir()) == []


def test_a_record_that_states_another_sum_than_the_known_one_is_refused(
    server: RecordServer, folder: Path
) -> None:
    pinned = Deposit(DOI, f"{server.url}/api/records", {"masks.tar.gz": "md5:" + "1" * 32})
    with pytest.raises(UserError) as caught:
        fetch(folder, pinned)
    assert refused(caught, 65, "masks.tar.gz", "known is md5:1111")
    assert server.asked == ["/api/records/1234"]


def test_offline_is_one_line_with_doi_reason_and_cure(server: RecordServer, folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        fetch(folder, offline(server))
    assert refused(caught, 65, f"doi:{DOI}", "refused", f"https://doi.org/{DOI}", folder / "archives")
    assert "\n" not in str(caught.value)


def test_archives_brought_by_hand_serve_offline(
    server: RecordServer, folder: Path, archives: dict[str, bytes]
) -> None:
    (folder / "archives").mkdir(parents=True)
    (folder / "archives" / "masks.tar.gz").write_bytes(archives["masks.tar.gz"])
    with pytest.raises(UserError, match="by hand"):
        fetch(folder, offline(server))
    (folder / "archives" / "images.tar.gz").write_bytes(archives["images.tar.gz"])
    assert fetch(folder, offline(server))
    assert len(check_folder(folder).pairs) == 3


def test_a_known_archive_brought_by_hand_must_have_its_sum(
    server: RecordServer, folder: Path, archives: dict[str, bytes]
) -> None:
    (folder / "archives").mkdir(parents=True)
    for name, content in archives.items():
        (folder / "archives" / name).write_bytes(content + b"\0")
    with pytest.raises(UserError, match="cannot be fetched"):
        fetch(folder, offline(server))


@pytest.mark.parametrize(
    "answer", [b"", b"<html>moved</html>", b"[]", b'{"status": 404}', b'{"files": [{}]}']
)
def test_an_answer_that_is_no_record_is_reported(
    server: RecordServer, folder: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "answer", lambda path: answer)
    with pytest.raises(UserError) as caught:
        fetch(folder, deposit(server))
    assert refused(caught, 65, f"doi:{DOI}", "cannot be fetched")


def test_a_hostile_archive_of_the_record_is_refused(
    server: RecordServer, folder: Path, tmp_path: Path
) -> None:
    hostile = RecordServer(server.files | {"images.tar.gz": tar_of({"../../../evil.png": b"x"})})
    with serving(hostile), pytest.raises(UserError, match="not unpacked"):
        fetch(folder, deposit(hostile))
    assert not list(tmp_path.rglob("evil.png"))


def test_half_a_data_folder_is_not_overwritten(server: RecordServer, folder: Path) -> None:
    save(folder / "images" / "own.png", noise())
    with pytest.raises(UserError) as caught:
        fetch(folder, deposit(server))
    assert refused(caught, 2, folder)
    assert server.asked == []
    save(folder / "masks" / "own.png", blob())
    assert not fetch(folder, deposit(server))


def test_an_unwritable_place_is_named(server: RecordServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        fetch(tmp_path / "file" / "data", deposit(server))
    assert refused(caught, 2, tmp_path / "file", "cannot be written")
