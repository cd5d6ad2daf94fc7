"""The overview for README and papers: speed-up, throughput and IoU side by side, with the verdict above."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from analysis.figures.looks import MUTED, SMALL_POINTS, printable, shortened
from analysis.figures.over_workers import IOU, SPEEDUP, draw_quantity, throughput_quantity
from analysis.figures.series import Inputs, Series
from analysis.figures.sheet import legend_line

COLUMN_INCHES = 4.3
PANEL_INCHES, BETWEEN_INCHES = 2.6, 1.05
HEAD_INCHES, FOOT_INCHES, LINE_INCHES = 1.12, 0.84, 0.17
LEFT, RIGHT = 0.045, 0.972
CAPTION_CHARACTERS, VERDICT_CHARACTERS = 185, 170
MOST_VERDICT_LINES = 3
FEW_ENTRIES, MOST_IN_ROW = 2, 2


def scaling_figure(inputs: Inputs, caption: str) -> Figure:
    """Speed-up, throughput and IoU over the workers; one row of panels for each set of options."""
    quantities = SPEEDUP, throughput_quantity(inputs), replace(IOU, title=f"IoU, {inputs.study.iou_scope}")
    rows = len(inputs.options)
    verdict, notes = _verdict(inputs), textwrap.wrap(caption, CAPTION_CHARACTERS)
    head = HEAD_INCHES + LINE_INCHES * max(0, len(verdict) - 1)
    foot = FOOT_INCHES + LINE_INCHES * max(0, len(notes) - 1)
    height = head + rows * PANEL_INCHES + (rows - 1) * BETWEEN_INCHES + foot
    figure = Figure(figsize=(3 * COLUMN_INCHES, height), dpi=150)
    grid = figure.subplots(rows, 3, squeeze=False)
    figure.subplots_adjust(left=LEFT, right=RIGHT, top=1 - head / height, bottom=foot / height)
    figure.subplots_adjust(wspace=0.2, hspace=BETWEEN_INCHES / PANEL_INCHES)
    for row, options in zip(grid, inputs.options, strict=True):
        for axes, quantity in zip(row, quantities, strict=True):
            axes.set_title(quantity.title)
            draw_quantity(axes, inputs, quantity, options)
        label = shortened(options, 3 * COLUMN_INCHES - 1)
        row[0].annotate(label, (0, 1.15), xycoords="axes fraction", weight="bold", color=MUTED)
    _head(figure, inputs, verdict)
    _legend(figure, [series for options in inputs.options for series in inputs.series(options)])
    place = LEFT, 0.14 / height
    figure.text(*place, "\n".join(notes), color=MUTED, size=SMALL_POINTS, linespacing=1.45)
    return figure


def _verdict(inputs: Inputs) -> list[str]:
    """The lines of the verdict; none where there are several, which the text beside the figure lists."""
    if len(inputs.verdicts) != 1:
        return []
    sentence = printable(str(inputs.verdicts[0]))
    capital = sentence[:1].upper() + sentence[1:]
    return textwrap.wrap(capital, VERDICT_CHARACTERS, max_lines=MOST_VERDICT_LINES, placeholder=" …")


def _head(figure: Figure, inputs: Inputs, verdict: Sequence[str]) -> None:
    height = figure.get_figheight()
    title = shortened(f"U-Net scaling: {inputs.study.name}", 6.5, 13.5)
    figure.text(LEFT, 1 - 0.34 / height, title, size=13.5, weight="bold")
    lines = "\n".join(verdict)
    figure.text(LEFT, 1 - 0.48 / height, lines, size=10, color=MUTED, va="top", linespacing=1.3)


def _legend(figure: Figure, drawn: Sequence[Series]) -> None:
    """In the head's free corner; many entries stand there in two columns and small type, long names cut."""
    entries = list({series.name: series for series in drawn}.values())
    few = len(entries) <= FEW_ENTRIES
    figure.legend(
        handles=[legend_line(series, 3.4 if few else 2.6) for series in entries],
        loc="upper right",
        bbox_to_anchor=(RIGHT + 0.004, 1 - 0.1 / figure.get_figheight()),
        ncols=MOST_IN_ROW,
        frameon=False,
        handlelength=2.6,
        fontsize=10.5 if few else SMALL_POINTS,
        columnspacing=1.8,
    )
