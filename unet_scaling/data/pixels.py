"""PNG, TIFF and JPEG files decoded whole, made 8-bit images or grey masks, and brought to one size."""

import io
import logging
import re
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

import imagecodecs
import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image
from tifffile import COMPRESSION, PHOTOMETRIC, PLANARCONFIG, SAMPLEFORMAT

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError, or_user_error
from unet_scaling.base.files import read_regular
from unet_scaling.data.folder import HIGHEST_VALUE

# Of an integer or floating type, [height, width, channels].
Pixels = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

KINDS = {1: "grey", 2: "grey and alpha", 3: "RGB", 4: "RGBA"}
TYPES = {"u": "", "i": " signed", "f": " float"}
# Faults of a TIFF reach the user as an error that names the file, not as a log message.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)
# Likewise what is larger than Pillow's limit.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)

PNG_END = b"IEND\xaeB`\x82"
# ITU-R BT.601, the luminosity that Pillow and most viewers use.
LUMINOSITY = np.array([0.299, 0.587, 0.114], dtype=np.float32)

# What is read of TIFF 6.0 and its extensions, by the numbers of its tags: whether a compression keeps
# every value, which of them take a predictor, and the channels of a colour space without alpha.
# None, three of CCITT, LZW, Deflate, PackBits, Deflate again, LZMA and ZSTD; then JPEG, LERC and WebP.
COMPRESSIONS = dict.fromkeys((1, 2, 3, 4, 5, 8, 32773, 32946, 34925, 50000), True)
COMPRESSIONS |= dict.fromkeys((7, 34887, 50001), False)
PREDICTED = (5, 8, 32946, 34925, 50000)
# In these compressions white is 0 by their standard, so that they invert a mask.
FAX = (2, 3, 4)
# White is zero, black is zero, RGB, palette and, with JPEG, YCbCr.
TIFF_CHANNELS = {0: 1, 1: 1, 2: 3, 3: 1, 6: 3}
ORIENTATION = 274
METAMORPH_PLANES = 33629
SAMPLE_BITS = (1, 2, 4, 8, 10, 12, 14, 16, 32, 64)
# A page of lower resolution than the one before it, as of a pyramid.
REDUCED = 1
# Further pages are looked at to find a second image; pyramids have about ten.
MOST_PAGES = 64
# Pages that software adds to the first without listing them: ImageJ, tifffile.
HIDDEN_PAGES = re.compile(r'^ImageJ=[\s\S]*\nimages=(?!1\b)\d|^\{"shape": .*"truncated": true')
POINTERS = {
    b"version https://git-lfs": "is a pointer of git-lfs; run git lfs pull",
    b"/annex/objects/": "is a pointer of git-annex; run git annex get (datalad get) on it",
}


