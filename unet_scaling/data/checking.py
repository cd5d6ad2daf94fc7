"""Check a data folder: decode every file once, report all that is wrong, describe what is right."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from unet_scaling.data.fitting import Bytes
from unet_scaling.data.foreground import Foreground, parse_foreground
from unet_scaling.data.images import Pixels, decode, describe_mode, read_bytes, to_mask_values
from unet_scaling.data.manifest import MOST_VALUES_LISTED, FileEntry, Manifest, PairEntry
from unet_scaling.data.pairs import IMAGES_FOLDER, MASKS_FOLDER, FilePair, find_pairs
from unet_scaling.data.parallel import map_in_order
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

# A folder of thousands of files may have as many problems; these fill a screen.
MOST_PROBLEMS_LISTED = 50
MOST_MASK_VALUES_SHOWN = 5


def check_folder(folder: Path, foreground: str = "nonzero") -> Manifest:
    """Decode every file of a folder once and return its manifest.

    Raises one UserError (65) that lists all problems with their paths: missing partners, files that
    are empty, cut off or no images, sizes that differ within a pair, mask values against the rule.
    """
    rule = parse_foreground(foreground)
    pairs, problems = find_pairs(folder)
    result = _FolderCheck(problems)
    for checked in map_in_order(partial(_check_pair, folder, rule), pairs, "checking"):
        result.add(checked)
    problems = result.problems + _mask_problems(folder, rule, result.first_masks)
    if not problems and not any(entry.foreground_pixels for entry in result.entries):
        problems = [f"{folder / MASKS_FOLDER}: no mask has a foreground pixel under the rule {rule.text!r}"]
    if problems:
        raise UserError(_report(folder, problems), EXIT_BAD_DATA)
    return Manifest(foreground=rule.text, pairs=result.entries)


@dataclass(frozen=True)
class _CheckedPair:
    problems: list[str]
    entry: PairEntry | None = None
    mask_values: Sequence[int] = ()


@dataclass(frozen=True)
class _FolderCheck:
    """The pairs checked so far; `first_masks` names the first mask with each value."""

    problems: list[str]
    entries: list[PairEntry] = field(default_factory=list)
    first_masks: dict[int, str] = field(default_factory=dict)

    def add(self, checked: _CheckedPair) -> None:
        self.problems.extend(checked.problems)
        if checked.entry is not None:
            self.entries.append(checked.entry)
            for value in checked.mask_values:
                self.first_masks.setdefault(value, checked.entry.mask.name)


@dataclass(frozen=True)
class _DecodedFile:
    path: Path
    entry: FileEntry
    pixels: Pixels

    @property
    def size(self) -> str:
        return f"{self.pixels.shape[1]} x {self.pixels.shape[0]}"


def _check_pair(folder: Path, rule: Foreground, pair: FilePair) -> _CheckedPair:
    problems: list[str] = []
    image = _decode_file(folder / IMAGES_FOLDER / pair.image, problems)
    mask = _decode_file(folder / MASKS_FOLDER / pair.mask, problems)
    if image is None or mask is None:
        return _CheckedPair(problems)
    if image.size != mask.size:
        problems.append(f"{mask.path}: has {mask.size} pixels, its image {image.size}")
    grey = _grey_values(mask, problems)
    if grey is None:
        return _CheckedPair(problems)
    values = np.unique(grey).tolist()
    return _CheckedPair(problems, _pair_entry(pair.stem, image, mask, values, rule.mask(grey)), values)


def _grey_values(mask: _DecodedFile, problems: list[str]) -> Pixels | None:
    """Return the values of a mask, or None with the reason added to the problems."""
    try:
        return to_mask_values(mask.path, mask.pixels)
    except UserError as error:
        problems.append(str(error))
        return None


def _pair_entry(
    stem: str, image: _DecodedFile, mask: _DecodedFile, mask_values: list[int], foreground: Bytes
) -> PairEntry:
    return PairEntry(
        stem=stem,
        image=image.entry,
        mask=mask.entry,
        height=mask.pixels.shape[0],
        width=mask.pixels.shape[1],
        mask_values=mask_values[:MOST_VALUES_LISTED],
        mask_value_count=len(mask_values),
        foreground_pixels=int(foreground.sum(dtype=np.int64)),
    )


def _decode_file(path: Path, problems: list[str]) -> _DecodedFile | None:
    """Return a file with its pixels, or None with the reason added to the problems."""
    try:
        content = read_bytes(path)
        pixels = decode(path, content)
    except UserError as error:
        problems.append(str(error))
        return None
    digest = hashlib.sha256(content).hexdigest()
    entry = FileEntry(name=path.name, bytes=len(content), sha256=digest, mode=describe_mode(pixels))
    return _DecodedFile(path, entry, pixels)


def _mask_problems(folder: Path, rule: Foreground, first_masks: dict[int, str]) -> list[str]:
    """Return one line for each mask that is the first with a value outside the rule."""
    by_mask: dict[str, list[int]] = defaultdict(list)
    for value in rule.unexpected(set(first_masks)):
        by_mask[first_masks[value]].append(value)
    return [
        f"{folder / MASKS_FOLDER / name}: holds {_listed(unexpected)}, unexpected under the rule"
        f" {rule.text!r}; name the foreground with --foreground and data.foreground, such as '255' or '>127'"
        for name, unexpected in sorted(by_mask.items())
    ]


def _listed(values: list[int]) -> str:
    shown = ", ".join(map(str, values[:MOST_MASK_VALUES_SHOWN]))
    more = len(values) - MOST_MASK_VALUES_SHOWN
    return f"{shown} and {more} more values" if more > 0 else shown


def _report(folder: Path, problems: list[str]) -> str:
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    lines = [f"{folder}: {count} found, no manifest was made", *problems[:MOST_PROBLEMS_LISTED]]
    if len(problems) > MOST_PROBLEMS_LISTED:
        lines.append(f"... and {len(problems) - MOST_PROBLEMS_LISTED} more")
    return "\n       ".join(lines)
