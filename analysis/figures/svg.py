"""Panels as files, and as parts of a web page that restyles them.

In the page each colour is a variable of its style sheet, such as `--ink`: `style.CSS_VARIABLES`.
"""

import io
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.figures.frame import PANEL_WIDTH_PX, TITLES, Panel, framed
from analysis.figures.style import CSS_VARIABLES, FONT_NAME, STYLE, Colour
from analysis.text import clean

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
GROUP, USE, DEFINITIONS, TITLE = (f"{{{SVG}}}{tag}" for tag in ("g", "use", "defs", "title"))
MOST_COLUMNS = 2
# Id of the texts that are read across lines.
HALO = "halo"
VARIABLES = {colour: f"var(--{name})" for colour, name in CSS_VARIABLES.items()}
COLOUR = re.compile("|".join(VARIABLES))
FONT = re.compile(rf"'{FONT_NAME}'(, [^;]*)?")
PAGE_FONT = "system-ui, sans-serif"
REFERENCE = re.compile(r"(?<=#)[^)]+")
DECIMALS = re.compile(r"-?\d+\.\d+")
# Of a pixel: not to be seen, enlarged ten times neither.
DECIMAL_DIGITS = 2
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
MEASURES = ("d", "x", "y", "transform", "style")


@dataclass(frozen=True)
class DrawnFigure:
    """A figure: its name, its caption, the content of its file, and each panel as an `svg` of a web page.

    A unit of an `svg` is a pixel; it has its own width and height. It is of our own making, not escaped.
    """

    name: str
    caption: str
    svg: bytes
    panels: tuple[str, ...]


def picture(panels: Sequence[Panel], name: str, caption: str, alternative: str) -> DrawnFigure:
    """Return panels as a file, two in a row, and as parts of a page; equal panels always give equal bytes.

    Screen readers say `alternative` for the first panel, and the titles of the others.
    """
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box is drawn instead
        placed: list[tuple[Figure, int, int]] = []
        top = 0
        for start in range(0, len(panels), MOST_COLUMNS):
            row = panels[start : start + MOST_COLUMNS]
            figures = [framed(panel, max(each.text_rows for each in row)) for panel in row]
            placed += [(figure, column * PANEL_WIDTH_PX, top) for column, figure in enumerate(figures)]
            top += max(int(figure.bbox.height) for figure in figures)
        placed[0][0].set_label(alternative)
        size = (PANEL_WIDTH_PX * min(len(panels), MOST_COLUMNS), top)
        drawn = [_svg(figure) for figure, *_ in placed]
        svg = _svg_file(drawn, placed, size)
        inline = [
            inline_svg(root, f"figure-{name}-{number}", figure)
            for number, (root, (figure, *_)) in enumerate(zip(drawn, placed, strict=True), start=1)
        ]
    return DrawnFigure(name, clean(caption), svg, tuple(inline))


def _svg_file(
    drawn: Sequence[Element], placed: Sequence[tuple[Figure, int, int]], size: tuple[int, int]
) -> bytes:
    """Return one SVG of all panels, on white; its text is text, in the font of matplotlib or the viewer's."""
    width, height = size
    whole = Element(
        f"{{{SVG}}}svg", width=f"{width}pt", height=f"{height}pt", viewBox=f"0 0 {width} {height}"
    )
    ElementTree.SubElement(whole, f"{{{SVG}}}rect", width="100%", height="100%", fill=Colour.PAPER)
    for root, (_, left, top) in zip(drawn, placed, strict=True):
        part = ElementTree.SubElement(whole, GROUP, transform=f"translate({left} {top})")
        part.extend(root)
    return ElementTree.tostring(whole)


def inline_svg(root: Element, name: str, figure: Figure) -> str:
    """Return a drawn figure as an `svg` element for a web page; screen readers say the figure's label.

    One unit of it is one pixel of the page. It takes its colours and its type from the page. All ids start
    with `name`, so that several figures can share a page.
    """
    styles, *_ = root.iter(DEFINITIONS)  # that hold for the whole page
    root.remove(styles)
    values = [value for element in root.iter() for value in element.attrib.values() if "#" in value]
    referred = dict.fromkeys(found for value in values for found in REFERENCE.findall(value))
    ids = {old: f"{name}-{number}" for number, old in enumerate(referred, start=1)}
    for element in root.iter():
        kept = {key: _restyled(key, value, ids) for key, value in element.attrib.items()}
        element.attrib = {key.removeprefix(f"{{{XLINK}}}"): value for key, value in kept.items() if value}
    root.attrib |= {"width": f"{figure.bbox.width:g}", "height": f"{figure.bbox.height:g}", "role": "img"}
    root.attrib |= {"aria-label": str(figure.get_label()), "id": name, "stroke-linejoin": "round"}
    return ElementTree.tostring(root, encoding="unicode")


def _restyled(key: str, value: str, ids: dict[str, str]) -> str:
    """Return the value of an attribute as the page needs it; empty where it needs none."""
    if key == "id":
        return ids.get(value, "")
    value = COLOUR.sub(lambda match: VARIABLES[match[0]], value)
    if key in MEASURES:
        value = DECIMALS.sub(lambda match: f"{round(float(match[0]), DECIMAL_DIGITS) + 0.0:.10g}", value)
    if key == "style":
        return FONT.sub(PAGE_FONT, value).replace(": ", ":").replace("; ", ";")
    return REFERENCE.sub(lambda match: ids.get(match[0], match[0]), value)


def _svg(figure: Figure) -> Element:
    """Return the figure as a transparent SVG, whose text is text, with titles of its marks."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    for text in figure.findobj(Text):
        if text.get_path_effects():  # outlines, which would make paths of texts
            text.set_path_effects([])
            text.set_gid(HALO)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata=NO_METADATA, transparent=True)
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314 (matplotlib has just written it)
    for group in root.iter():
        texts = group.get("id", "").partition(TITLES)[2]
        if texts:
            del group.attrib["id"]
            _write_titles(group, json.loads(texts))
        elif group.get("id") == HALO:
            group.attrib = {"paint-order": "stroke", "stroke": Colour.PAPER, "stroke-width": "3"}
    return root


def _write_titles(group: Element, titles: Sequence[str]) -> None:
    """Title every mark; where some were not drawn, since they lie outside, rather none than a wrong one."""
    marks = [group] if len(titles) == 1 else [mark for mark in group.iter(USE) if mark is not group]
    for mark, title in zip(marks, titles, strict=False) if len(marks) == len(titles) else ():
        element = Element(TITLE)
        element.text = title
        mark.insert(0, element)
