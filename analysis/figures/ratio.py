"""Throughput of native DDP over that of Horovod, a row for each set of options and worker count."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.axes import keep_free, logarithmic
from analysis.figures.drawing.captions import alternative_text, caption_text, interval_text, on_workers
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import (
    FRAMEWORK_STYLES,
    MUTED,
    shortened,
    text_width,
)
from analysis.figures.drawing.titles import title_marks
from analysis.findings.comparison import HOROVOD_FASTER, NATIVE_FASTER
from analysis.text import Row, chart_number, count, printable

TITLE = "ratio of throughputs"
SECTION = "against"
# More rows are nobody's first look; all are in comparison.csv.
MOST_ROWS = 30
# Of a row with a name of one line, and of two.
ROW_PX = (21, 36)
# Of a line of a name; a name that is longer than two is cut, and whole beside the pointer.
MOST_NAME_PX = 190
GAP_PX = 10
OUTCOME_STYLES = {
    NATIVE_FASTER: FRAMEWORK_STYLES["pytorch_native"],
    HOROVOD_FASTER: FRAMEWORK_STYLES["horovod"],
}


def draw(inputs: Inputs) -> list[Panel]:
    """Return one panel: ratios with intervals beside a line at 1, those of the largest counts first."""
    lines = _lines(_rows(inputs))

    def draw_rows(axes: Axes) -> None:
        _set_axes(axes, inputs, lines)
        for y, line in enumerate(lines):
            _draw_line(axes, y, line)

    wrapped = any("\n" in _short_name(line) for line in lines if not isinstance(line, str))
    row_px = ROW_PX[wrapped]
    title = f"Ratio of throughputs, {' / '.join(inputs.study.compared_names)}"
    return [Panel(title, draw_rows, plot_height_px=row_px * len(lines))]


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
    return caption_text(inputs, marks, cut)


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


def _lines(rows: Sequence[Row]) -> list[Row | str]:
    """Return the rows, those of each worker count below a heading where they have names."""
    if not any(map(_name, rows)):
        return list(rows)
    lines: list[Row | str] = []
    for workers, of in groupby(rows, key=lambda row: row["workers"]):
        lines += [count(workers, "worker"), *of]
    return lines


def _name(row: Row) -> str:
    """Return what sets a row apart from others at its worker count; nothing in a study without options."""
    names = (str(row[name]) for name in ("options", "native_knobs", "horovod_knobs"))
    return printable(", ".join(filter(None, names)))


def _short_name(row: Row) -> str:
    """Return the name on one or two lines that fit; the worker count where there is none."""
    first = ""
    parts = (_name(row) or count(row["workers"], "worker")).split(", ")
    while parts and (not first or text_width(f"{first}, {parts[0]}") <= MOST_NAME_PX):
        first = ", ".join(filter(None, (first, parts.pop(0))))
    lines = (first, ", ".join(parts))
    return "\n".join(shortened(line, MOST_NAME_PX) for line in lines if line)


def _text(row: Row) -> str:
    name = f" ({_name(row)})" if _name(row) else ""
    return f"{_value(row)} {on_workers(row['workers'])}{name}: {row['outcome']}"


def _value(row: Row) -> str:
    return f"{chart_number(row['ratio'], '.3f')}{interval_text(row, 'ratio', '.3f')}"


def _set_axes(axes: Axes, inputs: Inputs, lines: Sequence[Row | str]) -> None:
    _make_room(axes, lines)
    rows = [line for line in lines if not isinstance(line, str)]
    ends = [row[f"ratio{end}"] for row in rows for end in ("", "_low", "_high")]
    logarithmic(axes, "x", np.array([1.0, *ends], dtype=np.float64))
    axes.set(ylim=(len(lines) - 0.5, -0.5), yticks=[], xlabel=" / ".join(inputs.study.short_names.values()))
    axes.spines["left"].set_visible(False)
    axes.axvline(1, color=MUTED, linewidth=1.2)


def _make_room(axes: Axes, lines: Sequence[Row | str]) -> None:
    """Narrow the axes until names fit to their left, and numbers to their right."""
    names = [line if isinstance(line, str) else _short_name(line) for line in lines]
    numbers = [_value(line) for line in lines if not isinstance(line, str)]
    widest_name = max(text_width(part, bold=True) for name in names for part in name.split("\n"))
    keep_free(axes, left=widest_name + 2 * GAP_PX, right=max(map(text_width, numbers)) + 2 * GAP_PX)


def _draw_line(axes: Axes, y: int, line: Row | str) -> None:
    if isinstance(line, str):
        _write(axes, line, y, -GAP_PX, weight="bold")
        return
    _write(axes, _short_name(line), y, -GAP_PX)
    _write(axes, _value(line), y, GAP_PX)
    _draw_mark(axes, y, line)


def _draw_mark(axes: Axes, y: int, row: Row) -> None:
    style = OUTCOME_STYLES.get(row["outcome"])
    colour = style.colour if style else MUTED
    axes.hlines(y, row["ratio_low"], row["ratio_high"], color=colour, linewidth=1.8)
    (mark,) = axes.plot(row["ratio"], y, style.marker if style else "D", color=colour, markersize=7)
    title_marks(mark, [_text(row)])


def _write(axes: Axes, text: str, y: int, beside_px: int, weight: str = "normal") -> None:
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
    )
