"""Throughput of native DDP over that of Horovod, and beside it the IoU: a row for each comparison."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.contrast import HOROVOD_FASTER, NATIVE_FASTER
from analysis.figures.drawing.axes import logarithmic
from analysis.figures.drawing.captions import alternative_text, caption_text, interval_text, on_workers
from analysis.figures.drawing.forest import (
    ForestLine,
    forest_height_px,
    forest_lines,
    row_name,
    set_rows,
    write_number,
)
from analysis.figures.drawing.forest_iou import iou_panel
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import FRAMEWORK_STYLES, MUTED, text_width
from analysis.figures.drawing.titles import title_marks
from analysis.study import COMPARED
from analysis.text import Row, chart_number

TITLE = "ratio of throughputs"
SECTION = "against"
# More rows are nobody's first look; all are in comparison.csv.
MOST_ROWS = 30
OUTCOME_STYLES = {
    NATIVE_FASTER: FRAMEWORK_STYLES["pytorch_native"],
    HOROVOD_FASTER: FRAMEWORK_STYLES["horovod"],
}


def draw(inputs: Inputs) -> list[Panel]:
    """Return the ratios beside a line at 1, those of the largest counts first, and the IoU where known."""
    rows = _rows(inputs)
    iou = iou_panel(inputs, rows)
    return [_ratio_panel(inputs, rows), *([iou] if iou else [])]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no worker count has a throughput of both frameworks."""
    return None if len(_known(inputs)) else "the frameworks have no ratio of throughputs in common"


def caption(inputs: Inputs) -> str:
    """Return what the marks and bars are, and what is left out."""
    native, horovod = inputs.study.compared_names
    known = len(_known(inputs))
    cut = f"The first {MOST_ROWS} of {known} rows; all are in comparison.csv." if known > MOST_ROWS else ""
    marks = (
        f"Right of 1 {native} is faster, left of it {horovod}. Marks in the colour of a framework: it is "
        "faster, since the interval, corrected for all comparisons, excludes 1; grey: nothing is claimed."
    )
    return caption_text(inputs, marks, _iou_sentence(inputs), cut)


def alternative(inputs: Inputs) -> str:
    """Return the ratio of every row."""
    native, horovod = inputs.study.compared_names
    facts = [_text(row) for row in _rows(inputs)]
    return alternative_text(f"Throughput of {native} over that of {horovod}", facts)


def _known(inputs: Inputs) -> pd.DataFrame:
    return inputs.comparisons[inputs.comparisons["ratio"].notna()]


def _rows(inputs: Inputs) -> Sequence[Row]:
    """Return the rows drawn, those of the largest worker counts first."""
    rows = _known(inputs).sort_values("workers", ascending=False, kind="stable")
    return rows.head(MOST_ROWS).to_dict("records")


def _iou_sentence(inputs: Inputs) -> str:
    """Return what the panel of the IoU shows; empty without it."""
    if iou_panel(inputs, _rows(inputs)) is None:
        return ""
    margin = chart_number(inputs.study.criteria.iou_margin)
    differences = f"{inputs.study.score.heading}: differences to the same seed on 1 worker"
    return f"{differences}; the grey band is the margin of {margin}."


def _ratio_panel(inputs: Inputs, rows: Sequence[Row]) -> Panel:
    lines = forest_lines(rows)

    def draw_rows(axes: Axes) -> None:
        set_rows(axes, lines, max(text_width(_value(row)) for row in rows))
        _set_axes(axes, inputs, rows)
        for y, line in enumerate(lines):
            _draw_line(axes, y, line)

    title = f"Ratio of throughputs, {' / '.join(inputs.study.compared_names)}"
    return Panel(title, draw_rows, plot_height_px=forest_height_px(lines))


def _text(row: Row) -> str:
    name = f" ({row_name(row)})" if row_name(row) else ""
    return f"{_value(row)} {on_workers(row['workers'])}{name}: {row['outcome']}"


def _value(row: Row) -> str:
    return f"{chart_number(row['ratio'], '.3f')}{interval_text(row, 'ratio', '.3f')}"


def _set_axes(axes: Axes, inputs: Inputs, rows: Sequence[Row]) -> None:
    ends = [row[f"ratio{end}"] for row in rows for end in ("", "_low", "_high")]
    logarithmic(axes, "x", np.array([1.0, *ends], dtype=np.float64))
    axes.set_xlabel(" / ".join(inputs.study.short_names[name] for name in COMPARED))
    axes.axvline(1, color=MUTED, linewidth=1.2)


def _draw_line(axes: Axes, y: int, line: ForestLine) -> None:
    if not isinstance(line, str):
        write_number(axes, _value(line), y)
        _draw_mark(axes, y, line)


def _draw_mark(axes: Axes, y: int, row: Row) -> None:
    style = OUTCOME_STYLES.get(row["outcome"])
    colour = style.colour if style else MUTED
    axes.hlines(y, row["ratio_low"], row["ratio_high"], color=colour, linewidth=1.8)
    (mark,) = axes.plot(row["ratio"], y, style.marker if style else "D", color=colour, markersize=7)
    title_marks(mark, [_text(row)])
