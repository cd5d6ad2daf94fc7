"""Images as people have them are read as they were meant, or refused by name with what to do about it."""

import re
import sys
import unicodedata
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from slurm.commands import check, new
from tests.data_folders import blob, noise, options, refused, save
from tests.encodings import COLOUR, ENCODINGS, GREY, Array, Encoding, pil
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.data.__main__ import main
from unet_scaling.data.batches import shifted_out, unpack_bits
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import parse_foreground, read_manifest
from unet_scaling.data.images import build_cache, open_cache
from unet_scaling.data.pixels import (
    colours_of,
    decode,
    fit_image,
    fit_mask,
    fitted_box,
    packed_width,
    read_bytes,
    to_image,
    to_mask_values,
)
from unet_scaling.study.study_file import read_study

CURES = r"save|convert|export|rename|run|give|cut|keep|bring|use|whole numbers|unclear|name"
REMOVES = re.compile(r"\b(remove|delete|erase|rm)\b", re.IGNORECASE)


def call(*words: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["unet-scaling data", *map(str, words)])
    main()


def outcome(path: Path, content: bytes, as_mask: bool) -> Array | str:
    """The pixels of an image, the values of a mask, or the one line of a refusal, which has a cure."""
    try:
        pixels = decode(path, content, as_mask)
        return to_mask_values(path, pixels) if as_mask else colours_of(pixels)
    except UserError as error:
        told = str(error)
        code = error.exit_code
    assert code == EXIT_BAD_DATA
    assert re.fullmatch(rf"{path}: .*({CURES}).*", told)
    assert not REMOVES.search(told)
    return told


@pytest.mark.parametrize("as_mask", [False, True], ids=["image", "mask"])
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
def test_every_encoding_is_read_rightly_or_refused(encoding: Encoding, as_mask: bool) -> None:
    expected = encoding.mask if as_mask else encoding.image
    path = Path(f"folder/file{encoding.suffix}")
    found = outcome(path, encoding.content, as_mask)
    if isinstance(found, str) or isinstance(expected, str):
        assert (expected or "") in found
    elif expected is not None:
        np.testing.assert_array_equal(found, expected.reshape(found.shape))
        assert as_mask or found.dtype == expected.dtype


def test_what_the_command_accepts_is_what_training_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = [(each, each.image) for each in ENCODINGS if isinstance(each.image, np.ndarray)]
    for number, (encoding, pixels) in enumerate(read):
        save(tmp_path / "masks" / f"{number:03}.png", blob(*pixels.shape[:2]))
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / f"{number:03}{encoding.suffix}").write_bytes(encoding.content)
    call("check", tmp_path, monkeypatch=monkeypatch)
    manifest = read_manifest(tmp_path / "manifest.json")
    with pytest.raises(UserError, match=r"data\.intensity: found 'dtype'; allowed: 'image'"):
        build_cache(manifest, options(tmp_path), tmp_path / "cache")
    data = options(tmp_path, intensity="image", image_height=18, image_width=21, channels=3)
    build_cache(manifest, data, tmp_path / "cache")
    cached = open_cache(manifest, data, tmp_path / "cache")
    for (encoding, pixels), image in zip(read, cached.images, strict=True):
        if pixels.shape[:2] == (18, 21):
            values = np.broadcast_to(np.atleast_3d(pixels).astype(float), image.shape)
            scaled = (values - values.min()) * 255 / (values.max() - values.min())
            assert np.abs(image - scaled).max() < 0.51, encoding.name


