"""Fetching trusts only checksums and takes no part for a whole; archives are unpacked whole or not at all."""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cluster import free_port
from tests.data_folders import blob, make_folder, noise, refused, save
from unet_scaling.base.errors import UserError
from unet_scaling.data.checking import check_folder
from unet_scaling.data.fetch import Deposit, fetch, unpack

DOI = "10.5281/zenodo.1234"
PINNED = "masks.tar.gz"
RECORD = "/api/records/1234"


def tar_of(files: dict[str, bytes], *extra: tarfile.TarInfo) -> bytes:
    """A .tar.gz of these files, followed by entries without content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in extra:
            tar.addfile(member)
    return buffer.getvalue()


class RecordServer:
    """Serves one record with its files; what it was asked for is in `asked`."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.checksums = {name: "md5:" + hashlib.md5(content).hexdigest() for name, content in files.items()}
        self.broken: set[str] = set()  # files whose connection ends halfway
        self.asked: list[str] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path: str) -> bytes | None:
        self.asked.append(path)
        if path == RECORD:
            return json.dumps({"id": 1234, "files": [self._file(name) for name in self.files]}).encode()
        return self.files.get(path.removeprefix("/files/")) if path.startswith("/files/") else None

    def _file(self, name: str) -> dict[str, object]:
        return {
            "key": name,
            "checksum": self.checksums[name],
            "size": len(self.files[name]),
            "links": {"self": f"{self.url}/files/{name}"},
        }


