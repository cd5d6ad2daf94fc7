"""Find the pairs of a data folder: images/NAME.png with masks/NAME.png, or as a pattern says."""

import re
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

SUFFIXES = (".png", ".tif", ".tiff", ".jpg", ".jpeg")
IMAGES_FOLDER = "images"
MASKS_FOLDER = "masks"
SAME_NAMES = "*:*"
NAMES_HELP = "how files are named, as '*:*_mask'; * is what image and mask share (default: found)"
# To find how a folder names its masks: the first may be one without image.
MOST_TRIED_PAIRS = 3
# What operating systems put into folders, beside hidden files.
SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "icon\r"}


@dataclass(frozen=True)
class FilePair:
    """One image with its mask: the name they share, and their file names in images/ and masks/."""

    stem: str
    image: str
    mask: str


def find_pairs(folder: Path, names: str | None = None) -> tuple[list[FilePair], list[str]]:
    """Return all pairs, sorted by stem, and everything that keeps a file from being part of one.

    `names` is a pattern such as '*:*_mask', an image's stem and its mask's with * for what they share;
    without it, a pattern that the folder keeps is found. Hidden files are skipped. Raises UserError: 65
    where images/ or masks/ cannot be listed, 2 for an impossible pattern.
    """
    problems: list[str] = []
    images = _by_stem(folder / IMAGES_FOLDER, problems)
    masks = _by_stem(folder / MASKS_FOLDER, problems)
    if not names and images.keys() & masks.keys():
        names = SAME_NAMES
    image_affixes, mask_affixes = _affixes(names) if names else _found_affixes(images, masks)
    images = _shared_names(images, *image_affixes)
    masks = _shared_names(masks, *mask_affixes)
    pairs = [FilePair(stem, images[stem], masks[stem]) for stem in sorted(images.keys() & masks.keys())]
    if images and masks and not pairs:
        shown = f"{min(images.values())!a} and {min(masks.values())!a}"
        problems.append(
            f"{folder}: no mask has its image's name ({shown}); name them as --names '*:*_mask' does"
        )
    else:
        problems += _without_partner(folder / IMAGES_FOLDER, images, masks, "mask")
        problems += _without_partner(folder / MASKS_FOLDER, masks, images, "image")
    if not pairs and not problems:
        problems.append(f"{folder}: {IMAGES_FOLDER}/ and {MASKS_FOLDER}/ are empty")
    return pairs, problems


def name_pattern(pair: FilePair) -> str:
    """Return how a pair is named, as the option --names has it."""
    stems = (Path(pair.image).stem, Path(pair.mask).stem)
    return ":".join(stem.replace(pair.stem, "*", 1) for stem in stems)


def list_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every visible entry of a folder; UserError (65) where it cannot be listed."""
    try:
        entries = [entry for entry in folder.iterdir() if entry.name[0] != "."]
        visible = [entry for entry in entries if entry.name.lower() not in SYSTEM_FILES]
        return {entry.name: entry.stat().st_size if entry.exists() else 0 for entry in visible}
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be listed ({error.strerror}); a data folder holds {IMAGES_FOLDER}/"
            f" and {MASKS_FOLDER}/ with files of the same names",
            EXIT_BAD_DATA,
        ) from None


def _affixes(names: str) -> list[tuple[str, str]]:
    """Return prefix and suffix of images and of masks that a pattern names; UserError (2) for no pattern."""
    if not re.fullmatch(r"[^*:/]*\*[^*:/]*:[^*:/]*\*[^*:/]*", names):
        raise UserError(f"--names: found {names!r}; allowed: IMAGE:MASK with a * in each, such as '*:*_mask'")
    return [(each.partition("*")[0], each.partition("*")[2]) for each in names.split(":")]


def _found_affixes(images: dict[str, str], masks: dict[str, str]) -> list[tuple[str, str]]:
    """Return prefix and suffix of images and of masks, by which most masks have an image; else none."""
    for image, mask in list(zip(sorted(images), sorted(masks), strict=False))[:MOST_TRIED_PAIRS]:
        same = SequenceMatcher(None, image, mask, autojunk=False).find_longest_match()
        image_affixes = (image[: same.a], image[same.a + same.size :])
        mask_affixes = (mask[: same.b], mask[same.b + same.size :])
        named = _shared_names(images, *image_affixes).keys() & _shared_names(masks, *mask_affixes).keys()
        if 2 * len(named) > len(masks):
            return [image_affixes, mask_affixes]
    return [("", ""), ("", "")]


def _shared_names(files: dict[str, str], prefix: str, suffix: str) -> dict[str, str]:
    """Return the files by their stems without these affixes; those that lack one get names of no file."""
    shared = {}
    for stem, file in files.items():
        fits = stem.startswith(prefix) and stem.endswith(suffix) and len(stem) > len(prefix + suffix)
        shared[stem[len(prefix) : len(stem) - len(suffix)] if fits else f"{stem}/"] = file
    return shared


def _without_partner(folder: Path, files: dict[str, str], others: dict[str, str], kind: str) -> list[str]:
    alike = {_as_seen(stem): name for stem, name in others.items() if stem not in files}
    faults = []
    for stem in sorted(files.keys() - others.keys()):
        other = alike.get(_as_seen(stem))
        hint = f"; {other!a} differs in case or Unicode form only: rename one of them" if other else ""
        faults.append(f"{folder / files[stem]}: has no {kind}{hint}")
    return faults


def _as_seen(stem: str) -> str:
    return unicodedata.normalize("NFC", stem).casefold()


def _by_stem(folder: Path, problems: list[str]) -> dict[str, str]:
    """Return the file of each stem; add to the problems foreign files, and stems that look the same."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(list_sizes(folder)):
        fault = _fault(folder / name)
        if fault:
            problems.append(f"{folder / ascii(name)}: {fault}")
        else:
            alike[_as_seen(Path(name).stem)].append(name)
    for names in alike.values():
        if len(names) > 1:
            shown = " and ".join(map(ascii, names))
            problems.append(f"{folder}: the names {shown} look the same; rename one, or keep it elsewhere")
    return {Path(name).stem: name for names in alike.values() for name in names[:1]}


def _fault(path: Path) -> str:
    """Return why this entry cannot be an image or mask, by its name and kind; empty where it can."""
    if not path.name.isprintable():
        return "the name holds control characters or is not valid UTF-8; rename it"
    if path.is_symlink() and not path.exists():
        target = str(path.readlink())
        if "annex/objects" in target:
            return f"its content is not here; run: git annex get {path.name} (or datalad get)"
        return f"is a link to {target!a}, which does not exist; bring that file back"
    if path.is_dir():
        return "is a folder; keep it elsewhere, and the masks of one image in one file"
    if path.suffix.lower() not in SUFFIXES:
        return f"is none of {', '.join(SUFFIXES)}; convert it, or keep it elsewhere"
    return "" if path.is_file() else "is no regular file; keep it elsewhere"