def damaged(content: bytes, flips: list[tuple[float, int]], kept: float, other: bytes, at: float) -> bytes:
    """Flip bytes, put a part of another file in, and cut the end off."""
    changed = bytearray(content)
    for place, value in flips:
        changed[int(place * (len(changed) - 1))] ^= value
    start = int(at * len(changed))
    changed[start : start + len(other) // 4] = other[: len(other) // 4]
    return bytes(changed[: int(kept * len(changed))])


SHARE = st.floats(0, 1)


@settings(max_examples=300)
@given(
    st.sampled_from(ENCODINGS),
    st.booleans(),
    # Most of what a file means stands in its first bytes.
    st.lists(st.tuples(SHARE | st.floats(0, 0.3), st.integers(1, 255)), max_size=4),
    st.just(1.0) | SHARE,
    st.just(b"") | st.sampled_from(ENCODINGS).map(lambda encoding: encoding.content),
    SHARE,
)
def test_damaged_bytes_end_in_pixels_or_in_a_line_for_the_user(
    encoding: Encoding, as_mask: bool, flips: list[tuple[float, int]], kept: float, other: bytes, at: float
) -> None:
    path = Path(f"file{encoding.suffix}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
        outcome(path, damaged(encoding.content, flips, kept, other, at), as_mask)


IMAGE = pil(noise(), "PNG")
MASK = pil(blob(), "PNG")
NFC = unicodedata.normalize("NFC", "café")
NFD = unicodedata.normalize("NFD", "café")
Files = dict[str, bytes | str | None]


def named(image: str, mask: str, count: int = 3) -> Files:
    images: Files = {f"images/{image.replace('*', str(index))}.png": IMAGE for index in range(8, 8 + count)}
    return images | {f"masks/{mask.replace('*', str(index))}.png": MASK for index in range(8, 8 + count)}


def write(folder: Path, files: Mapping[str, bytes | str | None]) -> Path:
    """Write files; a text is the target of a link, None makes a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
    return folder


PLAIN = named("p*", "p*")
ANNEX = "../.git/annex/objects/Xy/9z/MD5E-s1--0.png/MD5E-s1--0.png"
LABELS = np.repeat(np.repeat(np.arange(54).reshape(6, 9), 8, axis=0), 8, axis=1)
FOLDERS: dict[str, tuple[Mapping[str, bytes | str | None], list[str]]] = {
    # Accepted: what the summary says.
    "same names": (PLAIN, ["pairs       3", "values      0, 255"]),
    "system files": (
        PLAIN | {f"images/{name}": b"x" for name in ("Thumbs.db", ".DS_Store", "._p8.png", "desktop.ini")},
        ["pairs       3"],
    ),
    **{
        f"{image} and {mask}": (
            named(image, mask),
            ["pairs       3", f"names       {said or f'{image}:{mask}'},"],
        )
        for image, mask, said in (
            ("*", "*_mask", ""),
            ("*", "mask_*", ""),
            ("*", "*_seg_gt", ""),
            ("img*", "mask*", ""),
            ("cell*", "cell*_label", "*:*_label"),
            ("*_sat", "*_mask", "*sat:*mask"),
            ("a_*_x", "b_*_y", "a*x:b*y"),
        )
    },
    # Refused: what the lines name.
    "soft masks": (
        {"images/a.png": IMAGE, "masks/a.png": IMAGE},
        ["levels of grey: use --foreground '>127'"],
    ),
    "classes": (
        {"images/a.png": IMAGE, "masks/a.png": pil(blob(value=2) + blob(value=1).T.reshape(12, 16), "PNG")},
        ["classes: use --foreground '1,2"],
    ),
    "no partners": (
        {name: content for name, content in PLAIN.items() if name != "masks/p9.png"} | {"masks/x.png": MASK},
        ["images/p9.png: has no mask", "masks/x.png: has no image"],
    ),
    "no pattern": ({"images/cat.png": IMAGE, "masks/box.png": MASK}, ["'cat.png' and 'box.png'", "--names"]),
    "JPEG masks": (
        PLAIN | {"images/q.png": IMAGE, "masks/q.jpg": pil(blob(), "JPEG")},
        ["q.jpg: JPEG changes the values"],
    ),
    "git-annex": (PLAIN | {"images/q.png": ANNEX}, ["q.png': its content is not here; run: git annex get"]),
    "dangling": (PLAIN | {"masks/q.png": "/gone/q.png"}, ["q.png': is a link to '/gone/q.png'"]),
    "case": (named("p*", "P*"), ["names       p*:P*"]),
    "one case": (
        PLAIN | {"images/q.png": IMAGE, "masks/Q.png": MASK},
        ["'Q.png' differs in case or Unicode"],
    ),
    "Unicode": (
        PLAIN | {f"images/{NFC}.png": IMAGE, f"masks/{NFD}.png": MASK},
        ["pairs       4"],
    ),
    "from a Mac": ({f"images/{NFD}.png": IMAGE, f"masks/{NFC}.png": MASK}, ["pairs       1"]),
    "masks from a Mac": (
        {f"images/{NFC}.png": IMAGE, f"masks/{NFD}_mask.png": MASK},
        ["names       *:*_mask"],
    ),
    "two kinds": (PLAIN | {"images/p8.tif": IMAGE}, ["'p8.png' and 'p8.tif' look the same"]),
    "foreign": (
        PLAIN | {"images/notes.txt": b"x"},
        ["notes.txt': is none of .png", "convert it, or keep it"],
    ),
    "folders": (PLAIN | {"masks/q": None}, ["'q': is a folder", "the masks of one image in one file"]),
    "a garbled name": (PLAIN | {"images/a\x1b[2J\n.png": IMAGE}, [r"a\x1b[2J\n.png", "control characters"]),
    "nothing": ({"images": None, "masks": None}, ["images/ and masks/ are empty"]),
    "no folders": (
        {"pictures": None},
        ["found pictures/; if these are the images: ln -s pictures "],
    ),
    "of others": ({"imgs": None, "labels": None}, ["found imgs/; if these are the images: ln -s imgs"]),
    "labels": (
        {"images/a.png": IMAGE, "labels": None},
        ["found labels/; if these are the masks: ln -s labels"],
    ),
    "one level below": (
        {"train/images/a.png": IMAGE, "train/masks/a.png": MASK},
        ["images: there is no such folder; did you mean", "/train?"],
    ),
    "several": ({"a": None, "b": None}, ["a data folder holds images/ and masks/", "found a/, b/"]),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_taken_as_it_was_meant_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, expected = FOLDERS[name]
    try:
        call("check", write(tmp_path, files), monkeypatch=monkeypatch)
    except UserError as error:
        told = str(error)
        code = error.exit_code
    else:
        told = capsys.readouterr().out
        code = 0
        manifest = read_manifest(tmp_path / "manifest.json")
        assert len(manifest.pairs) == sum(name.startswith("masks/") for name in files)
        manifest.require_unchanged(tmp_path, tmp_path / "manifest.json")
    # Of a refusal, not two lines for every pair.
    assert code == 0 or (code == EXIT_BAD_DATA and len(told.splitlines()) <= 3)
    for text in expected:
        assert text in told
    assert not REMOVES.search(told)


def test_names_are_what_the_option_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, named("*", "*_mask") | named("x*", "x*"))
    with pytest.raises(UserError, match="has no image"):
        call("check", tmp_path, monkeypatch=monkeypatch)
    assert len(check_folder(write(tmp_path / "a", named("*", "*_mask")), names="*:*_mask").pairs) == 3
    with pytest.raises(UserError, match=r"--names '\*:\*' pairs no image with a mask"):
        call("check", tmp_path / "a", "--names", "*:*", monkeypatch=monkeypatch)
    for wrong in ("*_mask", "*:mask", "*:**", "a/*:*"):
        with pytest.raises(UserError, match="--names: found") as caught:
            call("check", tmp_path / "a", "--names", wrong, monkeypatch=monkeypatch)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("pixels", "mask", "foreground", "intensity", "told"),
    [
        (
            noise(48, 72, bits=12),
            LABELS.astype(np.uint16),
            ">0",
            "image",
            [
                "up to 53",
                "use 17 of 256 levels or fewer with data.intensity = 'dtype', but all levels with 'image'",
            ],
        ),
        (GREY, blob(18, 21), "nonzero", "dtype", ["8 images"]),
        (GREY.astype(np.float32), blob(18, 21), "nonzero", "image", ["8 images"]),
    ],
    ids=["objects in 12 bits", "bytes", "floats"],
)
def test_new_proposes_what_the_images_need_and_check_refuses_what_they_cannot_have(
    pixels: Array,
    mask: Array,
    foreground: str,
    intensity: str,
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for index in range(8):
        save(tmp_path / "data" / "images" / f"{index}.tif", pixels)
        save(tmp_path / "data" / "masks" / f"{index}_mask.tif", mask)
    asked = ["--data", str(tmp_path / "data"), "--into", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["new", "mine", "--no-probe", *asked])
    new.main()
    study = tmp_path / "mine.toml"
    data = read_study(study).configs()[0].data
    assert (data.foreground, data.intensity) == (foreground, intensity)
    written = study.read_text()
    assert all(text in written for text in told)
    share = read_manifest(data.manifest_path).pairs[0].foreground_share
    # Every object is foreground: all but the first of 54 squares.
    assert share == (53 / 54 if foreground == ">0" else 24 / pixels.size)
    words = ["check", str(study), "--only-files"]
    monkeypatch.setattr(sys, "argv", words)
    assert check.main() == 0
    monkeypatch.setattr(sys, "argv", [*words, "--set", "data.intensity=dtype"])
    with nullcontext() if pixels.dtype.kind == "u" else pytest.raises(UserError, match=r"data\.intensity"):
        check.main()


def test_files_that_are_empty_missing_or_beyond_the_limit_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 399)
    (tmp_path / "empty.png").touch()
    large = [save(tmp_path / f"large{suffix}", noise(20, 20)) for suffix in (".png", ".tif")]
    for path in (tmp_path / "empty.png", tmp_path / "missing.png", *large):
        with pytest.raises(UserError, match=f"^{path}: ") as caught:
            decode(path, read_bytes(path))
        assert caught.value.exit_code == EXIT_BAD_DATA


def test_every_depth_maps_its_whole_range_to_bytes_or_that_of_the_image() -> None:
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256, 1)
    expected = np.rint(every.astype(np.float64) * 255 / 65535)
    np.testing.assert_array_equal(to_image(every, 1, "dtype"), expected)
    np.testing.assert_array_equal(to_image(GREY[..., None], 3, "dtype"), np.dstack([GREY] * 3))
    assert to_image(np.array([[[1000], [1500], [3000]]], np.uint16), 1, "image").ravel().tolist() == [
        0,
        64,
        255,
    ]
    assert to_image(np.full((2, 2, 1), 9, np.uint8), 1, "image").max() == 0
    luminosity = np.asarray(Image.fromarray(COLOUR).convert("L"), dtype=int)
    assert np.abs(to_image(COLOUR, 1, "dtype")[:, :, 0] - luminosity).max() <= 1


VALUES = np.array([[0, 1, 2, 127, 128, 255, 256, 65535]], dtype=np.uint16)


@pytest.mark.parametrize(
    ("rule", "foreground", "text", "found", "unexpected"),
    [
        ("nonzero", [0, 1, 1, 1, 1, 1, 1, 1], "nonzero", {0, 1, 255}, [1, 255]),
        ("255", [0, 0, 0, 0, 0, 1, 0, 0], "255", {0, 1, 255}, [1]),
        (" 2, 1,1", [0, 1, 1, 0, 0, 0, 0, 0], "1,2", {0, 1, 2, 3}, [3]),
        ("> 0127", [0, 0, 0, 0, 1, 1, 1, 1], ">127", {0, 13, 200}, []),
        ("65535", [0, 0, 0, 0, 0, 0, 0, 1], "65535", {0, 65535}, []),
    ],
)
def test_a_rule_selects_values_at_their_full_depth_and_finds_those_it_does_not_provide_for(
    rule: str, foreground: list[int], text: str, found: set[int], unexpected: list[int]
) -> None:
    parsed = parse_foreground(rule)
    assert (parsed.text, parsed.unexpected(found)) == (text, unexpected)
    mask = parsed.mask(VALUES)
    assert mask.dtype == np.uint8
    assert mask[0].tolist() == foreground


@pytest.mark.parametrize(
    "rule", ["", "0", "0,1", "white", ">", ">65535", "70000", "-1", "1;2", "1,", "<0", "<70000", "<", "٣"]
)
def test_an_invalid_rule_names_the_key_and_what_was_found(rule: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_foreground(rule)
    assert refused(caught, 2, "data.foreground", repr(rule))


side = st.integers(1, 3000)


@given(side, side, side, side)
def test_a_picture_fills_its_box_in_one_direction_and_keeps_its_ratio(
    height: int, width: int, target_height: int, target_width: int
) -> None:
    box = fitted_box(height, width, target_height, target_width)
    assert 1 <= box.height <= target_height
    assert 1 <= box.width <= target_width
    assert box.height == target_height or box.width == target_width
    scale = min(target_height / height, target_width / width)
    assert abs(box.height - height * scale) <= 1
    assert abs(box.width - width * scale) <= 1
    assert abs((target_height - box.height) - 2 * box.top) <= 1
    assert abs((target_width - box.width) - 2 * box.left) <= 1


def test_shrinking_smooths_images_keeps_mask_values_and_both_in_register() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))
    shrunk = fit_image(np.repeat(stripes[:, :, None], 3, axis=2), 16, 16)
    # The columns at the border see one stripe more than the others.
    assert np.abs(shrunk[:, 2:-2].astype(int) - 128).max() < 10
    mask = blob(120, 160)
    image = fit_image(mask[:, :, None], 48, 48)[:, :, 0]
    assert set(np.unique(fit_mask(mask, 48, 48))) == {0, 255}
    assert ((image > 127) != (fit_mask(mask, 48, 48) > 0)).mean() < 0.01


@pytest.mark.parametrize("width", [1, 7, 8, 9, 64])
def test_masks_come_back_from_their_bits_on_any_device(width: int) -> None:
    masks = np.random.default_rng(width).integers(0, 2, (3, 4, width), dtype=np.uint8)
    packed = torch.from_numpy(np.packbits(masks, axis=-1))
    assert packed.shape == (3, 4, packed_width(width))
    for way in (unpack_bits, shifted_out):  # on a CPU, and on any other device
        np.testing.assert_array_equal(way(packed, width), masks)
