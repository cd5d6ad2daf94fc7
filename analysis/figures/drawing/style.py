"""Colours, markers, line styles and type: one colour and one marker per framework in every chart."""

from dataclasses import dataclass
from typing import Any, Literal

from analysis.text import printable
from unet_scaling.study.config import Framework

INK = "#1a1a1a"
MUTED = "#666666"
GRID = "#ececec"
PAPER = "#ffffff"
NATIVE = "#004488"
HOROVOD = "#e07b00"

LineStyle = Literal["-"] | tuple[float, tuple[float, ...]]
LINE_STYLES: tuple[LineStyle, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
DASHED: LineStyle = (0, (4, 3))
DOTTED: LineStyle = (0, (1, 2.2))
TEXT_POINTS = 9.5
SMALL_POINTS = 8.5
# The mean width of a character of DejaVu Sans in running text.
CHARACTER_EM = 0.59
POINTS_PER_INCH = 72


@dataclass(frozen=True)
class FrameworkStyle:
    """Colour and marker of a framework: dark and round against light and square differ in grey as well."""

    colour: str
    marker: str
    marker_points: float


FRAMEWORK_STYLES: dict[Framework, FrameworkStyle] = {
    "pytorch_native": FrameworkStyle(NATIVE, "o", 6.8),
    "horovod": FrameworkStyle(HOROVOD, "s", 5.4),
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
    "font.family": "DejaVu Sans",
    "font.size": TEXT_POINTS,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "svg.hashsalt": "unet-scaling",  # else the ids of an SVG are random
    "svg.fonttype": "path",
}


def width_inches(text: str, points: float = TEXT_POINTS) -> float:
    """Return about how wide a text becomes."""
    return len(text) * CHARACTER_EM * points / POINTS_PER_INCH


def shortened(text: str, inches: float, points: float = TEXT_POINTS) -> str:
    """Return the text, printable, and cut to this width; an ellipsis marks the cut."""
    text = printable(text)
    most = int(inches / width_inches("m", points))
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"
