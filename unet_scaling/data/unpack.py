"""Unpack .tar.gz archives of pictures into images/ and masks/, trusting nothing that an archive says.

pooch's own Untar extracts links and paths that lead out on Python before 3.12, and knows no limits.
"""

import gzip
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from unet_scaling.data.pairs import IMAGES_FOLDER, MASKS_FOLDER, SUFFIXES
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.progress import progress


@dataclass(frozen=True)
class Limits:
    """The most that all archives together may hold; more is taken for a decompression bomb or a mistake."""

    files: int = 20_000
    bytes: int = 32 * 2**30


def unpack(archives: Sequence[Path], folder: Path, limits: Limits | None = None) -> None:
    """Unpack the pictures of all archives into images/ and masks/ of `folder`, which appear complete.

    A picture with "mask" in the name of its archive or folder is a mask. Raises UserError (65) for an
    archive that is damaged, holds links or paths that lead out, or exceeds the limits.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as name:
        staging = Path(name)
        for part in (IMAGES_FOLDER, MASKS_FOLDER):
            (staging / part).mkdir()
        left = limits or Limits()
        for archive in archives:
            left = _unpack_one(archive, staging, left)
        _require_both(archives, staging)
        for part in (MASKS_FOLDER, IMAGES_FOLDER):
            (staging / part).rename(folder / part)


def _unpack_one(archive: Path, staging: Path, left: Limits) -> Limits:
    """Return what the limits leave for the next archive; UserError (65) where it cannot be unpacked."""
    try:
        return _extract_all(archive, staging, left)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise UserError(
            f"{archive}: not unpacked: {error}; move it elsewhere and run again", EXIT_BAD_DATA
        ) from None


def _extract_all(archive: Path, staging: Path, left: Limits) -> Limits:
    with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in progress(_members(tar), 0, f"unpacking {archive.name}"):
            left = Limits(left.files - 1, left.bytes - member.size)
            if min(left.files, left.bytes) < 0:
                raise ValueError("it holds more files or bytes than a data set of this kind has")
            _extract(tar, member, staging, archive.name)
        # tarfile stops at the last entry; gzip's checksum comes after it.
        while stream.read(2**20):
            pass
    return left


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield all entries but folders; refuse anything other than a regular file."""
    for member in tar:
        if not member.isdir():
            if not member.isfile():
                raise ValueError(f"{member.name!r} is a link or a device")
            yield member


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, staging: Path, archive: str) -> None:
    """Write one picture by its bare name; skip other files, refuse paths that lead out."""
    checked = tarfile.data_filter(member, str(staging))
    path = PurePosixPath(checked.name)
    if path.name.startswith(".") or path.suffix.lower() not in SUFFIXES:
        return
    in_mask_folder = any("mask" in name.lower() for name in (archive, *path.parts[:-1]))
    part = MASKS_FOLDER if in_mask_folder else IMAGES_FOLDER
    if (staging / part / path.name).exists():
        raise ValueError(f"two files are named {path.name!r}")
    tar.extract(checked.replace(name=path.name), staging / part, filter="data")


def _require_both(archives: Sequence[Path], staging: Path) -> None:
    for part in (IMAGES_FOLDER, MASKS_FOLDER):
        if not any((staging / part).iterdir()):
            names = ", ".join(archive.name for archive in archives)
            raise UserError(f"{names}: hold no files for {part}/", EXIT_BAD_DATA)
