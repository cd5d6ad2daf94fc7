"""A data folder: its pairs of files, the rule for its masks, and the manifest that identifies the data.

Pairs are images/NAME.png with masks/NAME.png, or as a pattern of names says. The manifest lists every pair
with sizes, checksums and mask values in one JSON file. It names files relative to the folder, so it stays
true when the folder is moved, and the same files give the same bytes, so its SHA-256 identifies the data. A
manifest written here has it beside it.

Format history
    1  first format
"""

import hashlib
import os
import re
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path, PurePath
from shlex import quote
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError, or_user_error
from unet_scaling.base.files import READABLE, checksum_path, read_regular, read_verified, write_verified
from unet_scaling.base.texts import called, did_you_mean
from unet_scaling.base.validation import Digest, StrictModel
from unet_scaling.study.options import Data

IMAGES_FOLDER = "images"
MASKS_FOLDER = "masks"
MANIFEST_NAME = "manifest.json"
SUFFIXES = (".png", ".tif", ".tiff", ".jpg", ".jpeg")
# Files that operating systems put into folders, besides hidden ones.
SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "icon\r"}
SAME_NAMES = "*:*"
NAMES_HELP = "how files are named, as '*:*_mask'; * is what image and mask share (default: found)"
# Pairs tried to find how a folder names its masks: the first mask may be one without image.
MOST_TRIED_PAIRS = 3
# What folders of masks are called elsewhere; other folders may be those of images.
_OF_MASKS = re.compile(r"(?i)mask|label|seg|truth|^gt|annot|target")
MOST_NAMED = 5
LAYOUT = "a data folder holds images/ and masks/ with files of the same names"
ALLOWED = "'nonzero', values such as '255' or '1,2', or a threshold such as '>127' or '<1'"
# The highest value of a 16-bit mask.
HIGHEST_VALUE = 65535


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
    _require_layout(folder)
    images = _by_stem(folder / IMAGES_FOLDER, problems)
    masks = _by_stem(folder / MASKS_FOLDER, problems)
    given = names
    if not names and images.keys() & _spelt_as(images, masks).keys():
        names = SAME_NAMES
    if names and not re.fullmatch(r"[^*:/]*\*[^*:/]*:[^*:/]*\*[^*:/]*", names):
        raise UserError(f"--names: found {names!r}; allowed: IMAGE:MASK with a * in each, such as '*:*_mask'")
    patterns = [each.partition("*")[::2] for each in names.split(":")] if names else []
    image_affixes, mask_affixes = patterns or _found_affixes(images, masks)
    images = _shared_names(images, IMAGES_FOLDER, *image_affixes)
    masks = _spelt_as(images, _shared_names(masks, MASKS_FOLDER, *mask_affixes))
    pairs = [FilePair(stem, images[stem], masks[stem]) for stem in sorted(images.keys() & masks.keys())]
    if images and masks and not pairs:
        shown = f"{min(images.values())!a} and {min(masks.values())!a}"
        said = f"--names {given!r} pairs no image with a mask" if given else "no mask has its image's name"
        cure = "name the pattern by --names, IMAGE:MASK with * for what both names share"
        problems.append(f"{folder}: {said} ({shown}); {cure}")
    else:
        problems += _without_partner(folder / IMAGES_FOLDER, images, masks, "mask")
        problems += _without_partner(folder / MASKS_FOLDER, masks, images, "image")
    if not pairs and not problems:
        problems.append(f"{folder}: {IMAGES_FOLDER}/ and {MASKS_FOLDER}/ are empty")
    return pairs, problems


