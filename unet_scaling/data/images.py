"""Decode PNG and TIFF files whole, and turn their pixels into 8-bit images and grey masks."""

import io
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image, UnidentifiedImageError

from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

Pixels = npt.NDArray[np.unsignedinteger]

KINDS = {1: "grey", 3: "RGB", 4: "RGBA"}
# What is wrong with a TIFF reaches the user as an error that names the file.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)

PNG_END = b"IEND\xaeB`\x82"
# ITU-R BT.601, the luminosity that Pillow and most viewers use.
LUMINOSITY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; UserError (65) where it is empty or cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})", EXIT_BAD_DATA) from None
    if not content:
        raise UserError(f"{path}: is empty", EXIT_BAD_DATA)
    return content


def decode(path: Path, content: bytes) -> Pixels:
    """Return pixels [height, width, 1, 3 or 4] as uint8 or uint16; the suffix of `path` says the format.

    The whole file is decoded: one that is cut off raises UserError (65) with path and reason.
    """
    reader = _decode_png if path.suffix.lower() == ".png" else _decode_tiff
    try:
        return reader(content)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: cannot be decoded: {error}", EXIT_BAD_DATA) from None


def describe_mode(pixels: Pixels) -> str:
    """Return kind and depth, such as 'grey 16 bit'."""
    return f"{KINDS[pixels.shape[2]]} {pixels.dtype.itemsize * 8} bit"


def to_image(
    pixels: Pixels, channels: Literal[1, 3], intensity: Literal["dtype", "image"]
) -> npt.NDArray[np.uint8]:
    """Return uint8 [height, width, channels]; transparency is dropped, colour becomes luminosity.

    `intensity` "dtype" maps the range of the pixel type to 0..255, "image" the range that the image
    has; an image of one value becomes 0.
    """
    colours = pixels[:, :, :3]
    if pixels.dtype == np.uint8 and colours.shape[2] == channels and intensity == "dtype":
        return colours.astype(np.uint8, copy=False)
    converted = _to_channels(colours.astype(np.float32), channels)
    if intensity == "image":
        return _to_bytes(converted, converted.min(), converted.max())
    return _to_bytes(converted, np.float32(0), np.float32(np.iinfo(pixels.dtype).max))


def _to_bytes(values: npt.NDArray[np.float32], low: np.float32, high: np.float32) -> npt.NDArray[np.uint8]:
    scale = 255 / float(high - low) if high > low else 0.0
    return np.asarray(np.rint((values - low) * np.float32(scale)), dtype=np.uint8)


def to_mask_values(path: Path, pixels: Pixels) -> Pixels:
    """Return the values [height, width] of a mask, at the depth of its file.

    Raises UserError (65) where colour channels differ, or where transparency hides a value.
    """
    grey = pixels[:, :, 0]
    if pixels.shape[2] >= 3 and not (pixels[:, :, 1:3] == grey[:, :, None]).all():
        raise UserError(f"{path}: has colours; save the mask as grey, one value per class", EXIT_BAD_DATA)
    if pixels.shape[2] == 4 and grey[pixels[:, :, 3] == 0].any():
        raise UserError(
            f"{path}: its transparent pixels are not 0, so it is unclear what is foreground;"
            " save the mask as grey without transparency",
            EXIT_BAD_DATA,
        )
    return grey


def _to_channels(colours: npt.NDArray[np.float32], channels: int) -> npt.NDArray[np.float32]:
    if colours.shape[2] == channels:
        return colours
    if channels == 3:
        return np.repeat(colours, 3, axis=2)
    return np.asarray(colours @ LUMINOSITY[:, None], dtype=np.float32)


def _decode_png(content: bytes) -> Pixels:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(content), formats=["PNG"])
        except UnidentifiedImageError:
            raise ValueError("is not a PNG file, or cut off in its header") from None
        except Image.DecompressionBombWarning as error:
            raise ValueError(str(error)) from None
    # Pillow decodes a file without its last chunk, and cuts 16-bit colour to 8 bit; both in silence.
    if PNG_END not in content:
        raise ValueError("is cut off: the end of the PNG is missing")
    depth = content[24]
    colour_type = content[25]
    if depth == 16 and colour_type != 0:
        raise ValueError("16-bit colour PNG would be cut to 8 bit; save it as 16-bit TIFF or 8-bit PNG")
    return _with_channel_axis(np.asarray(_plain_mode(image)))


def _plain_mode(image: Image.Image) -> Image.Image:
    """Return the image as grey, RGB or RGBA; a palette becomes its colours."""
    if image.mode in ("L", "I;16", "RGB", "RGBA"):
        return image
    if image.mode == "1":
        return image.convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _decode_tiff(content: bytes) -> Pixels:
    # On damaged tags tifffile fails in any way, from IndexError to TypeError.
    try:
        with tifffile.TiffFile(io.BytesIO(content)) as file:
            return _decode_page(file)
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _decode_page(file: tifffile.TiffFile) -> Pixels:
    if len(file.pages) != 1:
        raise ValueError(f"holds {len(file.pages)} pages; one is expected")
    page = file.pages.first
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and page.imagewidth * page.imagelength > limit:
        raise ValueError(f"{page.imagewidth} x {page.imagelength} pixels exceed the limit of {limit}")
    return _with_channel_axis(_plain_tiff(page, page.asarray()))


def _plain_tiff(page: tifffile.TiffPage, pixels: npt.NDArray[Any]) -> Pixels:
    """Return grey, RGB or RGBA with channels last and 0 black, however the TIFF stores it."""
    if pixels.dtype == np.bool_:
        pixels = np.where(pixels, np.uint8(255), np.uint8(0))
    _require_readable(pixels.dtype, page.axes)
    if page.axes == "SYX":
        pixels = np.moveaxis(pixels, 0, -1)
    if page.photometric == tifffile.PHOTOMETRIC.MINISWHITE:
        pixels = np.iinfo(pixels.dtype).max - pixels
    return pixels if page.colormap is None else _with_palette(pixels, page.colormap)


def _require_readable(pixel_type: np.dtype[Any], axes: str) -> None:
    if pixel_type not in (np.uint8, np.uint16):
        raise ValueError(f"its pixels are {pixel_type}; 8-bit and 16-bit unsigned are read")
    if axes not in ("YX", "YXS", "SYX"):
        raise ValueError(f"its axes are {axes}; one image of height and width is expected")


def _with_palette(pixels: npt.NDArray[Any], colours: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # TIFF palettes have 16-bit colours, those of 8-bit files being multiples of 257.
    return (np.moveaxis(colours[:, pixels], 0, -1) // 257).astype(np.uint8)


def _with_channel_axis(pixels: npt.NDArray[Any]) -> Pixels:
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.shape[2] == 2:  # grey and transparency
        pixels = pixels[:, :, [0, 0, 0, 1]]
    if pixels.shape[2] not in KINDS:
        raise ValueError(f"it has {pixels.shape[2]} channels; grey, RGB and RGBA are read")
    return pixels
