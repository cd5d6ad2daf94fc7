"""The manifest of a data folder: every pair with sizes, checksums and mask values, in one JSON file.

It names files relative to the folder, so it stays true when the folder is moved, and the same files
give the same bytes, so its SHA-256 identifies the data. A manifest written here has it beside it.

Format history
    1  first format
"""

import hashlib
from functools import cached_property
from pathlib import Path, PurePath
from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from unet_scaling.data.foreground import parse_foreground
from unet_scaling.data.pairs import IMAGES_FOLDER, MASKS_FOLDER, FilePair, list_sizes
from unet_scaling.study.command_line import check_command
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.files import READABLE, checksum_path, read_verified, write_verified
from unet_scaling.study.options import Data
from unet_scaling.study.validation import Digest, StrictModel

MANIFEST_NAME = "manifest.json"
# A mask of classes has few values; one of grey levels, which has many, is a mistake.
MOST_VALUES_LISTED = 16


class FileEntry(StrictModel):
    """One file of images/ or masks/."""

    name: str = Field(min_length=1)
    bytes: PositiveInt
    sha256: Digest
    mode: str = Field(description="kind and depth, such as 'grey 16 bit'")

    @property
    def has_range(self) -> bool:
        """Return whether these pixels have a type whose range images use: 8 or 16 bits without a sign."""
        return self.mode.endswith((" 8 bit", " 16 bit"))

    @model_validator(mode="after")
    def _is_a_plain_name(self) -> Self:
        if PurePath(self.name).name != self.name or self.name.startswith("."):
            raise ValueError(f"{self.name!r} is not the name of a file in images/ or masks/")
        return self


class PairEntry(StrictModel):
    """One image with its mask; sizes in pixels."""

    stem: str
    image: FileEntry
    mask: FileEntry
    height: PositiveInt
    width: PositiveInt
    mask_values: list[NonNegativeInt] = Field(description="the lowest of them, 16 at most")
    mask_value_count: PositiveInt
    foreground_pixels: NonNegativeInt

    @property
    def foreground_share(self) -> float:
        """Return foreground pixels over all pixels of the mask, 0..1."""
        return self.foreground_pixels / (self.height * self.width)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if not all(self.stem in PurePath(file.name).stem for file in (self.image, self.mask)):
            raise ValueError(f"the files of pair {self.stem!r} have other names")
        if self.foreground_pixels > self.height * self.width:
            raise ValueError(f"pair {self.stem!r} has more foreground pixels than pixels")
        return self


class Manifest(StrictModel):
    """All pairs of a data folder, sorted by stem, as they were when the folder was checked."""

    format: Literal[1] = 1
    foreground: str = Field(description="the rule that the masks were checked with")
    pairs: list[PairEntry] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_sorted(self) -> Self:
        stems = [pair.stem for pair in self.pairs]
        if stems != sorted(set(stems)):
            raise ValueError("the pairs are not sorted by stem, or a stem appears twice")
        return self

    @property
    def files(self) -> list[FilePair]:
        """Return the names of all files."""
        return [FilePair(pair.stem, pair.image.name, pair.mask.name) for pair in self.pairs]

    @cached_property
    def _modes_without_range(self) -> list[str]:
        return [pair.image.mode for pair in self.pairs if not pair.image.has_range]

    def to_json(self) -> str:
        """Return the text of the file: equal for equal data."""
        return self.model_dump_json(indent=1) + "\n"

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the file's text, which identifies the data."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def require_unchanged(self, folder: Path) -> None:
        """Raise UserError (65) unless the folder has exactly these files in these sizes.

        This lists the folder and reads no file, so it may be done before every training.
        """
        _require_sizes(folder / IMAGES_FOLDER, [pair.image for pair in self.pairs])
        _require_sizes(folder / MASKS_FOLDER, [pair.mask for pair in self.pairs])

    def require_options(self, data: Data) -> None:
        """Raise UserError (2) for a data.intensity or data.foreground that is not for these files."""
        self.require_foreground(data.foreground)
        modes = self._modes_without_range
        if modes and data.intensity == "dtype":
            raise UserError(
                f"data.intensity: found 'dtype'; allowed: 'image', since {len(modes)} images are {modes[0]},"
                " a type whose range no image fills"
            )

    def require_foreground(self, rule: str) -> None:
        """Raise UserError (2) where the masks were checked with another rule than data.foreground."""
        if parse_foreground(rule).text != parse_foreground(self.foreground).text:
            raise UserError(
                f"data.foreground: found {rule!r}, but the masks were checked with {self.foreground!r};"
                f" run {check_command('FOLDER')} --foreground '{rule}'"
            )


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; UserError (65) where it is missing, not a manifest, or contradicts itself."""
    cure = f"run {check_command('FOLDER')}"
    try:
        content = read_verified(path) if checksum_path(path).exists() else path.read_bytes()
        return Manifest.model_validate_json(content)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; {cure}", EXIT_BAD_DATA) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {cure}", EXIT_BAD_DATA) from None
    except ValidationError as error:
        raise UserError(
            f"{path} is not a sound manifest: {_first_fault(error)}; {cure}", EXIT_BAD_DATA
        ) from None
    except ValueError as error:
        raise UserError(f"{error}; {cure}", EXIT_BAD_DATA) from None


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(key) for key in fault["loc"]) or "file"
    return f"{where}: {fault['msg']}"


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write a manifest whole or not at all; UserError (2) where it cannot be written."""
    try:
        write_verified(path, manifest.to_json().encode(), READABLE)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); name another path with --manifest PATH"
        ) from None


def _require_sizes(folder: Path, entries: list[FileEntry]) -> None:
    expected = {entry.name: entry.bytes for entry in entries}
    sizes = list_sizes(folder)
    if sizes != expected:
        raise UserError(
            f"{folder} is not as its manifest says: {_difference(expected, sizes)};"
            f" run {check_command(folder.parent)}",
            EXIT_BAD_DATA,
        )


def _difference(expected: dict[str, int], sizes: dict[str, int]) -> str:
    """Name the first file that differs, and count those that do."""
    names = expected.keys() | sizes.keys()
    differing = sorted(name for name in names if expected.get(name) != sizes.get(name))
    first = differing[0]
    count = f" ({len(differing)} files differ)" if len(differing) > 1 else ""
    return f"{ascii(first)[1:-1]} {_how_it_differs(expected.get(first), sizes.get(first))}{count}"


def _how_it_differs(expected_bytes: int | None, actual_bytes: int | None) -> str:
    if actual_bytes is None:
        return "is missing"
    return "is new" if expected_bytes is None else f"has {actual_bytes} bytes instead of {expected_bytes}"
