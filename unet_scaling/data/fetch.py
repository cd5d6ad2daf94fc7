"""Fetch the indentation data set by its DOI: resolve, download, verify, unpack.

"Indention mark segmentation data" (Hadian et al.), CC BY 4.0: 1,120 electron micrographs with masks.
"""

import gzip
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pooch  # type: ignore[import-untyped]
from pooch.downloaders import ZenodoRepository  # type: ignore[import-untyped]

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError, or_user_error
from unet_scaling.base.progress import progress
from unet_scaling.data.folder import IMAGES_FOLDER, MASKS_FOLDER, SUFFIXES

ARCHIVES = "archives"
TIMEOUT_SECONDS = 30
CHUNK_BYTES = 2**16
# An answer that is no record may be a whole page of HTML.
LONGEST_REASON_CHARACTERS = 300


@dataclass(frozen=True)
class Deposit:
    """A data set in the Zenodo repository; checksums known beforehand must be those that it states."""

    doi: str
    api_url: str = ZenodoRepository.base_api_url
    known_checksums: Mapping[str, str] = field(default_factory=dict)


INDENTS = Deposit(
    "10.5281/zenodo.7639190", known_checksums={"masks.tar.gz": "md5:047f601bdd2b5526fa8c50ea1b4c5f52"}
)


def fetch(folder: Path, deposit: Deposit = INDENTS) -> bool:
    """Download and unpack a data set into images/ and masks/; return False where they exist already.

    Finished archives stay in archives/ and are not downloaded again. Raises UserError: 65 where the
    repository cannot be reached or an archive is not what it should be, 2 for a folder in use or one
    that cannot be written.
    """
    parts = [(folder / part).is_dir() for part in (IMAGES_FOLDER, MASKS_FOLDER)]
    if all(parts):
        return False
    if any(parts):
        raise UserError(f"{folder} holds one of images/ and masks/ alone; name another folder")
    store = folder / ARCHIVES
    with or_user_error(f"{folder} cannot be written"):
        store.mkdir(parents=True, exist_ok=True)
        unpack(_archives(store, deposit), folder)
    return True


def _archives(store: Path, deposit: Deposit) -> list[Path]:
    """Return all archives, verified; where the repository cannot be reached, those downloaded by hand."""
    # A broken connection is an OSError, a wrong checksum a ValueError, and an answer that is no
    # record any of these: nothing but the network and what comes from it is touched here.
    try:
        registry = _registry(store, deposit)
    except (OSError, ValueError, KeyError, TypeError) as error:
        by_hand = _archives_by_hand(store, deposit)
        if not by_hand:
            raise _unreachable(store, deposit, error) from None
        return by_hand
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=CHUNK_BYTES, timeout=TIMEOUT_SECONDS
    )
    pooch.get_logger().setLevel("WARNING")
    try:
        # Each is downloaded under a temporary name, and renamed once its checksum is right.
        return [Path(registry.fetch(name, downloader=downloader)) for name in sorted(registry.registry)]
    except (OSError, ValueError) as error:
        raise _unreachable(store, deposit, error) from None


def _registry(store: Path, deposit: Deposit) -> pooch.Pooch:
    """Return the archives of the deposit with their checksums; ValueError where they are not as known."""
    record = deposit.doi.rpartition(".")[2]
    page = f"https://zenodo.org/records/{record}"
    repository = ZenodoRepository(deposit.doi, page, timeout=TIMEOUT_SECONDS)
    repository.base_api_url = deposit.api_url
    registry = pooch.create(path=store, base_url="")
    repository.populate_registry(registry)
    for name in list(registry.registry):
        if _is_archive(name):
            registry.urls[name] = repository.download_url(name)
        else:
            del registry.registry[name]
    for name, known in deposit.known_checksums.items():
        stated = registry.registry.get(name)
        if stated != known:
            raise ValueError(f"the record states {stated} for {name}, known is {known}")
    return registry


def _is_archive(name: str) -> bool:
    return Path(name).name == name and name.endswith((".tar.gz", ".tgz"))


def _archives_by_hand(store: Path, deposit: Deposit) -> list[Path]:
    """Return the archives that exist: the known ones with their checksum, and at least one more.

    Without the record the checksum of the others is unknown; a damaged one fails when it is unpacked.
    """
    archives = sorted(path for path in store.iterdir() if _is_archive(path.name))
    known = deposit.known_checksums
    if not known.keys() < {path.name for path in archives}:
        return []
    matches = (pooch.hashes.hash_matches(store / name, checksum) for name, checksum in known.items())
    return archives if all(matches) else []


def _unreachable(store: Path, deposit: Deposit, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:LONGEST_REASON_CHARACTERS] or type(error).__name__
    return UserError(
        f"doi:{deposit.doi} cannot be fetched: {reason}. Try again, or download its archives by hand"
        f" from https://doi.org/{deposit.doi} into {store} and run this again",
        EXIT_BAD_DATA,
    )


def unpack(archives: Sequence[Path], folder: Path) -> None:
    """Unpack the pictures of all .tar.gz archives into images/ and masks/ of `folder`, which appear complete.

    A picture with "mask" in the name of its archive or folder is a mask; it is written by its bare name.
    Raises UserError (65) for an archive that is damaged, or holds links or two files of one name.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as name:
        staged = {part: Path(name) / part for part in (MASKS_FOLDER, IMAGES_FOLDER)}
        for path in staged.values():
            path.mkdir()
        for archive in archives:
            try:
                _unpack_one(archive, staged)
            except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
                cure = "move it elsewhere and run again"
                raise UserError(f"{archive}: not unpacked: {error}; {cure}", EXIT_BAD_DATA) from None
        for part, path in staged.items():
            if not any(path.iterdir()):
                names = ", ".join(archive.name for archive in archives)
                raise UserError(f"{names}: hold no files for {part}/", EXIT_BAD_DATA)
        for part, path in staged.items():
            path.rename(folder / part)


def _unpack_one(archive: Path, staged: Mapping[str, Path]) -> None:
    """Unpack an archive; ValueError for what is refused."""
    with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in progress(tar, 0, f"unpacking {archive.name}"):
            if member.isdir():
                continue
            if not member.isfile():
                raise ValueError(f"{member.name!r} is a link or a device")
            path = PurePosixPath(member.name)
            if path.name.startswith(".") or path.suffix.lower() not in SUFFIXES:
                continue
            in_mask_folder = any("mask" in name.lower() for name in (archive.name, *path.parts[:-1]))
            part = staged[MASKS_FOLDER if in_mask_folder else IMAGES_FOLDER]
            if (part / path.name).exists():
                raise ValueError(f"two files are named {path.name!r}")
            tar.extract(member.replace(name=path.name), part, filter="data")
        # tarfile stops at the last entry; gzip's checksum comes after it.
        while stream.read(2**20):
            pass
