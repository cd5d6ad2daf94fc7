"""How charts look: one colour and marker per framework, everywhere, and the type and grid around them."""

from dataclasses import dataclass
from typing import Any, Literal

from unet_scaling.config import Framework

PANEL_INCHES = (4.3, 3.7)
INK, MUTED = "#1a1a1a", "#666666"

LineStyle = Literal["-"] | tuple[float, tuple[float, ...]]
LINE_STYLES: tuple[LineStyle, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
DASHED: LineStyle = (0, (4, 3))


@dataclass(frozen=True)
class Look:
    """How a framework is drawn: dark and round against light and square reads in grey as well."""

    colour: str
    marker: str
    points: float


LOOKS: dict[Framework, Look] = {
    "pytorch_native": Look("#004488", "o", 6.8),
    "horovod": Look("#e07b00", "s", 5.2),
}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
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
    "grid.color": "#ececec",
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
