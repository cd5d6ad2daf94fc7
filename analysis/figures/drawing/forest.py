"""Rows of a forest plot: names to the left of the axes, numbers to their right."""

from collections.abc import Sequence
from itertools import groupby

from matplotlib.axes import Axes

from analysis.figures.drawing.axes import keep_free
from analysis.figures.drawing.style import INK, shortened, text_width
from analysis.text import Row, count, printable

# A row, or the heading of those below it.
ForestLine = Row | str
# Of a row with a name of one line, and of two.
ROW_PX = (21, 36)
# Of a line of a name; a name that is longer than two is cut, and whole beside the pointer.
MOST_NAME_PX = 190
MOST_HEADING_PX = 200
GAP_PX = 10
# Columns that set a row of two frameworks apart; a row of two studies has a `series` and a `heading`.
NAMED_BY = ("options", "native_knobs", "horovod_knobs")


def forest_lines(rows: Sequence[Row]) -> list[ForestLine]:
    """Return the rows, those of each worker count, or of one heading, below it where they have names."""
    if not any(map(row_name, rows)):
        return list(rows)
    lines: list[ForestLine] = []
    for heading, of in groupby(rows, key=_heading):
        lines += [heading, *of]
    return lines


def _heading(row: Row) -> str:
    return row.get("heading") or count(row["workers"], "worker")


def forest_height_px(lines: Sequence[ForestLine]) -> float:
    """Return the height of the axes that these rows need."""
    wrapped = any("\n" in _shown_name(line) for line in lines)
    return ROW_PX[wrapped] * len(lines)


def row_name(row: Row) -> str:
    """Return what sets a row apart from others at its worker count; nothing in a study without options."""
    names = [str(row[name]) for name in NAMED_BY] if "series" not in row else [row["series"]]
    return printable(", ".join(filter(None, names)))


def set_rows(axes: Axes, lines: Sequence[ForestLine], numbers_px: float) -> None:
    """Write the names, first row on top, and keep so much room for numbers to the right of the axes."""
    names = [_shown_name(line) for line in lines]
    widest_name_px = max(text_width(part, bold=True) for name in names for part in name.split("\n"))
    keep_free(axes, left=widest_name_px + 2 * GAP_PX, right=numbers_px + 2 * GAP_PX)
    axes.set(ylim=(len(lines) - 0.5, -0.5), yticks=[])
    axes.spines["left"].set_visible(False)
    for y, (line, name) in enumerate(zip(lines, names, strict=True)):
        _write(axes, name, y, -GAP_PX, weight="bold" if isinstance(line, str) else "normal")


def write_number(axes: Axes, text: str, y: int, *, beside_px: float = GAP_PX, colour: str = INK) -> None:
    """Write a text into the room to the right of the axes, so far from them."""
    _write(axes, text, y, beside_px, colour=colour)


def _shown_name(line: ForestLine) -> str:
    """Return a heading, or the name of a row on one or two lines that fit; the worker count without one."""
    if isinstance(line, str):
        return shortened(line, MOST_HEADING_PX)
    first = ""
    parts = (row_name(line) or count(line["workers"], "worker")).split(", ")
    while parts and (not first or text_width(f"{first}, {parts[0]}") <= MOST_NAME_PX):
        first = ", ".join(filter(None, (first, parts.pop(0))))
    shown = (first, ", ".join(parts))
    return "\n".join(shortened(each, MOST_NAME_PX) for each in shown if each)


def _write(
    axes: Axes, text: str, y: int, beside_px: float, *, weight: str = "normal", colour: str = INK
) -> None:
    """Write a text so far to the left or to the right of the axes."""
    right = beside_px > 0
    axes.annotate(
        text,
        (int(right), y),
        (beside_px, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        weight=weight,
        color=colour,
    )
