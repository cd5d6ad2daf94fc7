"""Figures as files, and as parts of a web page that restyles them.

`inline_svg` replaces the colours of the charts by variables of the page's style sheet, each with
the colour of print as its default:

  --ink      text                     --native   native DDP
  --muted    axes, guides, captions   --horovod  Horovod
  --grid     grid lines               --paper    edges of marks, halos of labels
  --indigo --cyan --wine --sand --green --cream --grey   parts of a stacked bar
  --ondark --onlight                                     numbers inside a part
"""

import io
import re
import warnings
from typing import Any
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.figure import Figure

from analysis.figures.drawing.style import (
    GRID,
    HOROVOD,
    INK,
    MUTED,
    NATIVE,
    ON_DARK,
    ON_LIGHT,
    PALETTE,
    PAPER,
    STYLE,
)

VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PAPER: "--paper",
    NATIVE: "--native",
    HOROVOD: "--horovod",
    ON_DARK: "--ondark",
    ON_LIGHT: "--onlight",
    **{colour: f"--{name}" for name, (colour, _) in PALETTE.items()},
}
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
COLOUR = re.compile("|".join(VARIABLES))
REFERENCE = re.compile(r"url\(#([^)]*)\)")
FONT = re.compile(r"'DejaVu Sans'(, [^;]*)?")
PAGE_FONT = "system-ui, sans-serif"


def image(figure: Figure, file_format: str) -> bytes:
    """Return the figure as a file's content, "svg" or "png"; the same figure always gives the same bytes."""
    return _saved(figure, file_format, transparent=False, style={})


def inline_svg(figure: Figure, name: str) -> str:
    """Return the figure as an `svg` element for a web page; screen readers say the figure's label.

    It scales to its container, is transparent, and takes its colours from the page (module text). All
    ids start with `name`, so that several figures can share a page. Text stays text, in the page's
    own type, and is escaped.
    """
    drawn = _saved(figure, "svg", transparent=True, style={"svg.fonttype": "none"})
    root = ElementTree.fromstring(drawn)  # noqa: S314 (matplotlib has just written it)
    _drop(root, f"{{{SVG}}}metadata")
    _drop(root, f"{{{SVG}}}style")
    for element in root.iter():
        _localise(element, name)
    for size in ("width", "height"):
        del root.attrib[size]
    root.attrib |= {
        "role": "img",
        "aria-label": str(figure.get_label()) or name,
        "id": name,
        "stroke-linejoin": "round",
    }
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _saved(figure: Figure, file_format: str, *, transparent: bool, style: dict[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {}
    with rc_context({**STYLE, **style}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box is drawn instead
        figure.savefig(
            buffer, format=file_format, metadata=metadata, facecolor="white", transparent=transparent
        )
    return buffer.getvalue()


def _drop(root: ElementTree.Element, tag: str) -> None:
    for parent in list(root.iter()):
        for child in parent.findall(tag):
            parent.remove(child)


def _localise(element: ElementTree.Element, name: str) -> None:
    """Prefix ids and references, and replace colours and type, in every attribute of an element."""
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key in (f"{{{XLINK}}}href", "href"):
            key = "href"
            value = f"#{name}-{value.removeprefix('#')}"
        else:
            value = REFERENCE.sub(rf"url(#{name}-\1)", value)
            value = COLOUR.sub(lambda match: f"var({VARIABLES[match[0]]}, {match[0]})", value)
            value = FONT.sub(PAGE_FONT, value)
        element.set(key, value)
