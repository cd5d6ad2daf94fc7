"""How charts look: one colour and marker per framework, everywhere, and the type and grid around them."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from unet_scaling.study.config import Framework

INK, MUTED, GRID, PAPER = "#1a1a1a", "#666666", "#ececec", "#ffffff"
NATIVE, HOROVOD = "#004488", "#e07b00"

LineStyle = Literal["-"] | tuple[float, tuple[float, ...]]
LINE_STYLES: tuple[LineStyle, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
DASHED: LineStyle = (0, (4, 3))
DOTTED: LineStyle = (0, (1, 2.2))
TEXT_POINTS, SMALL_POINTS = 9.5, 8.5
CHARACTER_EM = 0.59  # the mean width of a character of DejaVu Sans in running text


@dataclass(frozen=True)
class Look:
    """How a framework is drawn: dark and round against light and square reads in grey as well."""

    colour: str
    marker: str
    points: float


LOOKS: dict[Framework, Look] = {
    "pytorch_native": Look(NATIVE, "o", 6.8),
    "horovod": Look(HOROVOD, "s", 5.4),
}


@dataclass(frozen=True)
class PartLook:
    """How a part of the loss budget is drawn; neighbours in a stack alternate between dark and light."""

    name: str
    colour: str
    ink: str


# Of numbers inside a part: unlike ink and paper they stay as they are on a dark page.
ON_DARK, ON_LIGHT = "#fefefe", "#1a1a1b"
PART_LOOKS = {
    "data_wait": PartLook("data wait", "#332288", ON_DARK),
    "compute": PartLook("compute", "#88ccee", ON_LIGHT),
    "wire": PartLook("wire", "#882255", ON_DARK),
    "imbalance": PartLook("imbalance", "#ddcc77", ON_LIGHT),
    "optimizer": PartLook("optimizer", "#117733", ON_DARK),
    "unequal_work": PartLook("unequal work", "#f0f0d0", ON_LIGHT),
    "rest": PartLook("rest", "#777777", ON_DARK),
}

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
    "svg.hashsalt": "unet-scaling",
    "svg.fonttype": "path",
}


def printable(text: str) -> str:
    """The text on one line, what cannot be printed shown as such: a name may hold any character."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def width_inches(text: str, points: float = TEXT_POINTS) -> float:
    """About how wide a text becomes."""
    return len(text) * CHARACTER_EM * points / 72


def shortened(text: str, inches: float, points: float = TEXT_POINTS) -> str:
    """The text, printable, and cut so that it fits; an ellipsis shows the cut."""
    text = printable(text)
    room = int(inches / width_inches("m", points))
    return text if len(text) <= room else text[: max(1, room - 1)] + "…"


def plain(value: float, form: str = ".3g") -> str:
    """A number for people: no exponent, thousands apart, a true minus sign; nothing where not known."""
    if not math.isfinite(value):
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 else format(value, form)
    return text.replace("-", "\N{MINUS SIGN}")


def percent(value: float) -> str:
    """A share as whole per cent."""
    return plain(100 * value, ".0f") + " %" if math.isfinite(value) else ""
