"""A real HTTP server on the loopback that answers as the repository of the indentation data does."""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DOI = "10.5281/zenodo.1234"


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
        if path == "/api/records/1234":
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
