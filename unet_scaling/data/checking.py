"""Check a data folder: decode every file once, report all that is wrong, describe what is right."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.base.progress import map_in_order
from unet_scaling.data.folder import (
    IMAGES_FOLDER,
    MASKS_FOLDER,
    FileEntry,
    FilePair,
    Foreground,
    Manifest,
    PairEntry,
    find_pairs,
    parse_foreground,
)
from unet_scaling.data.pixels import Pixels, colours_of, decode, describe_mode, read_bytes, to_mask_values

# A mask of classes has few values; one of grey levels, which has many, is a mistake.
MOST_VALUES_LISTED = 16
# A folder of thousands of files may have as many problems; these fill a screen.
MOST_PROBLEMS_LISTED = 50
MOST_MASK_VALUES_SHOWN = 5
# Enough to see every class of most data sets.
PAIRS_SAMPLED = 32
# The highest value of what is trained on, and the levels below which an image of more bits has lost some.
BYTE = 255
FEWEST_LEVELS = 128
# More values than a mask of classes has: these are objects or levels of grey.
MOST_CLASSES = 8
MIDDLE_OF_GREY_8_BIT = 127
# Cells fill 0.5 to 1 of the rectangle around them; a level of grey, scattered or in rings, less than 0.15.
FEWEST_PIXELS_OF_OBJECT = 4
LEAST_FILLED_SHARE = 0.2
# Objects of interest seldom fill a larger share of all pixels; inverted masks always do.
MOST_FOREGROUND = 0.5


def check_folder(folder: Path, foreground: str | None = "nonzero", names: str | None = None) -> Manifest:
    """Decode every file of a folder and return its manifest, without a rule by what the masks suggest.

    Raises one UserError (65) that lists all problems with their paths: missing partners, files that
    are empty, cut off or no images, sizes that differ within a pair, mask values against the rule.
    """
    given = parse_foreground(foreground) if foreground else None
    pairs, problems = find_pairs(folder, names)
    rule = given or parse_foreground(sample_folder(folder, pairs).foreground)
    entries: list[PairEntry] = []
    first_masks: dict[int, str] = {}
    for faults, entry, values in map_in_order(partial(_check_pair, folder, rule), pairs, "checking"):
        problems += faults
        if entry is not None:
            entries.append(entry)
            for value in values:
                first_masks.setdefault(value, entry.mask.name)
    if unexpected := rule.unexpected(set(first_masks)):
        sample = sample_folder(folder, pairs, first_masks)
        if given is None:
            return check_folder(folder, sample.foreground, names)
        cure = f"the values are {sample.mask_values}: use --foreground '{sample.foreground}', or another rule"
        by_mask: dict[str, list[int]] = defaultdict(list)
        for value in unexpected:
            by_mask[first_masks[value]].append(value)
        # One line for each mask that is the first with a value outside the rule.
        for name, values in sorted(by_mask.items()):
            shown = ", ".join(map(str, values[:MOST_MASK_VALUES_SHOWN]))
            more = len(values) - MOST_MASK_VALUES_SHOWN
            held = f"{shown} and {more} more values" if more > 0 else shown
            place = folder / MASKS_FOLDER / name
            problems.append(f"{place}: holds {held}, unexpected under the rule {rule.text!r}; {cure}")
    shares = {entry.foreground_share for entry in entries}
    if not problems and shares in (set(), {0.0}, {1.0}):
        found = "every pixel is foreground" if shares == {1.0} else "no mask has a foreground pixel"
        lowest, *others = sorted(first_masks) or [0]
        cure = f"every mask holds {lowest} alone; export them anew"
        if others:
            held = sample_folder(folder, pairs, first_masks).mask_values
            cure = f"the values are {held}: name those that count with --foreground, such as '>{lowest}'"
        problems = [f"{folder / MASKS_FOLDER}: {found} under the rule {rule.text!r}; {cure}"]
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        lines = [f"{folder}: {count} found, no manifest was made", *problems[:MOST_PROBLEMS_LISTED]]
        if len(problems) > MOST_PROBLEMS_LISTED:
            lines.append(f"... and {len(problems) - MOST_PROBLEMS_LISTED} more")
        raise UserError("\n       ".join(lines), EXIT_BAD_DATA)
    return Manifest(foreground=rule.text, pairs=entries)


def require_meant(manifest: Manifest, folder: Path) -> None:
    """Raise UserError (65) with both readings where most pixels are foreground by a rule that nobody gave.

    Objects that are numbered, and classes, are not stored the other way round.
    """
    rule = parse_foreground(manifest.foreground)
    pixels = sum(pair.height * pair.width for pair in manifest.pairs)
    share = sum(pair.foreground_pixels for pair in manifest.pairs) / pixels
    if share > MOST_FOREGROUND and not rule.values and rule.text != ">0":
        raise UserError(
            f"{folder / MASKS_FOLDER}: {share:.1%} of the pixels are foreground by the rule {rule.text!r}. "
            f"If that is meant, say --foreground '{rule.text}'; if the rest is what counts, --foreground "
            f"'{rule.other_reading}' ({1 - share:.1%})",
            EXIT_BAD_DATA,
        )


def _check_pair(
    folder: Path, rule: Foreground, pair: FilePair
) -> tuple[list[str], PairEntry | None, list[int]]:
    """Return what is wrong with a pair, and else its entry and all values of its mask."""
    problems: list[str] = []
    image = _decode_file(folder / IMAGES_FOLDER / pair.image, problems)
    mask = _decode_file(folder / MASKS_FOLDER / pair.mask, problems, is_mask=True)
    if image is None or mask is None:
        return problems, None, []
    (image_entry, pixels), (mask_entry, held) = image, mask
    (height, width), (image_height, image_width) = held.shape[:2], pixels.shape[:2]
    if (height, width) != (image_height, image_width):
        sizes = f"has {width} x {height} pixels, its image {image_width} x {image_height}"
        problems.append(f"{folder / MASKS_FOLDER / pair.mask}: {sizes}; export them anew")
    values = np.unique(held).tolist()
    entry = PairEntry(
        stem=pair.stem,
        image=image_entry,
        mask=mask_entry,
        height=height,
        width=width,
        mask_values=values[:MOST_VALUES_LISTED],
        mask_value_count=len(values),
        foreground_pixels=int(np.count_nonzero(rule.mask(held))),
    )
    return problems, entry, values


def _decode_file(path: Path, problems: list[str], is_mask: bool = False) -> tuple[FileEntry, Pixels] | None:
    """Return a file and its pixels, the values of a mask; None, with the reason added to the problems."""
    try:
        content = read_bytes(path)
        pixels = decode(path, content, is_mask)
        values = to_mask_values(path, pixels) if is_mask else pixels
    except UserError as error:
        problems.append(str(error))
        return None
    digest = hashlib.sha256(content).hexdigest()
    entry = FileEntry(name=path.name, bytes=len(content), sha256=digest, mode=describe_mode(pixels))
    return entry, values


@dataclass(frozen=True)
class FolderSample:
    """What some pairs of a folder hold: a rule for the masks, and how much of their range images use."""

    foreground: str
    mask_values: str
    intensity: Literal["dtype", "image"]
    range: str


def sample_folder(folder: Path, pairs: Sequence[FilePair], known_values: Iterable[int] = ()) -> FolderSample:
    """Decode some pairs, evenly chosen; those that are not sound are left to `check_folder`.

    `known_values` are those of all masks, where these were read.
    """
    values = set(known_values)
    filled: list[float] = []
    ranges: list[tuple[float, float, float]] = []
    for pair in pairs[:: max(1, len(pairs) // PAIRS_SAMPLED)]:
        image = _decode_file(folder / IMAGES_FOLDER / pair.image, [])
        mask = _decode_file(folder / MASKS_FOLDER / pair.mask, [], is_mask=True)
        if mask is not None:
            values.update(np.unique(mask[1]).tolist())
            filled += filled_shares(mask[1])
        if image is not None:
            colours = colours_of(image[1])
            top = np.iinfo(colours.dtype).max if image[0].has_range else np.nan
            ranges.append((float(colours.min()), float(colours.max()), float(top)))
    return FolderSample(*suggest_foreground(values, filled), *_range_of(ranges))


def _range_of(ranges: list[tuple[float, float, float]]) -> tuple[Literal["dtype", "image"], str]:
    """Return which data.intensity is for images of such lowest, highest and possible values, and why."""
    if not ranges:
        return "dtype", "not known"
    lowest, highest, top = np.transpose(ranges)
    used = f"{lowest.min():g} to {highest.max():g}"
    if np.isnan(top).any():
        return "image", f"{used}, of a type whose range no image fills: data.intensity has to be 'image'"
    # Take the median image: one bright pixel, or some images of 8 bit, tell nothing of the others.
    levels = 1 + round(float(np.median((highest - lowest) / top)) * BYTE)
    used = f"{used} of {top.max():g}; half of the images use {levels} of {BYTE + 1} levels or fewer"
    if levels >= FEWEST_LEVELS or top.max() <= BYTE:
        return "dtype", used
    return "image", f"{used} with data.intensity = 'dtype', but all levels with 'image'"


def suggest_foreground(values: Iterable[int], filled_shares: Sequence[float]) -> tuple[str, str]:
    """Return a rule for masks of these values, and what the values are.

    The rule takes all that is not 0, or not the lowest value where none is 0, or every class, or all objects,
    or the brighter half.
    """
    held = sorted(set(values))
    classes = [value for value in held if value]
    if held == classes and 1 < len(classes) <= MOST_CLASSES:
        return f">{held[0]}", f"{len(classes)} values, of which none is 0"
    if len(classes) <= 1:
        return "nonzero", "one value beside 0"
    if len(classes) <= MOST_CLASSES:
        is_void = classes[-1] == BYTE and classes[-2] <= MIDDLE_OF_GREY_8_BIT
        doubt = f", of which {BYTE} may mark pixels that nobody judged" if is_void else ""
        return ",".join(map(str, classes)), f"{len(classes)} classes{doubt}"
    if np.median(filled_shares) >= LEAST_FILLED_SHARE:
        return ">0", f"the numbers of objects, up to {classes[-1]}"
    middle = MIDDLE_OF_GREY_8_BIT if classes[-1] <= 2 * MIDDLE_OF_GREY_8_BIT + 1 else classes[-1] // 2
    return f">{middle}", "levels of grey"


def filled_shares(mask: npt.NDArray[np.unsignedinteger]) -> list[float]:
    """Return for each value but 0 how much of the rectangle around its pixels they fill; 0 for few pixels."""
    # Imported here, since it takes longer than most rules to read.
    from scipy import ndimage  # type: ignore[import-untyped]

    inside = [mask[box] == value for value, box in enumerate(ndimage.find_objects(mask), 1) if box]
    return [float(pixels.mean()) * (pixels.sum() >= FEWEST_PIXELS_OF_OBJECT) for pixels in inside]
