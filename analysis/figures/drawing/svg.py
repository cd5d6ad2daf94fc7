"""Figures as files, and as parts of a web page that restyles them.

`inline_svg` replaces the colours of the charts by variables of the page's style sheet:

  --ink      text                     --native   native DDP
  --muted    axes, guides, captions   --horovod  Horovod
  --grid     grid lines               --horovodtext  texts in the colour of Horovod
  --paper    edges of marks, halos of labels
  --lightning --accelerate --acceleratetext              the frameworks that wrap DDP
  --indigo --cyan --wine --sand --green --cream --grey   parts of a stacked bar
  --ondark --onlight                                     numbers inside a part
"""

import io
import re
import warnings
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.figures.drawing.compact import compact
from analysis.figures.drawing.style import (
    ACCELERATE,
    ACCELERATE_TEXT,
    GRID,
    HOROVOD,
    HOROVOD_TEXT,
    INK,
    LIGHTNING,
    MUTED,
    NATIVE,
    ON_DARK,
    ON_LIGHT,
    PALETTE,
    PAPER,
    STYLE,
)
from analysis.figures.drawing.titles import SVG, write_titles

VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    NATIVE: "--native",
    HOROVOD: "--horovod",
    HOROVOD_TEXT: "--horovodtext",
    LIGHTNING: "--lightning",
    ACCELERATE: "--accelerate",
    ACCELERATE_TEXT: "--acceleratetext",
    ON_DARK: "--ondark",
    ON_LIGHT: "--onlight",
    **{colour: f"--{name}" for name, (colour, _) in PALETTE.items()},
}
# Id of the texts that are read across lines.
HALO = "halo"
# An SVG has a unit of its own.
PNG_DOTS_PER_INCH = 150
XLINK = "http://www.w3.org/1999/xlink"
COLOUR = re.compile("|".join(VARIABLES))
FONT = re.compile(r"'DejaVu Sans'(, [^;]*)?")
PAGE_FONT = "system-ui, sans-serif"


def image(figure: Figure, file_format: str) -> bytes:
    """Return the figure as a file's content, "svg" or "png"; the same figure always gives the same bytes."""
    if file_format == "png":
        return _saved(figure, "png")
    root = _svg(figure, "path")
    return ElementTree.tostring(root, encoding="unicode").encode()


def inline_svg(figure: Figure, name: str) -> str:
    """Return the figure as an `svg` element for a web page; screen readers say the figure's label.

    One unit of it is one pixel of the page. It is transparent, and takes its colours from the page (module
    text). All ids start with `name`, so that several figures can share a page. Text stays text, in the page's
    own type, and is escaped. What does not show is left out.
    """
    _mark_halos(figure)
    root = _svg(figure, "none", transparent=True)
    _drop(root, f"{{{SVG}}}metadata")
    _drop(root, f"{{{SVG}}}style")
    _write_halos(root)
    for element in root.iter():
        _localise(element)
    compact(root, name)
    root.attrib |= {size: root.attrib[size].removesuffix("pt") for size in ("width", "height")}
    root.attrib |= {
        "role": "img",
        "aria-label": str(figure.get_label()) or name,
        "id": name,
        "stroke-linejoin": "round",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _svg(figure: Figure, fonttype: str, *, transparent: bool = False) -> ElementTree.Element:
    """Return the figure as SVG with titles of its marks; `fonttype` is "path", or "none" for text as text."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    with rc_context({"svg.fonttype": fonttype}):
        drawn = _saved(figure, "svg", transparent=transparent)
    root = ElementTree.fromstring(drawn)  # noqa: S314 (matplotlib has just written it)
    write_titles(root)
    return root


def _saved(figure: Figure, file_format: str, *, transparent: bool = False) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {}
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box is drawn instead
        figure.savefig(
            buffer,
            format=file_format,
            dpi=PNG_DOTS_PER_INCH,
            metadata=metadata,
            facecolor="none" if transparent else "white",
            transparent=transparent,
        )
    return buffer.getvalue()


def _mark_halos(figure: Figure) -> None:
    """Replace the outlines of texts, which make paths of them, by ids for `_write_halos`."""
    for text in figure.findobj(Text):
        if text.get_path_effects():
            text.set_path_effects([])
            text.set_gid(HALO)


def _write_halos(root: ElementTree.Element) -> None:
    for group in [element for element in root.iter() if element.get("id") == HALO]:
        del group.attrib["id"]
        group.attrib |= {"paint-order": "stroke", "stroke": PAPER, "stroke-width": "3"}


def _drop(root: ElementTree.Element, tag: str) -> None:
    for parent in list(root.iter()):
        for child in parent.findall(tag):
            parent.remove(child)


def _localise(element: ElementTree.Element) -> None:
    """Replace colours and type in every attribute of an element, and references by those of a page."""
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in attributes.items():
        element.set(key.removeprefix(f"{{{XLINK}}}"), _restyled(value))


def _restyled(value: str) -> str:
    return FONT.sub(PAGE_FONT, COLOUR.sub(lambda match: f"var({VARIABLES[match[0]]})", value))
