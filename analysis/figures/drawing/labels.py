"""Labels inside a panel: at the ends of lines, of guides, and of what is not known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from scipy import optimize  # type: ignore[import-untyped]

from analysis.arrays import Array
from analysis.figures.drawing.axes import in_panel, keep_free
from analysis.figures.drawing.style import DASHED, MUTED, PAPER, shortened, text_width

# A line of text with some air; and the most of a panel that a remark may take.
LABEL_LINE_PX = 16
MOST_UNKNOWN_PX = 400
# From a line's end to its label, past the bars and runs beside its median; from there to the edge.
LABEL_DISTANCE_PX = 24
EDGE_PX = 6
# From the tip of a line to the label above or below it.
TIP_PX = 6
# Share of the axes' width between ends whose labels share a column.
COLUMN_WIDTH = 0.06
# Share of their width that axes keep when labels narrow them.
LEAST_NARROWED = 0.6
# Shares of a panel's height that labels may take: from just above the axis to just above the top.
LOWEST_LABEL = 0.03
HIGHEST_LABEL = 1.02


@dataclass(frozen=True)
class Label:
    """A text to the right of a point in data coordinates; values of series are bold, guides are not."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = True


# Position in the panel, as shares of its width and height, and the label.
Placed = tuple[float, float, Label]


def halo() -> list[patheffects.AbstractPathEffect]:
    """Return an outline in the colour of the paper, so that a text can be read across lines."""
    return [patheffects.withStroke(linewidth=3, foreground=PAPER)]


def guide_line(axes: Axes, x: Sequence[float], y: Sequence[float], text: str) -> Label:
    """Draw a dashed line to compare with; return its label."""
    axes.plot(x, y, color=MUTED, linewidth=1.2, linestyle=DASHED, zorder=1)
    return Label(x[-1], y[-1], text, MUTED, bold=False)


def end_labels(axes: Axes, labels: Sequence[Label], *, least_free: float = 0.0) -> None:
    """Write texts to the right of their points, moved apart where they would touch, inside the panel.

    The axes are narrowed until all fit, and at least so many pixels lie to their right.
    """
    # In reverse, so that of labels at the same height the first stands above the others.
    placed = [(*in_panel(axes, label.x, label.y), label) for label in reversed(labels)]
    keep_free(axes, right=max([least_free, *(_beyond(axes, x, label) for x, _, label in placed)]))
    line_height = LABEL_LINE_PX / axes.bbox.height
    for column in _columns(placed):
        heights = _apart([height for _, height, _ in column], line_height)
        for (_, _, label), height in zip(column, heights, strict=True):
            _write(axes, label, height)


def _beyond(axes: Axes, x: float, label: Label) -> float:
    """Return the pixels by which a label exceeds the axes if its point is at this share of their width."""
    text = LABEL_DISTANCE_PX + text_width(label.text, bold=label.bold) + EDGE_PX
    return text - (1 - x) * axes.bbox.width * LEAST_NARROWED


def _write(axes: Axes, label: Label, height: float) -> None:
    """Write a label beside its x in data coordinates, at this share of the height of the axes."""
    axes.annotate(
        label.text,
        (label.x, height),
        (LABEL_DISTANCE_PX, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=label.colour,
        va="center",
        weight="bold" if label.bold else "normal",
        path_effects=halo(),
        annotation_clip=False,
        zorder=5,
    )


def tip_labels(axes: Axes, labels: Sequence[Label], *, below: bool) -> None:
    """Write texts at the tips of lines side by side; of two that would touch, the inner is left out."""
    placed = sorted((axes.transData.transform((label.x, label.y))[0], label.text, label) for label in labels)
    written: list[float] = []
    for x, text, label in [*placed[:1], *placed[:0:-1]]:
        if all(abs(x - other) > text_width(text, bold=True) + EDGE_PX for other in written):
            written.append(x)
            write_beside(axes, label, (0, -TIP_PX if below else TIP_PX))


def write_beside(axes: Axes, label: Label, offset_px: tuple[float, float]) -> None:
    """Write a bold text this far from its point; it begins or ends there, or has it in its middle."""
    right, up = offset_px
    axes.annotate(
        label.text,
        (label.x, label.y),
        offset_px,
        textcoords="offset points",
        ha="center" if right == 0 else "left" if right > 0 else "right",
        va="bottom" if up > 0 else "top",
        color=label.colour,
        weight="bold",
        path_effects=halo(),
        zorder=5,
    )


def _columns(placed: Sequence[Placed]) -> list[list[Placed]]:
    """Group labels at about the same x; each column is sorted from the bottom up."""
    columns: list[list[Placed]] = []
    last_x = -np.inf
    for x, height, label in sorted(placed, key=lambda place: place[0]):
        if x - last_x > COLUMN_WIDTH:
            columns.append([])
        columns[-1].append((x, height, label))
        last_x = x
    return [sorted(column, key=lambda place: place[1]) for column in columns]


def _apart(heights: Sequence[float], line_height: float) -> Array:
    """Return the heights nearest to these ascending ones that are a line apart, by isotonic regression."""
    steps = line_height * np.arange(len(heights))
    nearest = optimize.isotonic_regression(np.asarray(heights) - steps).x
    return np.asarray(np.clip(nearest, LOWEST_LABEL, HIGHEST_LABEL - steps[-1]) + steps, dtype=np.float64)


def say_unknown(axes: Axes, names: Sequence[str], *, nothing: bool) -> None:
    """Write of which series nothing is known; `nothing`: the panel is empty."""
    if nothing:
        axes.text(0.5, 0.45, "not known", transform=axes.transAxes, color=MUTED, ha="center")
    elif names:
        text = shortened("not known: " + ", ".join(names), MOST_UNKNOWN_PX)
        axes.text(0.98, 0.03, text, transform=axes.transAxes, color=MUTED, ha="right")
