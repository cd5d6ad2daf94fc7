"""Every supported kind of file decodes to the same pixels; every broken one fails with its path."""

import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.data_folders import Array, blob, cut, noise, refused, save
from unet_scaling.data.images import decode, describe_mode, read_bytes, to_image, to_mask_values
from unet_scaling.study.errors import UserError

COLOUR = np.random.default_rng(1).integers(0, 256, (12, 16, 3)).astype(np.uint8)


def load(path: Path) -> Array:
    return decode(path, read_bytes(path))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("bits", [8, 16])
def test_grey_keeps_every_bit(tmp_path: Path, suffix: str, bits: int) -> None:
    pixels = noise(bits=bits)
    found = load(save(tmp_path / f"a{suffix}", pixels))
    assert describe_mode(found) == f"grey {bits} bit"
    np.testing.assert_array_equal(found[:, :, 0], pixels)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_colour_is_read_as_it_is(tmp_path: Path, suffix: str) -> None:
    np.testing.assert_array_equal(load(save(tmp_path / f"a{suffix}", COLOUR)), COLOUR)


def test_a_palette_becomes_the_colours_it_stands_for(tmp_path: Path) -> None:
    picture = Image.fromarray(COLOUR).quantize(16)
    np.testing.assert_array_equal(load(save(tmp_path / "a.png", picture)), np.asarray(picture.convert("RGB")))
    palette = np.arange(3 * 256, dtype=np.uint16).reshape(3, 256) % 256 * 257
    tifffile.imwrite(tmp_path / "a.tif", noise(), photometric="palette", colormap=palette)
    np.testing.assert_array_equal(load(tmp_path / "a.tif"), np.moveaxis(palette[:, noise()] // 257, 0, -1))


def test_tiff_variants_are_brought_to_one_form(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, 255 - noise(), photometric="miniswhite")
    np.testing.assert_array_equal(load(path)[:, :, 0], noise())
    tifffile.imwrite(path, np.moveaxis(COLOUR, -1, 0), photometric="rgb", planarconfig="separate")
    np.testing.assert_array_equal(load(path), COLOUR)
    tifffile.imwrite(path, noise(), compression="zlib")
    np.testing.assert_array_equal(load(path)[:, :, 0], noise())


def test_one_bit_and_grey_with_transparency_are_grey(tmp_path: Path) -> None:
    one_bit = load(save(tmp_path / "a.png", Image.fromarray(blob() > 0)))
    np.testing.assert_array_equal(one_bit[:, :, 0], blob())
    grey = load(save(tmp_path / "b.png", Image.fromarray(blob()).convert("LA")))
    np.testing.assert_array_equal(to_mask_values(tmp_path / "b.png", grey), blob())


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("keep", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file_fails_with_its_path(tmp_path: Path, suffix: str, keep: float) -> None:
    path = save(tmp_path / f"a{suffix}", noise(60, 80))
    cut(path, keep)
    with pytest.raises(UserError) as caught:
        load(path)
    assert refused(caught, 65, path, "cannot be decoded")


def test_a_png_without_its_end_is_truncated_even_where_all_pixels_are_there(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", noise())
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(UserError, match="cut off"):
        load(path)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_damage_never_ends_in_anything_but_a_user_error(tmp_path: Path, suffix: str) -> None:
    content = save(tmp_path / f"a{suffix}", noise()).read_bytes()
    random = np.random.default_rng(3)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[random.integers(len(content))] = random.integers(256)
        with suppress(UserError):
            decode(tmp_path / f"a{suffix}", bytes(damaged))


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_empty_and_foreign_content_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=f"{name}: is empty"):
        load(tmp_path / name)
    (tmp_path / name).write_text("this is no picture")
    with pytest.raises(UserError, match=f"{name}: cannot be decoded"):
        load(tmp_path / name)
    with pytest.raises(UserError, match=r"gone\.png: cannot be read"):
        load(tmp_path / "gone.png")


def test_files_that_would_lose_something_are_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "stack.tif", np.zeros((3, 12, 16), np.uint8), photometric="minisblack")
    with pytest.raises(UserError, match="3 pages"):
        load(tmp_path / "stack.tif")
    tifffile.imwrite(tmp_path / "float.tif", noise().astype(np.float32))
    with pytest.raises(UserError, match="float32"):
        load(tmp_path / "float.tif")
    (tmp_path / "deep.png").write_bytes(deep_colour_png())
    with pytest.raises(UserError, match="16-bit colour PNG would be cut"):
        load(tmp_path / "deep.png")


def deep_colour_png() -> bytes:
    """One row of two 16-bit RGB pixels, which Pillow can read but not write."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" + bytes(range(12)))),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_the_limit_on_pixels_stays_on(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / f"a{suffix}", noise(20, 20))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 399)
    with pytest.raises(UserError) as caught:
        load(path)
    assert refused(caught, 65, path, "400" if suffix == ".png" else "20 x 20", "limit")


def test_sixteen_bits_map_their_whole_range_to_eight() -> None:
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256, 1)
    expected = np.rint(every.astype(np.float64) * 255 / 65535)
    np.testing.assert_array_equal(to_image(every, 1, "dtype"), expected)


def test_eight_bit_grey_is_left_alone() -> None:
    pixels = noise()[:, :, None]
    np.testing.assert_array_equal(to_image(pixels, 1, "dtype"), pixels)
    np.testing.assert_array_equal(to_image(pixels, 3, "dtype"), np.repeat(pixels, 3, axis=2))


def test_colour_becomes_luminosity() -> None:
    expected = np.asarray(Image.fromarray(COLOUR).convert("L"), dtype=int)
    assert np.abs(to_image(COLOUR, 1, "dtype")[:, :, 0] - expected).max() <= 1
    np.testing.assert_array_equal(to_image(np.dstack([COLOUR, COLOUR[:, :, :1]]), 3, "dtype"), COLOUR)


def test_per_image_intensity_uses_the_range_that_the_image_has() -> None:
    pixels = np.array([[1000, 1500, 3000]], dtype=np.uint16)[:, :, None]
    assert to_image(pixels, 1, "image").ravel().tolist() == [0, 64, 255]
    assert to_image(np.full((2, 2, 1), 9, np.uint8), 1, "image").max() == 0


def test_overlay_masks_count_as_grey_where_their_channels_agree(tmp_path: Path) -> None:
    values = blob()
    opaque = np.dstack([values, values, values, np.full_like(values, 255)])
    np.testing.assert_array_equal(to_mask_values(tmp_path, opaque), values)
    np.testing.assert_array_equal(to_mask_values(tmp_path, np.dstack([values] * 4)), values)
    with pytest.raises(UserError, match="has colours"):
        to_mask_values(tmp_path, np.dstack([values, values, 255 - values]))
    with pytest.raises(UserError, match="transparent"):
        to_mask_values(tmp_path, np.dstack([np.full_like(values, 255)] * 3 + [values]))
