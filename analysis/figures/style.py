"""Colours, markers, line styles and type: one colour and one marker per framework in every chart.

Lengths are pixels of a web page: one unit of matplotlib's, a point, is drawn as one of them.
"""

import warnings
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from typing import Any, Literal

from matplotlib.font_manager import FontProperties, findfont, get_font

from analysis.text import printable
from unet_scaling.study.frameworks import FRAMEWORK_ROWS


class Colour(StrEnum):
    """The colours of all charts, besides those of frameworks; INK is the variable `--ink` of a page."""

    INK = "#1a1a1a"
    MUTED = "#666666"
    GRID = "#ececec"
    PAPER = "#ffffff"
    # Parts of a stacked bar (Paul Tol's muted scheme), and numbers in them: those differ from INK and PAPER,
    # which a dark page exchanges.
    INDIGO = "#332288"
    CYAN = "#88ccee"
    WINE = "#882255"
    SAND = "#ddcc77"
    GREEN = "#117733"
    CREAM = "#f0f0d0"
    ONDARK = "#fefefe"
    ONLIGHT = "#1a1a1b"


# Colours of the parts of a stacked bar, bottom first, and of their numbers: dark and light alternate, so that
# neighbours differ in grey, too.
PART_COLOURS = (
    Colour.INDIGO, Colour.CYAN, Colour.WINE, Colour.SAND, Colour.GREEN, Colour.CREAM,
)  # fmt: skip
PALETTE = tuple(zip(PART_COLOURS, cycle((Colour.ONDARK, Colour.ONLIGHT)), strict=False))
LineStyle = Literal["-"] | tuple[float, tuple[float, ...]]
# Of the settings of knobs of a framework.
LINE_STYLES: tuple[LineStyle, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
DASHED: LineStyle = (0, (4, 3))
# The type scale: texts and ticks, names of axes, names of panels. The page has the same sizes.
TEXT_PX = 12
AXIS_TITLE_PX = 13
TITLE_PX = 14
NATIVE_COLOUR = FRAMEWORK_ROWS["pytorch_native"].colour
PX_PER_INCH = 72
FONT_NAME = "DejaVu Sans"
# FT2Font measures in 64ths of a pixel.
SUBPIXELS = 64


@dataclass(frozen=True)
class FrameworkStyle:
    """Colours and marker of a framework: dark against light, each marker its own: not told by hue."""

    colour: str
    text_colour: str
    marker: str
    marker_px: float


# The size of each marker, so that all look equally large. `report.css` has a shape for each.
MARKER_PX = {"o": 8.5, "s": 7, "^": 8.5, "v": 8.5, "D": 6.5}
# Of the frameworks, and of curves in the order of a saliency map and in random order.
SERIES_STYLES: dict[str, FrameworkStyle] = {
    "own": FrameworkStyle(NATIVE_COLOUR, NATIVE_COLOUR, "", 0),
    "random": FrameworkStyle(Colour.MUTED, Colour.MUTED, "", 0),
}
# The variable of the style sheet that each colour is on a page, such as `--ink` and `--horovod`.
CSS_VARIABLES = {colour.value: colour.name.lower() for colour in Colour}
for _name, _row in FRAMEWORK_ROWS.items():
    SERIES_STYLES[_name] = FrameworkStyle(_row.colour, _row.text_colour, _row.marker, MARKER_PX[_row.marker])
    CSS_VARIABLES |= {_row.text_colour: f"{_name}-text", _row.colour: _name}
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": FONT_NAME,
    "font.size": TEXT_PX,
    "axes.labelsize": AXIS_TITLE_PX,
    "text.color": Colour.INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.edgecolor": Colour.MUTED,
    "axes.labelcolor": Colour.INK,
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": Colour.GRID,
    "grid.linewidth": 1,
    "xtick.color": Colour.MUTED,
    "ytick.color": Colour.MUTED,
    "xtick.labelcolor": Colour.INK,
    "ytick.labelcolor": Colour.INK,
    "xtick.major.size": 4,
    "ytick.major.size": 4,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.handletextpad": 0.6,
    "legend.borderpad": 0.1,
    "legend.borderaxespad": 0,
    "legend.columnspacing": 1.4,
    "svg.hashsalt": "unet-scaling",  # else the ids of an SVG are random
    "svg.fonttype": "none",  # text, not shapes of letters
}


def text_width(text: str, *, px: float = TEXT_PX, bold: bool = False) -> float:
    """Return the width of a printable text in pixels, as matplotlib draws it."""
    # matplotlib caches the font, and forgets it in a forked process, which must not share its open file.
    font = get_font(findfont(FontProperties(family=FONT_NAME, weight="bold" if bold else "normal")))
    font.set_size(px, PX_PER_INCH)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box is drawn instead
        font.set_text(text)
    return font.get_width_height()[0] / SUBPIXELS


def shortened(text: str, width: float, *, px: float = TEXT_PX, bold: bool = False) -> str:
    """Return the text, printable, and cut to this many pixels; an ellipsis marks the cut."""
    text = printable(text)
    if text_width(text, px=px, bold=bold) <= width:
        return text
    kept = len(text)
    while kept > 1 and text_width(text[:kept] + "…", px=px, bold=bold) > width:
        kept -= 1
    return text[:kept] + "…"