@contextmanager
def serving(record: RecordServer) -> Iterator[RecordServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = record.answer(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            half = self.path.removeprefix("/files/") in record.broken
            self.wfile.write((content or b"")[: len(content or b"") // 2 if half else None])

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        record.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield record
        finally:
            server.shutdown()
            thread.join()


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


def deposit(server: RecordServer, pinned: str = "") -> Deposit:
    return Deposit(DOI, f"{server.url}/api/records", {PINNED: pinned or server.checksums[PINNED]})


def offline(server: RecordServer) -> Deposit:
    """A deposit at a port where nobody listens."""
    return Deposit(DOI, f"http://127.0.0.1:{free_port()}/api/records", deposit(server).known_checksums)


def test_a_record_becomes_a_sound_data_folder_and_is_not_asked_for_again(
    server: RecordServer, folder: Path
) -> None:
    server.files["readme.txt"] = b"not an archive"
    server.checksums["readme.txt"] = "md5:0"
    # A part under the right name is no archive.
    (folder / "archives").mkdir(parents=True)
    (folder / "archives" / "images.tar.gz").write_bytes(server.files["images.tar.gz"][:50])
    assert fetch(folder, deposit(server))
    assert len(check_folder(folder).pairs) == 3
    assert server.asked == [RECORD, "/files/images.tar.gz", "/files/masks.tar.gz"]
    assert not fetch(folder, deposit(server))
    assert len(server.asked) == 3


def test_an_interrupted_download_is_no_archive_and_only_it_is_repeated(
    server: RecordServer, folder: Path
) -> None:
    server.broken = {PINNED}
    with pytest.raises(UserError) as caught:
        fetch(folder, deposit(server))
    assert refused(caught, 65, DOI, folder / "archives")
    assert [path.name for path in (folder / "archives").iterdir()] == ["images.tar.gz"]
    assert not (folder / "images").exists()
    server.broken.clear()
    server.asked.clear()
    assert fetch(folder, deposit(server))
    assert server.asked == [RECORD, "/files/masks.tar.gz"]


def test_a_wrong_checksum_or_another_than_the_known_one_is_refused(
    server: RecordServer, folder: Path
) -> None:
    with pytest.raises(UserError) as caught:
        fetch(folder, deposit(server, pinned="md5:" + "1" * 32))
    assert refused(caught, 65, PINNED, "known is md5:1111")
    assert server.asked == [RECORD]
    server.checksums["images.tar.gz"] = "md5:" + "0" * 32
    with pytest.raises(UserError) as caught:
        fetch(folder, deposit(server))
    assert refused(caught, 65, DOI, "images.tar.gz")
    assert list((folder / "archives").iterdir()) == []


def test_archives_brought_by_hand_serve_offline_if_the_known_one_has_its_sum(
    server: RecordServer, folder: Path, archives: dict[str, bytes]
) -> None:
    store = folder / "archives"
    store.mkdir(parents=True)
    for images, masks in ((b"", archives[PINNED]), (archives["images.tar.gz"], archives[PINNED] + b"\0")):
        (store / PINNED).write_bytes(masks)
        if images:
            (store / "images.tar.gz").write_bytes(images)
        with pytest.raises(UserError) as caught:
            fetch(folder, offline(server))
        assert refused(caught, 65, f"doi:{DOI}", f"https://doi.org/{DOI}", store)
        assert "\n" not in str(caught.value)
    (store / PINNED).write_bytes(archives[PINNED])
    assert fetch(folder, offline(server))
    assert len(check_folder(folder).pairs) == 3


@pytest.mark.parametrize(
    "answer", [b"", b"<html>moved</html>", b"[]", b'{"status": 404}', b'{"files": [{}]}']
)
def test_an_answer_that_is_no_record_is_reported(
    server: RecordServer, folder: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "answer", lambda path: answer)
    with pytest.raises(UserError) as caught:
        fetch(folder, deposit(server))
    assert refused(caught, 65, f"doi:{DOI}")


def test_half_a_data_folder_and_an_unwritable_place_are_left_as_they_are(
    server: RecordServer, folder: Path, tmp_path: Path
) -> None:
    save(folder / "images" / "own.png", noise())
    (tmp_path / "file").touch()
    for place in (folder, tmp_path / "file" / "data"):
        with pytest.raises(UserError) as caught:
            fetch(place, deposit(server))
        assert refused(caught, 2, place)
    assert server.asked == []
    save(folder / "masks" / "own.png", blob())
    assert not fetch(folder, deposit(server))


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def target(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_pictures_of_several_archives_or_of_one_are_sorted_into_images_and_masks(
    target: Path, tmp_path: Path
) -> None:
    parts = {
        "imgs": {"x/y/b.png": b"1", "a.tif": b"2", "x/._a.tif": b"-"},
        "masks": {"out/a.png": b"3", "b.png": b"4", "readme.txt": b"-"},
    }
    archives = [tmp_path / f"{name}.tar.gz" for name in parts]
    for path, files in zip(archives, parts.values(), strict=True):
        path.write_bytes(tar_of(files))
    unpack(archives, target)
    assert tree(target) == ["images/a.tif", "images/b.png", "masks/a.png", "masks/b.png"]
    assert (target / "masks" / "a.png").read_bytes() == b"3"
    both = tmp_path / "all.tar.gz"
    # An absolute path, and one that leads out, stay inside.
    outside = {f"{tmp_path}/evil.png": b"x", "images/../../../evil2.png": b"x"}
    both.write_bytes(tar_of({"d/images/a.png": b"1", "d/Masks/a.png": b"2"} | outside))
    (tmp_path / "other").mkdir()
    unpack([both], tmp_path / "other")
    assert tree(tmp_path / "other") == ["images/a.png", "images/evil.png", "images/evil2.png", "masks/a.png"]
    assert not list(tmp_path.glob("evil*"))


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


GOOD = {"images/a.png": b"1", "masks/a.png": b"2"}
LARGE = tar_of(GOOD | {"images/noise.png": bytes(range(256)) * 40})


@pytest.mark.parametrize(
    "content",
    [
        tar_of(GOOD, special("images/b.png", tarfile.SYMTYPE, "/etc/passwd")),
        tar_of(GOOD, special("images/b.png", tarfile.LNKTYPE, "images/a.png")),
        tar_of(GOOD, special("images/b.png", tarfile.FIFOTYPE)),
        tar_of(GOOD | {"more/a.png": b"x"}),
        tar_of({"images/a.png": b"1"}),
        tar_of({"masks/a.png": b"1"}),
        LARGE[:-20],
        LARGE[:5],
        flip(LARGE),
        b"",
    ],
    ids=["link", "hard link", "pipe", "twice", "no masks", "no images", "cut", "a start", "a bit", "empty"],
)
def test_dishonest_and_damaged_archives_are_refused_and_leave_nothing(
    target: Path, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "all.tar.gz"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        unpack([path], target)
    assert refused(caught, 65, path.name)
    assert list(target.iterdir()) == []
