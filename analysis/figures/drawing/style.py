"""Colours, markers, line styles and type: one colour and one marker per framework in every chart.

Lengths are pixels of a web page: one unit of matplotlib's, a point, is drawn as one of them.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import FT2Font

from analysis.text import printable
from unet_scaling.study.config import Framework

INK = "#1a1a1a"
MUTED = "#666666"
GRID = "#ececec"
PAPER = "#ffffff"
NATIVE = "#004488"
HOROVOD = "#e07b00"
LIGHTNING = "#a3246b"
ACCELERATE = "#3f9f6f"
# The same, dark enough to be read as text on white.
HOROVOD_TEXT = "#b05a00"
ACCELERATE_TEXT = "#2b7a52"

LineStyle = Literal["-"] | tuple[float, tuple[float, ...]]
LINE_STYLES: tuple[LineStyle, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
DASHED: LineStyle = (0, (4, 3))
DOTTED: LineStyle = (0, (1, 2.2))
# The type scale: texts and ticks, names of axes, names of panels. The page has the same sizes.
TEXT_PX = 12
AXIS_TITLE_PX = 13
TITLE_PX = 14
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


FRAMEWORK_STYLES: dict[Framework, FrameworkStyle] = {
    "pytorch_native": FrameworkStyle(NATIVE, NATIVE, "o", 8.5),
    "horovod": FrameworkStyle(HOROVOD, HOROVOD_TEXT, "s", 7),
    "lightning": FrameworkStyle(LIGHTNING, LIGHTNING, "^", 8.5),
    "accelerate": FrameworkStyle(ACCELERATE, ACCELERATE_TEXT, "D", 6.5),
}

# Colours of numbers inside a bar. They differ from INK and PAPER, which a dark page exchanges.
ON_DARK = "#fefefe"
ON_LIGHT = "#1a1a1b"
# Colour and number colour of the parts of a stacked bar, bottom first: dark and light alternate, so that
# neighbours differ in grey as well (Paul Tol's muted scheme).
PALETTE = {
    "indigo": ("#332288", ON_DARK),
    "cyan": ("#88ccee", ON_LIGHT),
    "wine": ("#882255", ON_DARK),
    "sand": ("#ddcc77", ON_LIGHT),
    "green": ("#117733", ON_DARK),
    "cream": ("#f0f0d0", ON_LIGHT),
    "grey": ("#777777", ON_DARK),
}


@dataclass(frozen=True)
class PartStyle:
    """Name and colours of one part of a stacked bar."""

    name: str
    colour: str
    number_colour: str


def part_styles(**names: str) -> dict[str, PartStyle]:
    """Return the style of each part, bottom first: column of a table -> name in the legend."""
    colours = zip(names.items(), PALETTE.values(), strict=False)
    return {column: PartStyle(name, *pair) for (column, name), pair in colours}


STYLE: dict[Any, Any] = {
    "font.family": FONT_NAME,
    "font.size": TEXT_PX,
    "axes.labelsize": AXIS_TITLE_PX,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 1,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 4,
    "ytick.major.size": 4,
    "svg.hashsalt": "unet-scaling",  # else the ids of an SVG are random
}


def text_width(text: str, *, px: float = TEXT_PX, bold: bool = False) -> float:
    """Return the width of a printable text in pixels, as matplotlib draws it."""
    font = _font(bold=bold)
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


def _font(*, bold: bool) -> FT2Font:
    # matplotlib caches it, and forgets it in a forked process, which must not share its open file.
    return get_font(findfont(FontProperties(family=FONT_NAME, weight="bold" if bold else "normal")))
