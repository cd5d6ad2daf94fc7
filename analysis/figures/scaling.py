"""The overview for README and papers: speed-up, throughput and IoU side by side, with the verdict above."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.drawing.captions import caption_text
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.layout import legend_line
from analysis.figures.drawing.quantity import (
    AXES_SENTENCE,
    OWN_BASELINE_SENTENCE,
    draw_quantity,
    quantity_alternative,
    quantity_sentences,
)
from analysis.figures.drawing.style import MUTED, SMALL_POINTS, shortened
from analysis.figures.iou import IOU
from analysis.figures.speedup import SPEEDUP
from analysis.figures.throughput import throughput
from analysis.text import printable

TITLE = "overview"
# A file only: the page has its panels in figures of their own.
SECTION = ""

# One for each quantity.
PANELS_IN_ROW = 3
PANEL_AND_GAP_INCHES = 4.3
ROW_INCHES = 2.6
ROW_GAP_INCHES = 1.05
HEAD_INCHES = 1.12
FOOT_INCHES = 0.84
TEXT_LINE_INCHES = 0.17
# Shares of the figure's width.
LEFT = 0.045
RIGHT = 0.972
OVERVIEW_TITLE_POINTS = 13.5
CAPTION_CHARACTERS = 185
VERDICT_CHARACTERS = 170
MOST_VERDICT_LINES = 3
# Entries of the legend that stand in large type.
FEW_ENTRIES = 2


def draw(inputs: Inputs) -> Figure:
    """Draw speed-up, throughput and IoU over the workers; one row of panels for each set of options."""
    verdict = _verdict(inputs)
    notes = textwrap.wrap(caption(inputs), CAPTION_CHARACTERS)
    figure = _panels(inputs, further_lines=max(0, len(verdict) - 1), foot_lines=max(1, len(notes)))
    _draw_panels(figure, inputs)
    _draw_head(figure, inputs, verdict)
    _draw_legend(figure, inputs.series)
    foot = 0.14 / figure.get_figheight()
    figure.text(LEFT, foot, "\n".join(notes), color=MUTED, size=SMALL_POINTS, linespacing=1.45)
    return figure


def missing(inputs: Inputs) -> str | None:  # noqa: ARG001  (as in every figure)
    """Return None: the panels say themselves what is not known."""
    return None


def caption(inputs: Inputs) -> str:
    """Return what the marks are, and which baseline each framework has."""
    marks = quantity_sentences(inputs, ["throughput", "speedup", "iou"])
    return caption_text(inputs, *marks, OWN_BASELINE_SENTENCE, AXES_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return the speed-up of every series at its most workers."""
    opening = "Three charts against workers: speed-up, throughput and IoU. Speed-up"
    return quantity_alternative(opening, inputs, SPEEDUP)


def _panels(inputs: Inputs, *, further_lines: int, foot_lines: int) -> Figure:
    """Return a figure of empty panels, with a head and a foot that hold so many lines of text."""
    rows = len(inputs.panels)
    head = HEAD_INCHES + TEXT_LINE_INCHES * further_lines
    foot = FOOT_INCHES + TEXT_LINE_INCHES * (foot_lines - 1)
    height = head + rows * ROW_INCHES + (rows - 1) * ROW_GAP_INCHES + foot
    figure = Figure(figsize=(PANELS_IN_ROW * PANEL_AND_GAP_INCHES, height), dpi=150)
    figure.subplots(rows, PANELS_IN_ROW, squeeze=False)
    figure.subplots_adjust(LEFT, foot / height, RIGHT, 1 - head / height, 0.2, ROW_GAP_INCHES / ROW_INCHES)
    return figure


def _draw_panels(figure: Figure, inputs: Inputs) -> None:
    quantities = SPEEDUP, throughput(inputs), replace(IOU, title=f"IoU, {inputs.study.iou_scope}")
    panels = iter(figure.axes)
    for options, series in inputs.panels.items():
        row = [next(panels) for _ in quantities]
        for axes, quantity in zip(row, quantities, strict=True):
            axes.set_title(quantity.title)
            draw_quantity(axes, inputs, quantity, series)
        _label_row(row[0], options)


def _label_row(axes: Axes, options: str) -> None:
    """Write the options of a row above its first panel."""
    label = shortened(options, PANELS_IN_ROW * PANEL_AND_GAP_INCHES - 1)
    axes.annotate(label, (0, 1.15), xycoords="axes fraction", weight="bold", color=MUTED)


def _verdict(inputs: Inputs) -> list[str]:
    """Return the lines of the verdict; none where there are several, which the page lists."""
    if len(inputs.verdicts) != 1:
        return []
    sentence = printable(str(inputs.verdicts[0]))
    capital = sentence[:1].upper() + sentence[1:]
    return textwrap.wrap(capital, VERDICT_CHARACTERS, max_lines=MOST_VERDICT_LINES, placeholder=" …")


def _draw_head(figure: Figure, inputs: Inputs, verdict: Sequence[str]) -> None:
    height = figure.get_figheight()
    title = shortened(f"U-Net scaling: {inputs.study.name}", 6.5, OVERVIEW_TITLE_POINTS)
    figure.text(LEFT, 1 - 0.34 / height, title, size=OVERVIEW_TITLE_POINTS, weight="bold")
    lines = "\n".join(verdict)
    figure.text(LEFT, 1 - 0.48 / height, lines, size=10, color=MUTED, va="top", linespacing=1.3)


def _draw_legend(figure: Figure, drawn: Sequence[DrawnSeries]) -> None:
    """Draw it in the free corner of the head, in two columns; many entries are small and cut."""
    entries = list({series.name: series for series in drawn}.values())
    few = len(entries) <= FEW_ENTRIES
    figure.legend(
        handles=[legend_line(series, 3.4 if few else 2.6) for series in entries],
        loc="upper right",
        bbox_to_anchor=(RIGHT + 0.004, 1 - 0.1 / figure.get_figheight()),
        ncols=2,
        frameon=False,
        handlelength=2.6,
        fontsize=10.5 if few else SMALL_POINTS,
        columnspacing=1.8,
    )