def _require_layout(folder: Path) -> None:
    """Raise UserError (65) where a folder lacks images/ or masks/, with the folder or the link that helps."""
    if not folder.exists():
        raise UserError(f"{folder} does not exist; {near_folder(folder) or LAYOUT}", EXIT_BAD_DATA)
    if not folder.is_dir() or _has_layout(folder):
        return
    lacking = next(name for name in (IMAGES_FOLDER, MASKS_FOLDER) if not (folder / name).is_dir())
    found = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]
    around = [folder.parent, *(folder / name for name in found), *folder.glob("*/*/")]
    others = [name for name in found if name not in (IMAGES_FOLDER, MASKS_FOLDER)]
    meant = [name for name in others if bool(_OF_MASKS.search(name)) == (lacking == MASKS_FOLDER)]
    if near := next(filter(_has_layout, around), None):
        cure = f"did you mean {near}?"
    elif len(meant) == 1:
        link = f"ln -s {quote(meant[0])} {quote(str(folder / lacking))}"
        cure = f"found {meant[0]}/; if these are the {lacking}: {link}"
    else:
        cure = LAYOUT
        cure += f"; found {', '.join(f'{name}/' for name in found[:MOST_NAMED])}" if found else ""
    raise UserError(f"{folder / lacking}: there is no such folder; {cure}", EXIT_BAD_DATA)


def near_folder(folder: Path) -> str:
    """Return "did you mean ...?" with the folder nearest to one that does not exist; empty without any."""
    beside = [str(path) for path in folder.parent.glob("*") if path.is_dir()]
    return did_you_mean(str(folder), beside).strip()


def _has_layout(folder: Path) -> bool:
    return (folder / IMAGES_FOLDER).is_dir() and (folder / MASKS_FOLDER).is_dir()


