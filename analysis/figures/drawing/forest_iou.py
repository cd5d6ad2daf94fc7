"""IoU of both frameworks less that on 1 worker, in the rows of a forest plot of their throughputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.captions import interval_text, on_workers
from analysis.figures.drawing.forest import (
    GAP_PX,
    ForestLine,
    forest_height_px,
    forest_lines,
    set_rows,
    write_number,
)
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import FRAMEWORK_STYLES, GRID, LINE_STYLES, MUTED, text_width
from analysis.figures.drawing.titles import title_marks
from analysis.text import Row, chart_number
from unet_scaling.study.config import Framework

FORM = "+.3f"
KNOBS_COLUMNS: dict[Framework, str] = {"pytorch_native": "native_knobs", "horovod": "horovod_knobs"}
# From the middle of a row to the mark of each framework, in rows.
OFF_MIDDLE: dict[Framework, float] = {"pytorch_native": -0.15, "horovod": 0.15}
# The axis reaches so far beyond the margin, and beyond the values, in shares of them.
BEYOND_MARGIN = 1.6
BEYOND_VALUES = 1.1


@dataclass(frozen=True)
class RowDifference:
    """The difference of one framework in one row: `y` in rows, `row` of the IoU table."""

    framework: Framework
    line: int
    row: Row

    @property
    def y(self) -> float:
        """Return where its mark stands."""
        return self.line + OFF_MIDDLE[self.framework]

    @property
    def text(self) -> str:
        """Return the difference without its interval."""
        return chart_number(self.row["difference"], FORM)


def iou_panel(inputs: Inputs, rows: Sequence[Row]) -> Panel | None:
    """Return the panel of the differences to 1 worker of both frameworks; None where none is known."""
    lines = forest_lines(rows)
    differences = list(_differences(inputs, lines))
    if not differences:
        return None

    def draw(axes: Axes) -> None:
        number_px = max(text_width(each.text, bold=True) for each in differences)
        set_rows(axes, lines, 2 * number_px + GAP_PX)
        _set_axes(axes, inputs, differences)
        for each in differences:
            _draw_difference(axes, inputs, each, number_px)

    arms = [(arm, name) for arm, name in inputs.study.names.items() if arm in KNOBS_COLUMNS]
    legend = [DrawnSeries("", arm, "", LINE_STYLES[0], name) for arm, name in arms]
    title = f"Difference of the {inputs.study.score.title} to 1 worker"
    return Panel(title, draw, legend=legend, plot_height_px=forest_height_px(lines))


def _differences(inputs: Inputs, lines: Sequence[ForestLine]) -> Iterator[RowDifference]:
    """Yield the known differences of the rows; older logs do not say on which images."""
    known = inputs.iou[inputs.iou["difference"].notna() & inputs.study.provenance_known]
    keys = known[["options", "framework", "knobs", "workers"]].itertuples(index=False, name=None)
    found = dict(zip(keys, known.to_dict("records"), strict=True))
    for number, line in enumerate(lines):
        if isinstance(line, str):
            continue
        for framework, knobs in KNOBS_COLUMNS.items():
            row = found.get((line["options"], framework, line[knobs], line["workers"]))
            if row:
                yield RowDifference(framework, number, row)


def _set_axes(axes: Axes, inputs: Inputs, differences: Sequence[RowDifference]) -> None:
    margin = inputs.study.criteria.iou_margin
    table = pd.DataFrame([each.row for each in differences])
    ends = table[["difference", "difference_low", "difference_high"]].to_numpy(dtype=np.float64)
    low = min(float(np.nanmin(ends)), -BEYOND_MARGIN * margin)
    high = max(float(np.nanmax(ends)), BEYOND_MARGIN * margin)
    label = f"{inputs.study.score.heading} less that on 1 worker"
    axes.set(xlim=(BEYOND_VALUES * low, BEYOND_VALUES * high), xlabel=label)
    axes.locator_params(axis="x", nbins=4)
    axes.axvspan(-margin, margin, color=GRID, alpha=0.9, linewidth=0, zorder=0.5)
    axes.axvline(0, color=MUTED, linewidth=1.2)


def _draw_difference(axes: Axes, inputs: Inputs, drawn: RowDifference, number_px: float) -> None:
    style = FRAMEWORK_STYLES[drawn.framework]
    row = drawn.row
    ends = (row["difference_low"], row["difference_high"])
    axes.hlines(drawn.y, *ends, color=style.colour, linewidth=1.8)
    (mark,) = axes.plot(row["difference"], drawn.y, style.marker, color=style.colour, markersize=6)
    value = f"{drawn.text}{interval_text(row, 'difference', FORM)}"
    title_marks(mark, [f"{inputs.study.names[drawn.framework]} {on_workers(row['workers'])}: {value}"])
    beside_px = GAP_PX + (number_px + GAP_PX) * (drawn.framework == "horovod")
    write_number(axes, drawn.text, drawn.line, beside_px=beside_px, colour=style.text_colour)
