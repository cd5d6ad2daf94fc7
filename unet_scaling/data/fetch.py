"""Fetch the indentation data set by its DOI: resolve, download, verify, unpack.

"Indention mark segmentation data" (Hadian et al.), CC BY 4.0: 1,120 electron micrographs with masks.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pooch  # type: ignore[import-untyped]
from pooch.downloaders import ZenodoRepository  # type: ignore[import-untyped]

from unet_scaling.data.pairs import IMAGES, MASKS
from unet_scaling.data.unpack import Limits, unpack
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

ARCHIVES = "archives"
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Source:
    """A record of the repository. Checksums known beforehand must be those that the record states."""

    doi: str
    api_url: str = ZenodoRepository.base_api_url
    known_checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Archive:
    """One file of the record; `checksum` as algorithm:digits."""

    name: str
    url: str
    checksum: str


INDENTS = Source(
    "10.5281/zenodo.7639190", known_checksums={"masks.tar.gz": "md5:047f601bdd2b5526fa8c50ea1b4c5f52"}
)


def fetch(folder: Path, source: Source = INDENTS, limits: Limits | None = None) -> bool:
    """Download and unpack a data set into images/ and masks/; returns False where they are there.

    Finished archives stay in archives/ and are not downloaded again. Raises UserError: 65 where the
    repository cannot be reached or an archive is not what it should be, 2 for a folder in use or one
    that cannot be written.
    """
    parts = [(folder / part).is_dir() for part in (IMAGES, MASKS)]
    if all(parts):
        return False
    if any(parts):
        raise UserError(f"{folder} holds one of {IMAGES}/ and {MASKS}/ without the other; remove it")
    store = folder / ARCHIVES
    try:
        store.mkdir(parents=True, exist_ok=True)
        unpack(_archives(store, source), folder, limits)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error})") from None
    return True


def _archives(store: Path, source: Source) -> list[Path]:
    """All archives of the record, verified; where it cannot be reached, those brought by hand."""
    # A broken connection is an OSError, a wrong checksum a ValueError, and an answer that is no
    # record any of these: nothing but the network and what comes from it is touched here.
    try:
        archives = _resolve(source)
    except (OSError, ValueError, KeyError, TypeError) as error:
        by_hand = _archives_by_hand(store, source)
        if not by_hand:
            raise _unreachable(store, source, error) from None
        return by_hand
    try:
        return [_retrieve(archive, store) for archive in archives]
    except (OSError, ValueError) as error:
        raise _unreachable(store, source, error) from None


def _archives_by_hand(store: Path, source: Source) -> list[Path]:
    """The archives that are there: the known ones with their checksum, and at least one more.

    Without the record the sum of the others is unknown; a damaged one fails when it is unpacked.
    """
    archives = sorted(path for path in store.iterdir() if path.name.endswith(ARCHIVE_SUFFIXES))
    names = {path.name for path in archives}
    known = source.known_checksums
    whole = known.keys() < names and all(
        pooch.hashes.hash_matches(store / name, checksum) for name, checksum in known.items()
    )
    return archives if whole else []


def _unreachable(store: Path, source: Source, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return UserError(
        f"doi:{source.doi} cannot be fetched: {reason}. Try again, or download its archives by hand"
        f" from https://doi.org/{source.doi} into {store} and run this again",
        EXIT_BAD_DATA,
    )


def _resolve(source: Source) -> list[Archive]:
    """The archives of the record with their checksums; ValueError where they are not as known."""
    record = source.doi.rpartition(".")[2]
    repository = ZenodoRepository(source.doi, f"https://zenodo.org/records/{record}", timeout=TIMEOUT_SECONDS)
    repository.base_api_url = source.api_url
    registry = pooch.create(path="", base_url="")
    repository.populate_registry(registry)
    archives = [
        Archive(name, repository.download_url(name), checksum)
        for name, checksum in sorted(registry.registry.items())
        if Path(name).name == name and name.endswith(ARCHIVE_SUFFIXES)
    ]
    found = {archive.name: archive.checksum for archive in archives}
    for name, known in source.known_checksums.items():
        if found.get(name) != known:
            raise ValueError(f"the record states {found.get(name)} for {name}, known is {known}")
    return archives


def _retrieve(archive: Archive, store: Path) -> Path:
    """Downloaded under a temporary name and renamed once its checksum is right, unless it was before."""
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), chunk_size=2**16, timeout=TIMEOUT_SECONDS
    )
    pooch.get_logger().setLevel("WARNING")
    path = pooch.retrieve(
        archive.url, archive.checksum, fname=archive.name, path=store, downloader=downloader
    )
    return Path(path)
