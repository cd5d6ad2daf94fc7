"""Forest plots of two studies: the ratio of throughputs and the difference of IoU, a row for each point."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.arrays import Array
from analysis.figures.drawing.axes import logarithmic
from analysis.figures.drawing.captions import alternative_text, interval_text, on_workers
from analysis.figures.drawing.forest import (
    ForestLine,
    forest_height_px,
    forest_lines,
    row_name,
    set_rows,
    write_number,
)
from analysis.figures.drawing.forest_iou import BEYOND_VALUES
from analysis.figures.drawing.inputs import DrawnSeries
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import FRAMEWORK_STYLES, LINE_STYLES, MUTED, text_width
from analysis.figures.drawing.titles import title_marks
from analysis.score import Score
from analysis.study import NAMES
from analysis.text import Row, chart_number, count, printable, series_name

# More rows are nobody's first look; all are in compare.csv.
MOST_FOREST_ROWS = 30
# Of an axis of differences that are all 0, to each side.
LEAST_REACH = 0.01


@dataclass(frozen=True)
class ForestQuantity:
    """One quantity of a comparison, with its interval in `_low` and `_high`.

    column   of the points
    claimed  column that is true where a difference is claimed
    title    of its panel
    axis     name of its axis
    form     of its numbers
    equal    its value where both studies are equal; a ratio, equal at 1, has a logarithmic axis
    """

    column: str
    claimed: str
    title: str
    axis: str
    form: str
    equal: float

    def text(self, row: Row) -> str:
        """Return the value of a row with its interval."""
        return f"{chart_number(row[self.column], self.form)}{interval_text(row, self.column, self.form)}"


RATIO = ForestQuantity("ratio", "claimed", "Ratio of throughputs, B / A", "throughput of B / A", ".3f", 1.0)


def study_panels(points: pd.DataFrame, score: Score) -> list[Panel]:
    """Return the panels of two studies; that of the score only where one is known.

    `points` has one row per point of both studies: framework, workers, options, knobs and the columns of both
    quantities.
    """
    lines = forest_lines(_named_rows(points))
    known = [each for each in (RATIO, _difference(score)) if points[each.column].notna().any()]
    return [_panel(quantity, lines) for quantity in known]


def _difference(score: Score) -> ForestQuantity:
    title = f"Difference of {score.title}, B - A"
    return ForestQuantity("iou_difference", "iou_claimed", title, f"{score.title} of B - A", "+.4f", 0.0)


def study_alternative(points: pd.DataFrame) -> str:
    """Return the ratio of every row, for those who cannot see it."""
    rows = _named_rows(points)
    return alternative_text("Throughput of B over that of A", [_text(RATIO, row) for row in rows])


def _named_rows(points: pd.DataFrame) -> list[Row]:
    """Return the rows drawn, those of the largest worker counts first, each with the name of its series."""
    rows: list[Row] = [
        {**row, "series": series_name(row, NAMES), "heading": _heading(row)}
        for row in points.to_dict("records")
    ]
    rows.sort(key=lambda row: (-row["workers"], row["options"]))
    return rows[:MOST_FOREST_ROWS]


def _heading(row: Row) -> str:
    return ", ".join(filter(None, (count(row["workers"], "worker"), printable(row["options"]))))


def _panel(quantity: ForestQuantity, lines: Sequence[ForestLine]) -> Panel:
    rows = [line for line in lines if not isinstance(line, str)]

    def draw(axes: Axes) -> None:
        set_rows(axes, lines, max(text_width(quantity.text(row)) for row in rows))
        _set_axis(axes, quantity, rows)
        for y, line in enumerate(lines):
            if not isinstance(line, str):
                _draw_row(axes, quantity, y, line)

    used = {row["framework"] for row in rows}
    legend = [DrawnSeries("", arm, "", LINE_STYLES[0], name) for arm, name in NAMES.items() if arm in used]
    return Panel(quantity.title, draw, legend=legend, plot_height_px=forest_height_px(lines))


def _set_axis(axes: Axes, quantity: ForestQuantity, rows: Sequence[Row]) -> None:
    table = pd.DataFrame(rows)
    ends = table[[f"{quantity.column}{end}" for end in ("", "_low", "_high")]].to_numpy(dtype=np.float64)
    values: Array = np.append(ends.ravel(), quantity.equal)
    if quantity.equal > 0:
        logarithmic(axes, "x", values)
    else:
        axes.set_xlim(*(BEYOND_VALUES * limit for limit in _limits(values)))
        axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(quantity.axis)
    axes.axvline(quantity.equal, color=MUTED, linewidth=1.2)


def _limits(values: Array) -> tuple[float, float]:
    """Return the ends of an axis that holds these values and is not empty."""
    low = float(np.nanmin(values))
    high = float(np.nanmax(values))
    return (low, high) if low < high else (-LEAST_REACH, LEAST_REACH)


def _draw_row(axes: Axes, quantity: ForestQuantity, y: int, row: Row) -> None:
    style = FRAMEWORK_STYLES[row["framework"]]
    colour = style.colour if row[quantity.claimed] else MUTED
    axes.hlines(y, row[f"{quantity.column}_low"], row[f"{quantity.column}_high"], color=colour, linewidth=1.8)
    (mark,) = axes.plot(row[quantity.column], y, style.marker, color=colour, markersize=7)
    title_marks(mark, [_text(quantity, row)])
    write_number(axes, quantity.text(row), y)


def _text(quantity: ForestQuantity, row: Row) -> str:
    options = f", {printable(row['options'])}" if row["options"] else ""
    return f"{quantity.text(row)} {on_workers(row['workers'])} ({row_name(row)}{options})"
