"""Check a data folder: decode every file once, report all that is wrong, describe what is right."""

import hashlib
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np

from unet_scaling.data.foreground import Foreground, parse_foreground
from unet_scaling.data.images import Pixels, decode, describe_mode, read_bytes, to_mask_values
from unet_scaling.data.manifest import MOST_VALUES_LISTED, FileEntry, Manifest, PairEntry
from unet_scaling.data.pairs import IMAGES, MASKS, Pair, find_pairs
from unet_scaling.data.parallel import map_in_order
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

MOST_PROBLEMS_LISTED = 50


def check_folder(folder: Path, foreground: str = "nonzero") -> Manifest:
    """Decode every file of a folder once and describe it.

    Raises one UserError (65) that lists all problems with their paths: missing partners, files that
    are empty, cut off or no images, sizes that differ within a pair, mask values against the rule.
    """
    rule = parse_foreground(foreground)
    pairs, problems = find_pairs(folder)
    entries: list[PairEntry] = []
    values: dict[int, str] = {}
    for entry, pair_values, faults in map_in_order(partial(_check_pair, folder, rule), pairs, "checking"):
        problems += faults
        if entry is not None:
            entries.append(entry)
            values |= {value: entry.mask.name for value in pair_values if value not in values}
    problems += _mask_problems(folder, rule, values)
    if not problems and not any(entry.foreground_pixels for entry in entries):
        problems = [f"{folder / MASKS}: no mask has a foreground pixel under the rule {rule.text!r}"]
    if problems:
        raise UserError(_report(folder, problems), EXIT_BAD_DATA)
    return Manifest(foreground=rule.text, pairs=entries)


def _check_pair(folder: Path, rule: Foreground, pair: Pair) -> tuple[PairEntry | None, list[int], list[str]]:
    """The pair's entry or none, the values of its mask, and what is wrong with it."""
    problems: list[str] = []
    image = _read(folder / IMAGES / pair.image, problems)
    mask = _read(folder / MASKS / pair.mask, problems)
    if image is None or mask is None:
        return None, [], problems
    path = folder / MASKS / pair.mask
    if image[1].shape[:2] != mask[1].shape[:2]:
        height, width = image[1].shape[:2]
        problems.append(f"{path}: has {_size(mask[1])} pixels, its image {width} x {height}")
    try:
        values = to_mask_values(path, mask[1])
    except UserError as error:
        return None, [], [*problems, str(error)]
    found = [int(value) for value in np.unique(values)]
    entry = PairEntry(
        stem=pair.stem,
        image=image[0],
        mask=mask[0],
        height=values.shape[0],
        width=values.shape[1],
        mask_values=found[:MOST_VALUES_LISTED],
        mask_value_count=len(found),
        foreground_pixels=int(rule.mask(values).sum(dtype=np.int64)),
    )
    return entry, found, problems


def _read(path: Path, problems: list[str]) -> tuple[FileEntry, Pixels] | None:
    """The file's entry and pixels; where it has none, the reason is added to the problems."""
    try:
        content = read_bytes(path)
        pixels = decode(path, content)
    except UserError as error:
        problems.append(str(error))
        return None
    digest = hashlib.sha256(content).hexdigest()
    entry = FileEntry(name=path.name, bytes=len(content), sha256=digest, mode=describe_mode(pixels))
    return entry, pixels


def _mask_problems(folder: Path, rule: Foreground, values: dict[int, str]) -> list[str]:
    """One line for each mask that is the first with a value which the rule does not provide for."""
    by_mask: dict[str, list[int]] = defaultdict(list)
    for value in rule.unexpected(set(values)):
        by_mask[values[value]].append(value)
    return [
        f"{folder / MASKS / name}: holds {_listed(unexpected)}, unexpected under the rule {rule.text!r};"
        " name the foreground with --foreground and data.foreground, such as '255' or '>127'"
        for name, unexpected in sorted(by_mask.items())
    ]


def _listed(values: list[int]) -> str:
    shown = ", ".join(map(str, values[:5]))
    return f"{shown} and {len(values) - 5} more values" if len(values) > 5 else shown


def _size(pixels: Pixels) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"


def _report(folder: Path, problems: list[str]) -> str:
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    lines = [f"{folder}: {count} found, no manifest was made", *problems[:MOST_PROBLEMS_LISTED]]
    if len(problems) > MOST_PROBLEMS_LISTED:
        lines.append(f"... and {len(problems) - MOST_PROBLEMS_LISTED} more")
    return "\n       ".join(lines)
