"""Verify that the files a run reads are those of its manifest, before the first epoch and until the last.

All are hashed before the first epoch and again before the run is called complete. In between, at each
checkpoint, those are hashed again whose size, times or inode have changed: a file that was changed and
changed back between two of these moments is not noticed. Files of decoded images stay open, since they stay
mapped when somebody removes or replaces them.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from unet_scaling.data.decoding import pair_paths
from unet_scaling.data.folder import Manifest
from unet_scaling.study.command_line import called
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_BUG, UserError
from unet_scaling.study.progress import map_in_order

# Of the 64 of a SHA-256: enough to tell two files apart in a message.
SHOWN_DIGEST_CHARACTERS = 12
LABEL = "verifying"
Attributes = tuple[int, int, int, int]


class Verification:
    """The files that a run reads, with the SHA-256 that each must have.

    `mapped` files, the arrays of a cache, stay open and were verified before: of them this worker reads
    pages. Without any, files are read by their names.
    """

    def __init__(self, digests: Mapping[Path, str], cure: str, mapped: Sequence[Path] = ()) -> None:
        """Raises OSError where a mapped file cannot be opened."""
        self._digests = dict(digests)
        self._cure = cure
        self._files = {path: path.open("rb") for path in mapped}
        self._sizes = {path: self._attributes(path)[0] for path in mapped}
        self._seen: dict[Path, Attributes] = {}
        if mapped:
            self._seen = {path: self._attributes(path) for path in digests}

    @property
    def bytes(self) -> int:
        """Return the size of all files when they were hashed."""
        return sum(attributes[0] for attributes in self._seen.values())

    def require_whole(self) -> None:
        """Raise UserError where a mapped file was cut (65) or lost (1): the kernel ends those who read on."""
        for path, size in self._sizes.items():
            remaining = self._attributes(path)[0]
            if remaining < size:
                found = f"was cut from {size} to {remaining} bytes while it was in use"
                raise UserError(f"{path}: {found}; {self._cure}", EXIT_BAD_DATA)

    def verify_all(self) -> None:
        """Hash every file; UserError: 65 where one has changed, 1 where one cannot be read."""
        self._verify(list(self._digests))

    def verify_changed(self) -> None:
        """Hash the files whose attributes have changed since they were hashed; raises as `verify_all`."""
        self._verify([path for path in self._digests if self._attributes(path) != self._seen.get(path)])

    def _verify(self, paths: Sequence[Path]) -> None:
        for path, (attributes, digest) in zip(paths, map_in_order(self._hash, paths, LABEL), strict=True):
            if digest != self._digests[path]:
                found = f"has changed (SHA-256 {digest[:SHOWN_DIGEST_CHARACTERS]}...)"
                raise UserError(f"{path}: {found}; {self._cure}", EXIT_BAD_DATA)
            self._seen[path] = attributes

    def _hash(self, path: Path) -> tuple[Attributes, str]:
        """Return the attributes from before the reading, so that a change during it is seen later."""
        attributes = self._attributes(path)
        try:
            file = self._files.get(path)
            with nullcontext(file) if file else path.open("rb") as opened:
                opened.seek(0)
                return attributes, hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(path, error) from None

    def _attributes(self, path: Path) -> Attributes:
        file = self._files.get(path)
        try:
            status = os.fstat(file.fileno()) if file else path.stat()
        except OSError as error:
            raise _unreadable(path, error) from None
        # The time of the last change of status cannot be set by programs that keep the others (cp -p, rsync).
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def verification_of_files(manifest: Manifest, folder: Path, index: int, count: int) -> Verification:
    """Return the verification of each `count`-th pair from `index` on: the share of one worker of a host."""
    digests = {}
    for pair in manifest.pairs[index::count]:
        for path, entry in zip(pair_paths(folder, pair), (pair.image, pair.mask), strict=True):
            digests[path] = entry.sha256
    cure = f"bring the file back, or run {called('data', 'check', folder)}"
    return Verification(digests, cure)


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be verified ({error.strerror}); is its disk there?", EXIT_BUG)
