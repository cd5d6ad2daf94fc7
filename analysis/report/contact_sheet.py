"""The pictures of a gallery as one PNG, for papers and documentation."""

import base64
import io

from PIL import Image, ImageDraw, ImageFont

from analysis.report.view import Gallery, GalleryPicture

PICTURE_WIDTH_PIXELS = 264
GAP_PIXELS = 12
LINE_PIXELS = 18
TEXT_PIXELS = 12
_INK = (26, 26, 26)
_MUTED = (102, 102, 102)
_PAPER = (255, 255, 255)
# Above a row the name of its image, below each picture its title and its numbers.
LINES_OF_A_ROW = 4


def contact_sheet(gallery: Gallery) -> bytes:
    """Return a PNG with a row for each image; pixels are enlarged, not smoothed; a missing one is empty."""
    rows = [_row(name, pictures, gallery.width) for name, pictures in gallery.rows]
    sheet = Image.new("RGB", (rows[0].width, sum(row.height for row in rows)), _PAPER)
    top = 0
    for row in rows:
        sheet.paste(row, (0, top))
        top += row.height
    file = io.BytesIO()
    sheet.save(file, "png")
    return file.getvalue()


def _row(name: str, pictures: tuple[GalleryPicture, ...], columns: int) -> Image.Image:
    enlarged = [_enlarged(picture) for picture in pictures]
    height = max(each.height for each in enlarged)
    width = columns * (PICTURE_WIDTH_PIXELS + GAP_PIXELS) + GAP_PIXELS
    row = Image.new("RGB", (width, height + LINES_OF_A_ROW * LINE_PIXELS), _PAPER)
    _write(row, GAP_PIXELS, 0, name, _INK)
    for column, (picture, pixels) in enumerate(zip(pictures, enlarged, strict=True)):
        left = GAP_PIXELS + column * (PICTURE_WIDTH_PIXELS + GAP_PIXELS)
        row.paste(pixels, (left, LINE_PIXELS))
        below = LINE_PIXELS + height
        _write(row, left, below, picture.title, _INK)
        _write(row, left, below + LINE_PIXELS, picture.numbers, _MUTED)
    return row


def _enlarged(picture: GalleryPicture) -> Image.Image:
    """Return a picture as wide as its column; empty where there is none."""
    if not picture.source:
        return Image.new("RGB", (PICTURE_WIDTH_PIXELS, 1), _PAPER)
    content = base64.b64decode(picture.source.partition(",")[2])
    with Image.open(io.BytesIO(content)) as opened:
        height = round(opened.height * PICTURE_WIDTH_PIXELS / opened.width)
        return opened.convert("RGB").resize((PICTURE_WIDTH_PIXELS, height), Image.Resampling.NEAREST)


def _write(row: Image.Image, left: int, top: int, text: str, colour: tuple[int, int, int]) -> None:
    """Write a text of one line, cut where its column ends."""
    font = ImageFont.load_default(TEXT_PIXELS)
    draw = ImageDraw.Draw(row)
    while text and draw.textlength(text, font=font) > PICTURE_WIDTH_PIXELS:
        text = f"{text[:-4]}..."
    draw.text((left, top + 2), text, fill=colour, font=font)