class _UnreadError(ValueError):
    """What a file holds is not read; the text says what, and what to save instead."""


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; UserError (65) where it is empty or cannot be read."""
    with or_user_error(f"{path}: cannot be read", "bring it back, or allow to read it", EXIT_BAD_DATA):
        content = read_regular(path)
    if not content:
        raise UserError(f"{path}: is empty; copy or export it again", EXIT_BAD_DATA)
    return content


def decode(path: Path, content: bytes, mask: bool = False) -> Pixels:
    """Return pixels [height, width, 1 to 4 channels], turned as their orientation says; 0 is black.

    The content says the format. Of a `mask` the stored values count, whatever a viewer shows: a palette gives
    its indices, and zeros that are called white stay zeros; of 1 bit values are 0 and 255. UserError (65)
    names the file and the cure: where it is cut off, holds several images, colours other than grey and RGB,
    an alpha that hides something, NaN, or a mask with a lossy compression.
    """
    try:
        pixels = _decode_any(content, mask)
    except (_UnreadError, Image.DecompressionBombError) as error:
        raise UserError(f"{path}: {error}", EXIT_BAD_DATA) from None
    # On damaged tags the libraries fail in any way, from IndexError to TypeError.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        cure = "it is cut off or damaged: copy or export it again"
        raise UserError(f"{path}: cannot be decoded ({reason}); {cure}", EXIT_BAD_DATA) from None
    if not mask and pixels.shape[2] in (2, 4) and (pixels[:, :, -1] != _top(pixels)).any():
        fault = "its alpha (last) channel is not opaque everywhere; save it as grey or RGB without alpha"
    elif pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        fault = "holds NaN or infinite values; give those pixels a value"
    else:
        return pixels
    raise UserError(f"{path}: {fault}", EXIT_BAD_DATA)


def describe_mode(pixels: Pixels) -> str:
    """Return kind and depth, such as 'grey 16 bit' or 'grey 32 bit float'."""
    return f"{KINDS[pixels.shape[2]]} {pixels.dtype.itemsize * 8} bit{TYPES[pixels.dtype.kind]}"


def colours_of(pixels: Pixels) -> Pixels:
    """Return the pixels without their alpha channel."""
    return pixels[:, :, : 3 if pixels.shape[2] > 2 else 1]


def to_image(pixels: Pixels, channels: Literal[1, 3], intensity: Literal["dtype", "image"]) -> Bytes:
    """Return uint8 [height, width, channels]; transparency is dropped, colour becomes luminosity.

    `intensity` "dtype" maps the range of the pixel type to 0..255, "image" the range that the image
    has; an image of one value becomes 0.
    """
    colours = colours_of(pixels)
    if pixels.dtype == np.uint8 and colours.shape[2] == channels and intensity == "dtype":
        return colours.astype(np.uint8, copy=False)
    exact = np.float32 if pixels.dtype.itemsize < 4 else np.float64
    converted: Pixels = colours.astype(exact)
    if colours.shape[2] < channels:
        converted = np.repeat(converted, channels, axis=2)
    elif colours.shape[2] > channels:
        converted = converted @ LUMINOSITY[:, None]
    if intensity == "image":
        return _to_bytes(converted, converted.min(), converted.max())
    return _to_bytes(converted, np.float32(0), np.float32(_top(pixels)))


def _to_bytes(values: npt.NDArray[Any], low: np.floating, high: np.floating) -> Bytes:
    scale = 255 / (float(high) - float(low)) if high > low else 0.0
    return np.asarray(np.rint((values - low) * values.dtype.type(scale)), dtype=np.uint8)


def to_mask_values(path: Path, pixels: Pixels) -> npt.NDArray[np.unsignedinteger]:
    """Return the values [height, width] of a mask as uint8 or uint16.

    Raises UserError (65) where colour channels differ, where transparency hides a value, or where a value
    is no whole number in 0..65535.
    """
    grey = pixels[:, :, 0]
    fault = ""
    if pixels.shape[2] >= 3 and not (pixels[:, :, 1:3] == grey[:, :, None]).all():
        fault = "has colours; save the mask as grey or with a palette, one value per class"
    elif pixels.shape[2] in (2, 4) and grey[pixels[:, :, -1] != _top(pixels)].any():
        fault = "its transparent pixels are not 0; save the mask as grey without transparency"
    elif grey.dtype not in (np.uint8, np.uint16):
        unfit = grey[(grey < 0) | (grey > np.float64(HIGHEST_VALUE)) | (grey % 1 != 0)]
        if not unfit.size:
            return grey.astype(np.uint16)
        fault = f"holds {unfit[0]}; mask values are whole numbers from 0 to {HIGHEST_VALUE}"
    if fault:
        raise UserError(f"{path}: {fault}", EXIT_BAD_DATA)
    return grey


def _top(pixels: Pixels) -> float:
    return float(np.iinfo(pixels.dtype).max) if pixels.dtype.kind in "ui" else 1.0


def _decode_any(content: bytes, mask: bool) -> Pixels:
    if content.startswith((b"\x89PNG", b"\xff\xd8\xff")):
        pixels = _decode_png_or_jpeg(content, mask)
    elif content[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        pixels = _decode_tiff(content, mask)
    else:
        pointed = [cure for start, cure in POINTERS.items() if content.startswith(start)]
        raise _UnreadError(*pointed or ["is no PNG, JPEG or TIFF file; convert it to PNG or TIFF"])
    if pixels.shape[2] not in KINDS or pixels.dtype.kind not in TYPES:
        raise _UnreadError(f"holds {pixels.shape[2]} channels of {pixels.dtype}; save it as grey or RGB")
    return pixels


def _decode_png_or_jpeg(content: bytes, mask: bool) -> Pixels:
    image = Image.open(io.BytesIO(content), formats=["PNG", "JPEG"])
    _require_size(*image.size)
    if image.format != "PNG":
        if mask:
            raise _UnreadError("JPEG changes the values of a mask; save it as PNG or TIFF from its source")
        if image.mode not in ("L", "RGB"):
            raise _UnreadError(f"its colours are {image.mode}; save it as grey or RGB")
        return _oriented(np.asarray(image), image.getexif().get(ORIENTATION, 1))
    # Pillow decodes a file without its last chunk, and cuts 16-bit colour to 8 bit; both in silence.
    if PNG_END not in content:
        raise EOFError("the end of the PNG is missing")
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise _UnreadError(f"holds {frames} images; save the one that you mean as a file of its own")
    depth, colour_type = content[24:26]
    if image.mode == "P" and mask:
        pixels = np.asarray(image)
    elif image.has_transparency_data or (depth == 16 and colour_type != 0):
        pixels = imagecodecs.png_decode(content)
    else:
        pixels = np.asarray(image.convert({"1": "L", "P": "RGB"}.get(image.mode, image.mode)))
    if mask and colour_type == 0 and depth in (2, 4):  # Pillow spreads them over 0 to 255
        pixels = pixels // np.uint8(255 // (2**depth - 1))
    # Pillow looks for EXIF behind the pixels, and decodes them for that.
    tags = image.getexif() if b"eXIf" in content else {}
    return _oriented(pixels, tags.get(ORIENTATION, 1))


def _decode_tiff(content: bytes, mask: bool) -> Pixels:
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        page = file.pages.first
        _require_one_image(file)
        _require_read(page, mask)
        _require_size(page.imagewidth, page.imagelength)
        _require_size(page.tilewidth, page.tilelength)
        colours: Any = page.colormap
        orientation = page.tags.valueof("Orientation", 1)
    # libtiff stands damaged bytes, which other decoders of LZW do not.
    pixels = imagecodecs.tiff_decode(content, index=0)
    if pixels.ndim == 3 and page.planarconfig == PLANARCONFIG.SEPARATE:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.shape[:2] != (page.imagelength, page.imagewidth):
        raise _UnreadError(f"holds {pixels.shape} pixels; save it as one image of grey or RGB")
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8)
    if page.bitspersample < 8 and colours is None and not (mask and page.bitspersample > 1):
        pixels = pixels * np.uint8(255 // (2**page.bitspersample - 1))
    # tifffile and scikit-image write a mask of true and false as it is, and call its zeros white.
    if page.photometric == PHOTOMETRIC.MINISWHITE and (not mask or page.compression in FAX):
        pixels = pixels.dtype.type(2 ** max(8, page.bitspersample) - 1) - pixels
    if page.photometric == PHOTOMETRIC.PALETTE and not mask:
        # Colours have 16 bits, those of 8-bit files being multiples of 257; some software writes 8.
        pixels = np.moveaxis(colours[:, pixels], 0, -1) // (257 if colours.max() > 255 else 1)
        pixels = pixels.astype(np.uint8)
    return _oriented(pixels, orientation)


def _require_one_image(file: tifffile.TiffFile) -> None:
    """Raise _UnreadError unless all pages but the first show the same at a lower resolution."""
    first = file.pages.first
    pages: Any = file.pages
    planes = first.tags.get(METAMORPH_PLANES)
    several = first.imagedepth > 1 or bool(HIDDEN_PAGES.match(first.description))
    several = several or (planes is not None and planes.count > 1)
    # The list of pages of a damaged file may be a circle: it is not followed to its end.
    for index in range(1, MOST_PAGES):
        try:
            several = several or not pages[index].subfiletype & REDUCED
        except IndexError:
            break
    if several:
        raise _UnreadError("holds several pages or planes; save the one that you mean as a file of its own")


def _require_read(page: tifffile.TiffPage, mask: bool) -> None:
    """Raise _UnreadError, which says what to save instead, for kinds of TIFF that are not read."""
    compression = page.compression
    photometric = page.photometric
    subsampled = photometric == PHOTOMETRIC.YCBCR and compression != COMPRESSION.JPEG
    signed = photometric == PHOTOMETRIC.MINISWHITE and page.sampleformat != SAMPLEFORMAT.UINT
    predicted = page.predictor == 1 or compression in PREDICTED
    if compression not in COMPRESSIONS or not predicted:
        written = f"{_name(compression)} with predictor {page.predictor}"
        fault = f"its compression is {written}; save it with LZW or none"
    elif mask and not COMPRESSIONS[compression]:
        fault = f"its compression {_name(compression)} changes values; save the mask with LZW or none"
    elif photometric not in TIFF_CHANNELS or subsampled or signed:
        fault = f"its colours are {_name(photometric)}; save it as grey or RGB"
    elif not 0 <= page.samplesperpixel - TIFF_CHANNELS[photometric] <= (photometric != PHOTOMETRIC.PALETTE):
        channels = f"{page.samplesperpixel} channels of {_name(photometric)}"
        fault = f"holds {channels}; save the one that you mean as grey, or three as RGB"
    elif page.bitspersample not in SAMPLE_BITS:
        fault = f"its pixels have {page.bitspersample} bits; save it with 8 or 16"
    else:
        return
    raise _UnreadError(fault)


def _name(value: Any) -> str:  # noqa: ANN401
    return str(getattr(value, "name", value))


def _require_size(width: int, height: int) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise _UnreadError(f"{width} x {height} pixels exceed the limit of {limit}; cut it into tiles")


def _oriented(pixels: npt.NDArray[Any], orientation: int) -> Pixels:
    """Return pixels [height, width, channels] as orientation 1 to 8 of TIFF and EXIF shows them."""
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels[::-1] if orientation in (3, 4, 7, 8) else pixels


class Box(NamedTuple):
    """Position and size of the picture within the padded array, in pixels."""

    top: int
    left: int
    height: int
    width: int


def fitting_scale(height: int, width: int, target_height: int, target_width: int) -> float:
    """Return the pixels of the target for one of a picture that is brought to it as a whole."""
    return min(target_height / height, target_width / width)


def fitted_box(height: int, width: int, target_height: int, target_width: int) -> Box:
    """Return the largest box of the picture's aspect ratio, to a pixel, centred in the target."""
    scale = fitting_scale(height, width, target_height, target_width)
    box_height = min(target_height, max(1, round(height * scale)))
    box_width = min(target_width, max(1, round(width * scale)))
    return Box((target_height - box_height) // 2, (target_width - box_width) // 2, box_height, box_width)


def fit_image(image: Bytes, height: int, width: int, box: Box | None = None) -> Bytes:
    """Resize uint8 [h, w, channels] to [height, width, channels] by Lanczos: smooth, then shrink.

    The aspect ratio is kept: the picture is centred and padded with zeros. Another `box` may be given.
    """
    return _fit(image, height, width, Image.Resampling.LANCZOS, box)


def fit_mask(mask: Bytes, height: int, width: int, box: Box | None = None) -> Bytes:
    """Resize uint8 [h, w] to [height, width] by nearest neighbour, so that no new value appears."""
    return _fit(mask[:, :, None], height, width, Image.Resampling.NEAREST, box)[:, :, 0]


def _fit(pixels: Bytes, height: int, width: int, resampling: Image.Resampling, box: Box | None) -> Bytes:
    channels = pixels.shape[2]
    box = box or fitted_box(pixels.shape[0], pixels.shape[1], height, width)
    if pixels.shape[:2] != (box.height, box.width):
        picture = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
        resized = picture.resize((box.width, box.height), resampling)
        pixels = np.asarray(resized).reshape(box.height, box.width, channels)
    if pixels.shape[:2] == (height, width):
        return pixels
    padded = np.zeros((height, width, channels), dtype=np.uint8)
    padded[box.top : box.top + box.height, box.left : box.left + box.width] = pixels
    return padded


def packed_width(width: int) -> int:
    """Return the bytes of a row of so many pixels of a mask, a bit for each."""
    return -(-width // 8)
