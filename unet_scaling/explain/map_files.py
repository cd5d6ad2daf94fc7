"""The files of a run's maps: each written once, whole or not at all, with its SHA-256 beside it.

What an earlier attempt finished stays, as long as it is of the same weights, images and options.
"""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unet_scaling.study.errors import EXIT_BUG, UserError
from unet_scaling.study.files import (
    read_verified,
    remove_unfinished,
    write_atomically,
    write_verified,
)
from unet_scaling.study.saliency import (
    SALIENCY_FOLDER,
    SALIENCY_MANIFEST_NAME,
    SALIENCY_ORIGIN_NAME,
    ExplainedImage,
    SaliencyFile,
    SaliencyManifest,
)

MAPS_FOLDER = "maps"
PICTURES_FOLDER = "overlays"
ENTRIES_FOLDER = "entries"


class MapFiles:
    """The folder `saliency` of a run folder."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / SALIENCY_FOLDER

    def prepare(self, origin: dict[str, Any]) -> None:
        """Make the folders, and remove what is unfinished or of another origin. Called on one worker.

        Raises UserError (1) where that fails.
        """
        _or_stop(self.folder, lambda: self._prepare(origin))

    def _prepare(self, origin: dict[str, Any]) -> None:
        text = json.dumps(origin, sort_keys=True)
        for name in (MAPS_FOLDER, PICTURES_FOLDER, ENTRIES_FOLDER):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.folder / name, "*")
        remove_unfinished(self.folder, "*")
        named = self.folder / SALIENCY_ORIGIN_NAME
        if not named.exists() or named.read_text() != text:
            for name in (MAPS_FOLDER, ENTRIES_FOLDER):
                for path in (self.folder / name).iterdir():
                    path.unlink()
            write_atomically(named, text)

    def has_map(self, position: int, shape: tuple[int, ...]) -> bool:
        """Return whether the map of a test image is there, whole and as it was written."""
        try:
            saliency = np.load(io.BytesIO(read_verified(self._map_path(position))), allow_pickle=False)
        except (OSError, ValueError):
            return False
        return bool(saliency.shape == shape)

    def read_map(self, position: int) -> NDArray[np.float32]:
        """Return the map of a test image, float32 [scores, height, width]."""
        saliency: NDArray[np.float32] = np.load(io.BytesIO(read_verified(self._map_path(position))))
        return saliency

    def write_map(self, position: int, saliency: NDArray[np.float64]) -> None:
        """Write the map of a test image in float32. Raises UserError (1) where that fails."""
        file = io.BytesIO()
        np.save(file, saliency.astype(np.float32))
        path = self._map_path(position)
        _or_stop(path, lambda: write_verified(path, file.getvalue()))

    def map_file(self, position: int) -> SaliencyFile:
        """Return how the manifest names the map of a test image."""
        return self._file(self._map_path(position))

    def write_picture(self, position: int, name: str, png: bytes) -> SaliencyFile:
        """Write a picture of a test image; return how the manifest names it. Raises UserError (1)."""
        path = self.folder / PICTURES_FOLDER / f"{position:05d}_{name}.png"
        _or_stop(path, lambda: write_atomically(path, png))
        return self._file(path)

    def write_entry(self, entry: ExplainedImage) -> None:
        """Write what is known of a test image, for a later attempt. Raises UserError (1)."""
        path = self._entry_path(entry.position)
        _or_stop(path, lambda: write_verified(path, entry.model_dump_json().encode()))

    def read_entry(self, position: int) -> ExplainedImage | None:
        """Return what an earlier attempt found out, where its files are still as it left them."""
        try:
            entry = ExplainedImage.model_validate_json(read_verified(self._entry_path(position)))
            named = [*entry.pictures.values(), *entry.overlays.values(), *([entry.map] if entry.map else [])]
            is_current = all(self._file(self.folder / file.file) == file for file in named)
        except (OSError, ValueError):
            return None
        is_mapped = entry.map is not None
        return entry if is_current and is_mapped == self.is_mapped(position) else None

    def is_mapped(self, position: int) -> bool:
        """Return whether the map of a test image was written, by whichever worker."""
        return self._map_path(position).exists()

    def write_manifest(self, manifest: SaliencyManifest) -> str:
        """Write the manifest; return its SHA-256. Raises UserError (1)."""
        content = manifest.model_dump_json(indent=1).encode() + b"\n"
        path = self.folder / SALIENCY_MANIFEST_NAME
        _or_stop(path, lambda: write_atomically(path, content))
        return hashlib.sha256(content).hexdigest()

    def _entry_path(self, position: int) -> Path:
        return self.folder / ENTRIES_FOLDER / f"{position:05d}.json"

    def _map_path(self, position: int) -> Path:
        return self.folder / MAPS_FOLDER / f"{position:05d}.npy"

    def _file(self, path: Path) -> SaliencyFile:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return SaliencyFile(file=path.relative_to(self.folder).as_posix(), sha256=digest)


def _or_stop(path: Path, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise UserError(
            f"{path} could not be written, the run stops: {error.strerror or error}; make room and start the "
            "run again: it goes on with the maps that are missing",
            EXIT_BUG,
        ) from None
