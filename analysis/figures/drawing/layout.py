"""Layout of a figure: panels of one width, each with its title and legend above its axes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.drawing.artists import median_line
from analysis.figures.drawing.axes import keep_tick_labels_free
from analysis.figures.drawing.inputs import DrawnSeries
from analysis.figures.drawing.style import (
    INK,
    MUTED,
    PX_PER_INCH,
    TEXT_PX,
    TITLE_PX,
    PartStyle,
    shortened,
    text_width,
)
from analysis.text import printable

# Two stand side by side on a page of 1200 pixels.
PANEL_WIDTH_PX = 560
PLOT_HEIGHT_PX = 270
MARGIN_PX = 10
RIGHT_PX = 16
TITLE_ROW_PX = 26
TEXT_ROW_PX = 20
# Between the head and the axes; below them, with the ticks and the name of the axis.
HEAD_GAP_PX = 12
FOOT_PX = 54
# The line or patch of a legend's entry with the distances around it, in pixels.
HANDLE_PX = 58
MOST_COLUMNS = 2

Entry = DrawnSeries | PartStyle


@dataclass(frozen=True)
class Panel:
    """One chart of a figure.

    title    what is drawn, with its unit
    draw     draws it into empty axes
    options  a second line of the title: the set of options, where several are drawn
    legend   the series or parts that are told apart
    colour   of the title
    plot_height_px  of the axes
    """

    title: str
    draw: Callable[[Axes], None]
    options: str = ""
    legend: Sequence[Entry] = ()
    colour: str = INK
    plot_height_px: float = PLOT_HEIGHT_PX

    @property
    def label(self) -> str:
        """Return its title with the options, on one line."""
        return printable(", ".join(filter(None, (self.title, self.options))))

    @property
    def legend_rows(self) -> list[list[Entry]]:
        """Return the entries, each name once, in as many rows as they need."""
        rows: list[list[Entry]] = []
        free = 0.0
        for entry in {entry.name: entry for entry in self.legend}.values():
            needed = HANDLE_PX + text_width(entry.name)
            if not rows or needed > free:
                rows.append([])
                free = PANEL_WIDTH_PX - 2 * MARGIN_PX
            rows[-1].append(entry)
            free -= needed
        return rows

    @property
    def text_rows(self) -> int:
        """Return how many rows its options and its legend take."""
        return bool(self.options) + len(self.legend_rows)


def single_panels(panels: Sequence[Panel]) -> list[Figure]:
    """Return each panel as a figure of its own; those of a row of two have as much room above their axes."""
    figures = []
    for row in _in_rows(panels):
        head = _head_height(row)
        for panel in row:
            figure = _empty(PANEL_WIDTH_PX, _height(panel, head))
            _draw_panel(figure, panel, head)
            figures.append(figure)
    return figures


def sheet(panels: Sequence[Panel]) -> Figure:
    """Return all panels in one figure, two in a row."""
    rows = _in_rows(panels)
    columns = len(rows[0])
    heads = [_head_height(row) for row in rows]
    heights = [max(_height(panel, head) for panel in row) for row, head in zip(rows, heads, strict=True)]
    figure = _empty(columns * PANEL_WIDTH_PX, sum(heights))
    cells = figure.subfigures(len(rows), columns, squeeze=False, wspace=0, hspace=0, height_ratios=heights)
    for row, head, of_row in zip(rows, heads, cells, strict=True):
        for cell, panel in zip(of_row, row, strict=False):  # the last row may have an empty cell
            _draw_panel(cell, panel, head)
    return figure


def _in_rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Return the panels as they stand side by side."""
    return [panels[start : start + MOST_COLUMNS] for start in range(0, len(panels), MOST_COLUMNS)]


def legend_line(series: DrawnSeries, most_px: float) -> Line2D:
    """Return a series' entry in a legend, its name cut to this width."""
    return median_line(series, [], [], label=shortened(series.name, most_px))


def _empty(width_px: float, height_px: float) -> Figure:
    return Figure(figsize=(width_px / PX_PER_INCH, height_px / PX_PER_INCH), dpi=PX_PER_INCH)


def _head_height(panels: Sequence[Panel]) -> float:
    return TITLE_ROW_PX + TEXT_ROW_PX * max(panel.text_rows for panel in panels) + HEAD_GAP_PX


def _height(panel: Panel, head: float) -> float:
    return head + panel.plot_height_px + FOOT_PX


def _draw_panel(figure: Figure | SubFigure, panel: Panel, head: float) -> None:
    """Draw a panel into a figure or a cell of a sheet, from its upper left corner on."""
    _write_title(figure, panel)
    for number, entries in enumerate(panel.legend_rows):
        _draw_legend_row(figure, entries, TITLE_ROW_PX + TEXT_ROW_PX * (bool(panel.options) + number))
    width, height = figure.bbox.size
    plot = panel.plot_height_px
    left = MARGIN_PX / width
    bottom = (height - head - plot) / height
    axes = figure.add_axes((left, bottom, 1 - left - RIGHT_PX / width, plot / height))
    panel.draw(axes)
    keep_tick_labels_free(axes)


def _write_title(figure: Figure | SubFigure, panel: Panel) -> None:
    width, height = figure.bbox.size
    x = MARGIN_PX / width
    most = width - 2 * MARGIN_PX
    title = shortened(panel.title, most, px=TITLE_PX, bold=True)
    figure.text(x, 1 - 19 / height, title, size=TITLE_PX, weight="bold", color=panel.colour)
    options = shortened(panel.options, most)
    figure.text(x, 1 - (TITLE_ROW_PX + 13) / height, options, size=TEXT_PX, color=MUTED)


def _draw_legend_row(figure: Figure | SubFigure, entries: Sequence[Entry], top_px: float) -> None:
    width, height = figure.bbox.size
    figure.legend(
        handles=[_handle(entry, width - HANDLE_PX - 2 * MARGIN_PX) for entry in entries],
        loc="upper left",
        bbox_to_anchor=(MARGIN_PX / width, 1 - top_px / height),
        ncols=len(entries),
        frameon=False,
        handlelength=2.4,
        handletextpad=0.6,
        borderpad=0.1,
        borderaxespad=0,
        columnspacing=1.4,
    )


def _handle(entry: Entry, most_px: float) -> Line2D | Patch:
    if isinstance(entry, DrawnSeries):
        return legend_line(entry, most_px)
    return Patch(facecolor=entry.colour, edgecolor=MUTED, linewidth=0.5, label=entry.name)
