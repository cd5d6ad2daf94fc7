"""Images as people have them: encodings of PNG, TIFF and JPEG, each with its pixels or why it is refused.

The pixels are those that were encoded, so that no reader judges another; JPEG's are Pillow's.
"""

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile
from PIL import Image, ImageOps

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(7)
GREY = RANDOM.integers(0, 256, (18, 21)).astype(np.uint8)
DEEP = RANDOM.integers(0, 65536, (18, 21)).astype(np.uint16)
COLOUR = RANDOM.integers(0, 256, (18, 21, 3)).astype(np.uint8)
DEEP_COLOUR = RANDOM.integers(0, 65536, (18, 21, 3)).astype(np.uint16)
BITS = GREY > 127
BINARY = np.where(BITS, np.uint8(255), np.uint8(0))
SMOOTH = np.add.outer(np.arange(18) * 5, np.arange(21) * 4).astype(np.uint8)
PALETTE = np.random.default_rng(8).integers(0, 256, (3, 256)).astype(np.uint16)
# First row and column of each pass of an interlaced PNG, and the steps between them.
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
SIZE = {256: [21], 257: [18], 277: [1], 278: [18]}


@dataclass(frozen=True)
class Encoding:
    """A file, and its pixels as image and as mask, or what its refusal names; None: not looked at."""

    name: str
    content: bytes
    image: Array | str | None
    mask: Array | str | None = None

    @property
    def suffix(self) -> str:
        return f".{self.name.split()[0]}"


def tif(pixels: Array, **options: object) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, **{"photometric": "minisblack"} | options)  # type: ignore[arg-type]
    return file.getvalue()


def pil(picture: Array | Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(file, kind, **options)
    return file.getvalue()


def raw_tif(tags: dict[int, Sequence[int]], data: bytes, order: str = "<") -> bytes:
    """A TIFF of one strip, written from its specification: for what no library writes."""
    tags = dict(sorted((SIZE | {259: [1], 262: [1], 273: [0], 279: [len(data)]} | tags).items()))
    start = 8 + 2 + 12 * len(tags) + 4
    more = b""
    rows = {}
    for tag, values in tags.items():
        packed = struct.pack(f"{order}{len(values)}I", *values)
        if len(values) > 1:
            packed, more = struct.pack(f"{order}I", start + len(more)), more + packed
        rows[tag] = struct.pack(f"{order}HHI", tag, 4, len(values)) + packed
    rows[273] = struct.pack(f"{order}HHII", 273, 4, 1, start + len(more))
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(tags))
    return head + b"".join(rows.values()) + bytes(4) + more + data


def packed_bits(values: Array, bits: int) -> list[bytes]:
    """Rows of so many bits a value, the highest first, filled up to whole bytes."""
    each = (values.reshape(len(values), -1, 1).astype(np.int64) >> np.arange(bits - 1, -1, -1)) & 1
    return [row.tobytes() for row in np.packbits(each.reshape(len(values), -1).astype(np.uint8), axis=1)]


def png(values: Array, bits: int, kind: int, *chunks: tuple[bytes, bytes], interlaced: bool = False) -> bytes:
    """A PNG written from its specification: kind 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA."""
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, kind, 0, 0, interlaced)
    passes = [values[top::down, left::right] for top, left, down, right in ADAM7] if interlaced else [values]
    rows = [b"\0" + row for part in passes for row in packed_bits(part, bits)]
    every = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in every
    )


def below(limit: int, *channels: int) -> Array:
    dtype = np.uint8 if limit <= 2**8 else np.uint16
    return np.random.default_rng(limit).integers(0, limit, (18, 21, *channels)).astype(dtype)


def alpha(colours: Array, value: int) -> Array:
    return np.dstack([colours, np.full(colours.shape[:2], value, colours.dtype)])


