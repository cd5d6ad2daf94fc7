"""Check a data folder: decode every file once, report all that is wrong, describe what is right."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

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
    entries: list[PairEntry] = []
    first_masks: dict[int, str] = {}
    for checked in map_in_order(partial(_check_pair, folder, rule), pairs, "checking"):
        problems += checked.problems
        if checked.entry is not None:
            entries.append(checked.entry)
            first_masks = dict.fromkeys(checked.mask_values, checked.entry.mask.name) | first_masks
    problems += _mask_problems(folder, rule, first_masks)
    if not problems and not any(entry.foreground_pixels for entry in entries):
        problems = [f"{folder / MASKS_FOLDER}: no mask has a foreground pixel under the rule {rule.text!r}"]
    if problems:
        raise UserError(_report(folder, problems), EXIT_BAD_DATA)
    return Manifest(foreground=rule.text, pairs=entries)


@dataclass(frozen=True)
class _CheckedPair:
    problems: list[str]
    entry: PairEntry | None = None
    mask_values: tuple[int, ...] = ()


def _check_pair(folder: Path, rule: Foreground, pair: FilePair) -> _CheckedPair:
    problems: list[str] = []
    image = _read(folder / IMAGES_FOLDER / pair.image, problems)
    mask = _read(folder / MASKS_FOLDER / pair.mask, problems)
    if image is None or mask is None:
        return _CheckedPair(problems)
    path = folder / MASKS_FOLDER / pair.mask
    if _size(image[1]) != _size(mask[1]):
        problems.append(f"{path}: has {_size(mask[1])} pixels, its image {_size(image[1])}")
    try:
        pixels = to_mask_values(path, mask[1])
    except UserError as error:
        return _CheckedPair([*problems, str(error)])
    values = tuple(np.unique(pixels).tolist())
    return _CheckedPair(problems, _entry(pair, image[0], mask[0], pixels, values, rule), values)


def _entry(
    pair: FilePair,
    image: FileEntry,
    mask: FileEntry,
    pixels: Pixels,
    values: tuple[int, ...],
    rule: Foreground,
) -> PairEntry:
    height, width = pixels.shape
    return PairEntry(
        stem=pair.stem,
        image=image,
        mask=mask,
        height=height,
        width=width,
        mask_values=list(values[:MOST_VALUES_LISTED]),
        mask_value_count=len(values),
        foreground_pixels=int(rule.mask(pixels).sum(dtype=np.int64)),
    )


def _read(path: Path, problems: list[str]) -> tuple[FileEntry, Pixels] | None:
    """Return the file's entry and pixels, or None with the reason added to the problems."""
    try:
        content = read_bytes(path)
        pixels = decode(path, content)
    except UserError as error:
        problems.append(str(error))
        return None
    digest = hashlib.sha256(content).hexdigest()
    entry = FileEntry(name=path.name, bytes=len(content), sha256=digest, mode=describe_mode(pixels))
    return entry, pixels


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


def _size(pixels: Pixels) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"


def _report(folder: Path, problems: list[str]) -> str:
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    lines = [f"{folder}: {count} found, no manifest was made", *problems[:MOST_PROBLEMS_LISTED]]
    if len(problems) > MOST_PROBLEMS_LISTED:
        lines.append(f"... and {len(problems) - MOST_PROBLEMS_LISTED} more")
    return "\n       ".join(lines)