def images_in(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the image file of each stem in a folder, and everything that is none. Raises as `find_pairs`."""
    problems: list[str] = []
    return _by_stem(folder, problems), problems


def name_pattern(pair: FilePair) -> str:
    """Return how a pair is named, as the option --names has it."""
    shared, *stems = map(_composed, (pair.stem, Path(pair.image).stem, Path(pair.mask).stem))
    return ":".join(stem.replace(shared, "*", 1) for stem in stems)


def _by_stem(folder: Path, problems: list[str]) -> dict[str, str]:
    """Return the file of each stem; add to the problems foreign files, and stems that look the same."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(_list_sizes(folder)):
        if fault := _fault(folder / name):
            problems.append(f"{folder / ascii(name)}: {fault}")
        else:
            alike[_as_seen(Path(name).stem)].append(name)
    for names in alike.values():
        if len(names) > 1:
            shown = " and ".join(map(ascii, names))
            problems.append(f"{folder}: the names {shown} look the same; rename one, or keep it elsewhere")
    return {Path(name).stem: name for names in alike.values() for name in names[:1]}


def _list_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of every visible entry of a folder; UserError (65) where it cannot be listed."""
    with or_user_error(f"{folder}: cannot be listed", LAYOUT, EXIT_BAD_DATA):
        entries = [entry for entry in folder.iterdir() if entry.name[0] != "."]
        visible = [entry for entry in entries if entry.name.lower() not in SYSTEM_FILES]
        return {entry.name: entry.stat().st_size if entry.exists() else 0 for entry in visible}


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


def _as_seen(stem: str) -> str:
    return _composed(stem).casefold()


def _composed(stem: str) -> str:
    """Return a name in one Unicode form: a Mac writes letters and their accents apart."""
    return unicodedata.normalize("NFC", stem)


def _spelt_as(images: dict[str, str], masks: dict[str, str]) -> dict[str, str]:
    """Return the masks by the stems of their images, where they differ in Unicode form only."""
    spelt = {_composed(stem): stem for stem in images}
    return {spelt.get(_composed(stem), stem): file for stem, file in masks.items()}


def _found_affixes(images: dict[str, str], masks: dict[str, str]) -> list[tuple[str, str]]:
    """Return prefix and suffix of images and of masks, by which most masks have an image; else none."""
    images, masks = ({_composed(stem): file for stem, file in files.items()} for files in (images, masks))
    for image, mask in list(zip(sorted(images), sorted(masks), strict=False))[:MOST_TRIED_PAIRS]:
        same = SequenceMatcher(None, image, mask, autojunk=False).find_longest_match()
        image_affixes = (image[: same.a], image[same.a + same.size :])
        mask_affixes = (mask[: same.b], mask[same.b + same.size :])
        shared = _shared_names(masks, MASKS_FOLDER, *mask_affixes)
        named = _shared_names(images, IMAGES_FOLDER, *image_affixes).keys() & shared.keys()
        if 2 * len(named) > len(masks):
            return [image_affixes, mask_affixes]
    return [("", ""), ("", "")]


def _shared_names(files: dict[str, str], kind: str, prefix: str, suffix: str) -> dict[str, str]:
    """Return the files by their stems without these affixes; those that lack one get names of no other."""
    shared = {}
    for stem, file in files.items():
        fits = stem.startswith(prefix) and stem.endswith(suffix) and len(stem) > len(prefix + suffix)
        shared[stem[len(prefix) : len(stem) - len(suffix)] if fits else f"{stem}/{kind}"] = file
    return shared


def _without_partner(folder: Path, files: dict[str, str], others: dict[str, str], kind: str) -> list[str]:
    alike = {_as_seen(stem): name for stem, name in others.items() if stem not in files}
    faults = []
    for stem in sorted(files.keys() - others.keys()):
        other = alike.get(_as_seen(stem))
        hint = f"{other!a} differs in case or Unicode form only: rename one of them"
        hint = f"; {hint if other else 'add it, or keep this file elsewhere'}"
        faults.append(f"{folder / files[stem]}: has no {kind}{hint}")
    return faults


@dataclass(frozen=True)
class Foreground:
    """A rule for mask values 0..65535. `text` is its canonical spelling.

    nonzero   0 is background; one other value, the same in the whole data set, is foreground
    1,2       these values are foreground, 0 is background, any other value is a mistake
    >127      values above are foreground, all others background
    <128      values below are foreground, all others background; <1: objects are stored as 0
    """

    text: str
    values: frozenset[int] = frozenset()
    threshold: int | None = None

    @property
    def is_below(self) -> bool:
        return self.text.startswith("<")

    @property
    def other_reading(self) -> str:
        """Return the rule by which foreground and background change places."""
        if self.threshold is None:
            return "<1"
        return f">{self.threshold - 1}" if self.is_below else f"<{self.threshold + 1}"

    def mask(self, pixels: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.uint8]:
        """Return 1 where a pixel is foreground, else 0; the shape is kept."""
        if self.threshold is not None:
            side = pixels < self.threshold if self.is_below else pixels > self.threshold
            return np.asarray(side, dtype=np.uint8)
        if not self.values:
            return np.asarray(pixels != 0, dtype=np.uint8)
        return np.asarray(np.isin(pixels, list(self.values)), dtype=np.uint8)

    def unexpected(self, values: set[int]) -> list[int]:
        """Return the values of a data set that this rule does not allow, sorted."""
        if self.threshold is not None:
            return []
        if self.values:
            return sorted(values - self.values - {0})
        others = sorted(values - {0})
        return others if len(others) > 1 else []


def parse_foreground(rule: str) -> Foreground:
    """Read a rule; raises UserError (2) naming the key and the allowed forms."""
    text = rule.replace(" ", "")
    if text == "nonzero":
        return Foreground(text)
    if re.fullmatch(r">\d{1,5}", text, re.ASCII) and int(text[1:]) < HIGHEST_VALUE:
        return Foreground(f">{int(text[1:])}", threshold=int(text[1:]))
    if re.fullmatch(r"<\d{1,5}", text, re.ASCII) and 0 < int(text[1:]) <= HIGHEST_VALUE:
        return Foreground(f"<{int(text[1:])}", threshold=int(text[1:]))
    if re.fullmatch(r"\d{1,5}(,\d{1,5})*", text, re.ASCII):
        values = sorted({int(value) for value in text.split(",")})
        if values[0] > 0 and values[-1] <= HIGHEST_VALUE:
            return Foreground(",".join(map(str, values)), frozenset(values))
    raise UserError(f"data.foreground: found {rule!r}; allowed: {ALLOWED} (from 1 to {HIGHEST_VALUE})")


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
        if not all(_composed(self.stem) in _composed(file.name) for file in (self.image, self.mask)):
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

    def to_json(self) -> str:
        """Return the text of the file: equal for equal data."""
        return self.model_dump_json(indent=1) + "\n"

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the file's text, which identifies the data."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def require_unchanged(self, folder: Path, path: Path) -> None:
        """Raise UserError (65) unless the folder has exactly these files in these sizes.

        This lists the folder and reads no file, so it may be done before every training. `path` is that of
        this manifest.
        """
        cure = check_again(folder, self.foreground, path)
        _require_sizes(folder / IMAGES_FOLDER, [pair.image for pair in self.pairs], cure)
        _require_sizes(folder / MASKS_FOLDER, [pair.mask for pair in self.pairs], cure)

    def require_options(self, data: Data) -> None:
        """Raise UserError (2) for a data.intensity or data.foreground that is not for these files."""
        self.require_foreground(data.foreground, data.folder, data.manifest_path)
        modes = [pair.image.mode for pair in self.pairs if not pair.image.has_range]
        if modes and data.intensity == "dtype":
            why = f"{len(modes)} images are {modes[0]}, whose range no image fills"
            raise UserError(f"data.intensity: found 'dtype'; allowed: 'image', since {why}")

    def require_foreground(self, rule: str, folder: object, path: Path) -> None:
        """Raise UserError (2) where the manifest at `path` is of another rule than data.foreground."""
        if parse_foreground(rule).text != parse_foreground(self.foreground).text:
            found = f"found {rule!r}, but the masks were checked with {self.foreground!r}"
            raise UserError(f"data.foreground: {found}; run {check_again(folder, rule, path)}")


def check_again(folder: object, rule: str, path: Path) -> str:
    """Return the command that makes the manifest of these images at `path` anew, by this rule of masks."""
    return called("data", "check", folder, "--foreground", rule, "--manifest", path)


def _require_sizes(folder: Path, entries: list[FileEntry], cure: str) -> None:
    expected = {entry.name: entry.bytes for entry in entries}
    sizes = _list_sizes(folder)
    if sizes != expected:
        names = expected.keys() | sizes.keys()
        differing = sorted(name for name in names if expected.get(name) != sizes.get(name))
        first = differing[0]
        how = f"has {sizes.get(first)} bytes instead of {expected.get(first)}"
        if first not in sizes:
            how = "is missing"
        elif first not in expected:
            how = "is new"
        count = f" ({len(differing)} files differ)" if len(differing) > 1 else ""
        found = f"is not as its manifest says: {ascii(first)[1:-1]} {how}{count}"
        raise UserError(f"{folder} {found}; run {cure}", EXIT_BAD_DATA)


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; UserError (65) where it is missing, not a manifest, or contradicts itself."""
    try:
        content = read_verified(path) if checksum_path(path).exists() else read_regular(path)
        return Manifest.model_validate_json(content)
    except FileNotFoundError:
        problem = f"{path} does not exist"
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror})"
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(key) for key in fault["loc"]) or "file"
        problem = f"{path} is not a sound manifest: {where}: {fault['msg']}"
    except ValueError as error:
        problem = str(error)
    of = (path.parent,) if path.name == MANIFEST_NAME else ("FOLDER", "--manifest", path)
    raise UserError(f"{problem}; run {called('data', 'check', *of)}", EXIT_BAD_DATA)


def require_replaceable(path: Path) -> None:
    """Raise UserError where a file is at `path` that does not begin as a manifest; a damaged one does."""
    if not os.path.lexists(path):
        return
    begin = f'{{\n "format": {Manifest.model_fields["format"].default},'.encode()
    if not (path.is_file() and read_regular(path).startswith(begin)):
        cure = "name another path with --manifest PATH"
        raise UserError(f"{path} is there, and is no manifest of this program; {cure}")


def write_manifest(
    manifest: Manifest, path: Path, cure: str = "name another path with --manifest PATH"
) -> None:
    """Write a manifest whole or not at all; UserError (2), with this cure, where it cannot be written."""
    with or_user_error(f"{path} cannot be written", cure):
        write_verified(path, manifest.to_json().encode(), READABLE)
