"""Find the pairs of a data folder: images/NAME.png with masks/NAME.png, joined by their stem."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

SUFFIXES = (".png", ".tif", ".tiff")
IMAGES_FOLDER = "images"
MASKS_FOLDER = "masks"


@dataclass(frozen=True)
class FilePair:
    """One image with its mask: the stem they share, and their file names in images/ and masks/."""

    stem: str
    image: str
    mask: str


def find_pairs(folder: Path) -> tuple[list[FilePair], list[str]]:
    """Return all pairs, sorted by stem, and everything that keeps a file from being part of one.

    Hidden files are skipped. Raises UserError (65) where images/ or masks/ cannot be listed.
    """
    problems: list[str] = []
    images = _by_stem(folder / IMAGES_FOLDER, problems)
    masks = _by_stem(folder / MASKS_FOLDER, problems)
    problems += _without_partner(folder / IMAGES_FOLDER, images, masks, "has no mask")
    problems += _without_partner(folder / MASKS_FOLDER, masks, images, "has no image")
    pairs = [FilePair(stem, images[stem], masks[stem]) for stem in sorted(images.keys() & masks.keys())]
    if not pairs and not problems:
        problems.append(f"{folder}: {IMAGES_FOLDER}/ and {MASKS_FOLDER}/ are empty")
    return pairs, problems


def _without_partner(folder: Path, files: dict[str, str], others: dict[str, str], fault: str) -> list[str]:
    return [f"{folder / files[stem]}: {fault}" for stem in sorted(files.keys() - others.keys())]


def list_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every visible entry of a folder; UserError (65) where it cannot be listed."""
    try:
        return {entry.name: entry.stat().st_size for entry in folder.iterdir() if entry.name[0] != "."}
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be listed ({error.strerror}); a data folder holds {IMAGES_FOLDER}/"
            f" and {MASKS_FOLDER}/ with files of the same names",
            EXIT_BAD_DATA,
        ) from None


def _by_stem(folder: Path, problems: list[str]) -> dict[str, str]:
    """Return the file of each stem; add to the problems foreign files, and stems that several files share."""
    stems: dict[str, list[str]] = defaultdict(list)
    for name in sorted(list_sizes(folder)):
        fault = _fault(folder / name)
        if fault:
            problems.append(f"{folder / ascii(name)}: {fault}")
        else:
            stems[Path(name).stem].append(name)
    problems += _shared_stems(folder, stems)
    return {stem: names[0] for stem, names in stems.items()}


def _shared_stems(folder: Path, stems: dict[str, list[str]]) -> list[str]:
    return [
        f"{folder}: {' and '.join(names)} have the same stem {stem!r}; keep one of them"
        for stem, names in stems.items()
        if len(names) > 1
    ]


def _fault(path: Path) -> str:
    """Return why this entry cannot be an image or mask, by its name and kind; empty where it can."""
    if not path.name.isprintable():
        return "the name holds control characters or is not valid UTF-8; rename it"
    if path.suffix.lower() not in SUFFIXES:
        return f"is none of {', '.join(SUFFIXES)}; remove it"
    return "" if path.is_file() else "is not a file; remove it"