def pngs() -> Iterator[Encoding]:
    for bits in (1, 2, 4, 8, 16):
        values = below(2**bits)
        shown = values if bits == 16 else values * np.uint8(255 // (2**bits - 1))
        stored = values if bits > 1 else shown
        yield Encoding(f"png grey {bits} bit", png(values, bits, 0), shown, stored)
        level = (b"tRNS", struct.pack(">H", int(values[0, 0])))
        yield Encoding(f"png grey {bits} bit with a transparent level", png(values, bits, 0, level), "alpha")
    for bits in (8, 16):
        top = 2**bits - 1
        colours = below(top + 1, 3)
        grey = below(top + 1, 1)
        yield Encoding(f"png RGB {bits} bit", png(colours, bits, 2), colours, "has colours")
        for name, number, pixels in (("grey", 4, grey), ("RGB", 6, colours)):
            for what, value in (("opaque", top), ("half", top // 2)):
                content = png(alpha(pixels, value), bits, number)
                seen = pixels if what == "opaque" else "alpha"
                hides = "transparent" if (name, what) == ("grey", "half") else None
                yield Encoding(f"png {name} and {what} alpha {bits} bit", content, seen, hides)
    for bits in (1, 2, 4, 8):
        index = below(2**bits)
        colours = PALETTE.T[: 2**bits].astype(np.uint8)
        content = png(index, bits, 3, (b"PLTE", colours.tobytes()))
        yield Encoding(f"png palette {bits} bit", content, colours[index], index)
    hidden = png(index, 8, 3, (b"PLTE", colours.tobytes()), (b"tRNS", b"\0"))
    yield Encoding("png palette with a transparent colour", hidden, "alpha", index)
    greys = np.repeat(np.arange(255, -1, -1, dtype=np.uint8), 3)
    yield Encoding("png palette of greys", png(GREY, 8, 3, (b"PLTE", greys.tobytes())), None, GREY)
    gamma = [(b"gAMA", struct.pack(">I", 100000)), (b"iCCP", b"x\0\0" + zlib.compress(b"no profile"))]
    yield Encoding("png with gamma", png(GREY, 8, 0, gamma[0]), GREY)
    yield Encoding("png with a profile", png(GREY, 8, 0, gamma[1]), GREY)
    for bits, kind, channels in ((8, 0, ()), (16, 0, ()), (8, 2, (3,)), (16, 2, (3,))):
        values = below(2**bits, *channels)
        content = png(values, bits, kind, interlaced=True)
        yield Encoding(f"png interlaced {bits} bit {channels}", content, values)
    turned = Image.Exif()
    turned[274] = 6
    yield Encoding("png orientation 6", pil(GREY, "PNG", exif=turned), np.rot90(GREY, -1))
    frames = [Image.fromarray(GREY), Image.fromarray(255 - GREY)]
    yield Encoding("png animated", pil(frames[0], "PNG", save_all=True, append_images=frames[1:]), "2 images")


def tiffs_of_compressions() -> Iterator[Encoding]:
    for compression in (None, "packbits", "lzw", "zlib", "adobe_deflate", "zstd", "lzma"):
        for predictor in (False, True) if compression not in (None, "packbits") else (False,):
            options = {"compression": compression, "predictor": predictor}
            name = f"tif {compression} predictor {predictor}"
            yield Encoding(f"{name} grey 8 bit", tif(GREY, **options), GREY, GREY)
            yield Encoding(f"{name} grey 16 bit", tif(DEEP, **options), DEEP, DEEP)
            yield Encoding(f"{name} RGB", tif(COLOUR, **options, photometric="rgb"), COLOUR, "has colours")
    for scheme in ("tiff_ccitt", "group3", "group4"):
        yield Encoding(
            f"tif {scheme}", pil(Image.fromarray(BITS), "TIFF", compression=scheme), BINARY, BINARY
        )
    for name, pixels in (("grey", SMOOTH), ("RGB", np.dstack([SMOOTH] * 3))):
        content = pil(pixels, "TIFF", compression="jpeg")
        shown = np.asarray(Image.open(io.BytesIO(content)))
        yield Encoding(f"tif JPEG {name}", content, shown, "changes values")
    for scheme in ("webp", "lerc"):
        content = tif(COLOUR, compression=scheme, photometric="rgb")
        yield Encoding(f"tif {scheme}", content, COLOUR, "changes values")
    yield Encoding("tif JPEG 2000", tif(GREY, compression="jpeg2000"), "JPEG2000", "JPEG2000")
    yield Encoding(
        "tif packbits with predictor", tif(GREY, compression="packbits", predictor=True), "predictor"
    )


def tiffs_of_layouts() -> Iterator[Encoding]:
    planes = np.moveaxis(COLOUR, -1, 0).copy()
    separate = {"photometric": "rgb", "planarconfig": "separate"}
    yield Encoding("tif tiles", tif(DEEP, tile=(16, 16), compression="lzw", predictor=True), DEEP, DEEP)
    yield Encoding("tif many strips", tif(DEEP, rowsperstrip=5), DEEP, DEEP)
    yield Encoding("tif big-endian", tif(DEEP, byteorder=">"), DEEP, DEEP)
    deflated = tif(DEEP, byteorder=">", compression="zlib", predictor=True)
    yield Encoding("tif big-endian with predictor", deflated, DEEP, DEEP)
    yield Encoding("tif BigTIFF", tif(DEEP, bigtiff=True), DEEP, DEEP)
    yield Encoding("tif planes", tif(planes, **separate), COLOUR)
    for number in range(1, 9):
        turned = Image.Exif()
        turned[274] = number
        shown = ImageOps.exif_transpose(Image.open(io.BytesIO(pil(GREY, "PNG", exif=turned))))
        content = tif(GREY, extratags=[(274, "H", 1, number, True)])
        yield Encoding(f"tif orientation {number}", content, np.asarray(shown), np.asarray(shown))
    backwards = np.packbits(BITS, axis=1, bitorder="little").tobytes()
    yield Encoding("tif fill order 2", raw_tif({258: [1], 266: [2]}, backwards), BINARY)


def tiffs_of_pixels() -> Iterator[Encoding]:
    for bits in (1, 2, 4, 10, 12, 14):
        values = below(2**bits)
        shown = values * np.uint8(255 // (2**bits - 1)) if bits < 8 else values
        for order in "<>":
            content = raw_tif({258: [bits]}, b"".join(packed_bits(values, bits)), order)
            stored = values if bits > 1 else shown
            yield Encoding(f"tif {bits} bit {order}", content, shown, stored)
        white = raw_tif({258: [bits], 262: [0]}, b"".join(packed_bits(values, bits)))
        top = 255 if bits < 8 else 2**bits - 1
        yield Encoding(f"tif {bits} bit white is zero", white, top - shown, stored)
    yield Encoding("tif 6 bit", raw_tif({258: [6]}, b"".join(packed_bits(below(64), 6))), "6 bits")
    few = below(4)
    tags: dict[int, Sequence[int]] = {258: [2], 262: [3], 320: list(PALETTE[:, :4].ravel() * 257)}
    colours = PALETTE.T[:4].astype(np.uint8)[few]
    yield Encoding("tif palette 2 bit", raw_tif(tags, b"".join(packed_bits(few, 2))), colours, few)
    tags = {258: [1], 262: [3], 320: list(PALETTE[:, :2].ravel() * 257)}
    colours = PALETTE.T[:2].astype(np.uint8)[BITS.astype(int)]
    yield Encoding("tif palette 1 bit", raw_tif(tags, np.packbits(BITS, axis=1).tobytes()), colours, BITS)
    for kind in (np.int8, np.int16, np.int32, np.uint32, np.int64, np.uint64):
        fits = (GREY // 2).astype(kind)
        yield Encoding(f"tif {np.dtype(kind)}", tif(fits), fits, fits)
    for real in (np.float16, np.float32, np.float64):
        parts = (GREY / 7).astype(real)
        yield Encoding(f"tif {np.dtype(real)}", tif(parts), parts, "whole")
        yield Encoding(f"tif {np.dtype(real)} whole", tif(GREY.astype(real)), GREY.astype(real), GREY)
    deflated = tif((GREY / 7).astype(np.float32), compression="zlib", predictor=3)
    yield Encoding("tif float predictor", deflated, (GREY / 7).astype(np.float32))
    for name, value in (("NaN", np.nan), ("infinity", np.inf)):
        pixels = GREY.astype(np.float32)
        pixels[3, 4] = value
        yield Encoding(f"tif float with {name}", tif(pixels), "NaN or inf", "NaN or inf")
    yield Encoding("tif negative", tif(-1 - GREY.astype(np.int16)), -1 - GREY.astype(np.int16), "whole")
    yield Encoding(
        "tif too large", tif(GREY.astype(np.uint32) + 2**16), GREY.astype(np.uint32) + 2**16, "whole"
    )
    yield Encoding("tif complex", tif(GREY.astype(np.complex64)), "complex64")


def tiffs_of_colours() -> Iterator[Encoding]:
    yield Encoding("tif RGB 16 bit", tif(DEEP_COLOUR, photometric="rgb"), DEEP_COLOUR)
    yield Encoding("tif white is zero", tif(GREY, photometric="miniswhite"), 255 - GREY, GREY)
    yield Encoding("tif of true and false", tif(BITS, photometric="miniswhite"), 255 - BINARY, BINARY)
    colours = PALETTE.T.astype(np.uint8)[GREY]
    for name, factor in (("", 257), (" of 8 bits", 1)):
        content = tif(GREY, photometric="palette", colormap=PALETTE * np.uint16(factor))
        yield Encoding(f"tif palette{name}", content, colours, GREY)
    for name, kind in (("associated", "assocalpha"), ("unassociated", "unassalpha"), ("no", "unspecified")):
        options = {"photometric": "rgb", "extrasamples": [kind]}
        yield Encoding(f"tif opaque {name} alpha", tif(alpha(COLOUR, 255), **options), COLOUR)
        yield Encoding(f"tif half {name} alpha", tif(alpha(COLOUR, 99), **options), "alpha")
    two = np.dstack([GREY, GREY.T.reshape(GREY.shape)])
    options = {"planarconfig": "contig", "extrasamples": ["unspecified"]}
    yield Encoding("tif two channels", tif(two, **options), "alpha")
    options["extrasamples"] = ["unspecified"] * 2
    yield Encoding("tif three channels, not RGB", tif(COLOUR, **options), "3 channels of MINISBLACK")
    for mode, named in (("CMYK", "SEPARATED"), ("LAB", "CIELAB"), ("YCbCr", "YCBCR")):
        content = pil(Image.fromarray(COLOUR).convert(mode), "TIFF")
        yield Encoding(f"tif {mode}", content, f"its colours are {named}")
    for number in (4, 9, 10, 32803, 34892):
        yield Encoding(
            f"tif photometric {number}", raw_tif({258: [8], 262: [number]}, GREY.tobytes()), "colours"
        )


def tiffs_of_pages() -> Iterator[Encoding]:
    stack = np.stack([GREY] * 3)
    yield Encoding("tif three pages", tif(stack), "several pages", "several pages")
    yield Encoding("tif ImageJ hyperstack", tif(stack, imagej=True), "several pages")
    hidden = tif(GREY, description="ImageJ=1.54f\nimages=3\nslices=3\n", metadata=None)
    yield Encoding("tif ImageJ of one listed page", hidden + GREY.tobytes() * 2, "several pages")
    plain = tif(GREY, description="ImageJ=1.54f\nimages=1\n", metadata=None)
    yield Encoding("tif ImageJ of one image", plain, GREY, GREY)
    file = io.BytesIO()
    with tifffile.TiffWriter(file, shaped=True) as writer:
        writer.write(stack, photometric="minisblack", truncate=True)
    yield Encoding("tif of one listed page", file.getvalue(), "several pages")
    yield Encoding("tif OME", tif(GREY, ome=True), GREY)
    yield Encoding("tif OME stack", tif(stack, ome=True), "several pages")
    yield Encoding("tif depth", tif(stack, volumetric=True), "several pages")
    yield Encoding("tif STK", tif(GREY, extratags=[(33629, 5, 2, (1, 1, 2, 1), True)]), "several pages")
    for name, options in (("SubIFDs", {"subifds": 1}), ("further pages", {})):
        file = io.BytesIO()
        with tifffile.TiffWriter(file) as writer:
            writer.write(GREY, photometric="minisblack", metadata=None, **options)  # type: ignore[arg-type]
            writer.write(GREY[::2, ::2], photometric="minisblack", subfiletype=1, metadata=None)
        yield Encoding(f"tif pyramid in {name}", file.getvalue(), GREY, GREY)
    circle = bytearray(raw_tif({258: [8]}, GREY.tobytes()))
    entries = struct.unpack_from("<H", circle, 8)[0]
    struct.pack_into("<I", circle, 10 + 12 * entries, 8)
    yield Encoding("tif circle of pages", bytes(circle), None)


def jpegs() -> Iterator[Encoding]:
    smooth = np.dstack([SMOOTH, SMOOTH[::-1], SMOOTH[:, ::-1]])
    turned = Image.Exif()
    turned[274] = 8
    for name, pixels, options in (
        ("grey", SMOOTH, {}),
        ("RGB", smooth, {}),
        ("progressive", smooth, {"progressive": True}),
        ("subsampled", smooth, {"subsampling": 2}),
        ("orientation 8", smooth, {"exif": turned}),
    ):
        content = pil(pixels, "JPEG", **options)
        shown = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
        yield Encoding(f"jpg {name}", content, shown, "JPEG changes")
    yield Encoding("jpg CMYK", pil(Image.fromarray(COLOUR).convert("CMYK"), "JPEG"), "CMYK", "JPEG changes")
    yield Encoding("png in name, JPEG in content", content, shown, "JPEG changes")


def others() -> Iterator[Encoding]:
    yield Encoding("png of GIF content", pil(GREY, "GIF"), "no PNG, JPEG or TIFF", "no PNG, JPEG or TIFF")
    yield Encoding("png of text", b"this is no picture", "no PNG, JPEG or TIFF", "no PNG")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    yield Encoding("png pointer of git-lfs", pointer, "git lfs pull", "git lfs pull")
    yield Encoding("tif pointer of git-annex", b"/annex/objects/MD5E-s1--0.tif\n", "git annex get")
    whole = png(GREY, 8, 0)
    yield Encoding("png without its end", whole[:-12], "cut off", "cut off")
    for keep in (0.3, 0.6, 0.95):
        for name, content in (("png", whole), ("tif", tif(GREY)), ("jpg", pil(COLOUR, "JPEG"))):
            yield Encoding(f"{name} cut at {keep}", content[: int(len(content) * keep)], "cut off")


TIFFS = (tiffs_of_compressions, tiffs_of_layouts, tiffs_of_pixels, tiffs_of_colours, tiffs_of_pages)
ENCODINGS = [encoding for encodings in (pngs, *TIFFS, jpegs, others) for encoding in encodings()]
