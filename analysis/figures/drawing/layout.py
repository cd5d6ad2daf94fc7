"""Layout of a figure: title and legend in the head, panels of fixed size in rows below."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.drawing.artists import median_line
from analysis.figures.drawing.inputs import DrawnSeries
from analysis.figures.drawing.style import INK, MUTED, TEXT_POINTS, PartStyle, shortened, width_inches

# Width and height of a panel, in inches: of a figure with one, and with several.
SINGLE_PANEL = (4.9, 3.3)
SEVERAL_PANELS = (3.9, 2.9)
LEFT_INCHES = 0.7
RIGHT_INCHES = 0.12
BOTTOM_INCHES = 0.5
BETWEEN_INCHES = 0.78
MARGIN_INCHES = 0.1
TITLE_INCHES = 0.36
LEGEND_INCHES = 0.25
PANEL_TITLE_INCHES = 0.34
NO_TITLE_INCHES = 0.12
TITLE_POINTS = 10.5
# Of a legend's entry, beside its text.
HANDLE_INCHES = 0.75
DOTS_PER_INCH = 150

Entry = DrawnSeries | PartStyle
Size = tuple[float, float]


def figure_by_options(
    title: str,
    panels: Mapping[str, Sequence[DrawnSeries]],
    draw_panel: Callable[[Axes, Sequence[DrawnSeries]], None],
    panel_titles: Sequence[str] = (),
) -> Figure:
    """Draw one panel for each set of options, with a legend of all series.

    `panels` has the series of each set of options; its title is the options where `panel_titles` has none.
    """
    size = SINGLE_PANEL if len(panels) == 1 else SEVERAL_PANELS
    legend = list(chain.from_iterable(panels.values()))
    columns = columns_for(len(panels))
    figure, all_axes = new_figure(title, legend, panel_titles or list(panels), columns, size)
    for axes, panel in zip(all_axes, panels.values(), strict=True):
        draw_panel(axes, panel)
    return figure


def new_figure(
    title: str, legend: Sequence[Entry], panel_titles: Sequence[str], columns: int, panel_inches: Size
) -> tuple[Figure, list[Axes]]:
    """Return a figure with empty panels, row by row; its title and legend stand in the head.

    `panel_titles` has one title, perhaps empty, for each panel. The last row may have fewer panels.
    """
    wide, high = panel_inches
    width = LEFT_INCHES + columns * (wide + BETWEEN_INCHES) - BETWEEN_INCHES + RIGHT_INCHES
    legend_rows = _legend_rows(legend, width)
    head = TITLE_INCHES + LEGEND_INCHES * len(legend_rows)
    panel_head = PANEL_TITLE_INCHES if any(panel_titles) else NO_TITLE_INCHES
    row_height = panel_head + high + BOTTOM_INCHES
    rows = math.ceil(len(panel_titles) / columns)
    figure = Figure(figsize=(width, head + rows * row_height), dpi=DOTS_PER_INCH)
    for number, text in enumerate(panel_titles):
        row, column = divmod(number, columns)
        left = LEFT_INCHES + column * (wide + BETWEEN_INCHES)
        _add_panel(figure, (left, head + row * row_height + panel_head), panel_inches, text)
    _draw_title(figure, title)
    _draw_legend(figure, legend_rows)
    return figure, figure.axes


def columns_for(panels: int) -> int:
    """Return how many panels stand side by side."""
    return {1: 1, 2: 2, 4: 2}.get(panels, 3)


def legend_line(series: DrawnSeries, width: float) -> Line2D:
    """Return a series' entry in a legend, its name cut to this many inches."""
    return median_line(series, [], [], label=shortened(series.name, width))


def _add_panel(figure: Figure, corner: Size, panel_inches: Size, title: str) -> None:
    """Add axes whose upper left corner is at these inches from that of the figure."""
    width, height = figure.get_size_inches()
    left, top = corner
    wide, high = panel_inches
    axes = figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))
    axes.set_title(shortened(title, wide), size=TEXT_POINTS, color=INK, pad=8)


def _draw_title(figure: Figure, title: str) -> None:
    width, height = figure.get_size_inches()
    text = shortened(title, width - 2 * MARGIN_INCHES, 11)
    figure.text(MARGIN_INCHES / width, 1 - 0.24 / height, text, size=TITLE_POINTS, weight="bold")


def _draw_legend(figure: Figure, rows: Sequence[Sequence[Entry]]) -> None:
    width, height = figure.get_size_inches()
    for number, entries in enumerate(rows):
        figure.legend(
            handles=[_handle(entry, width - 0.9) for entry in entries],
            loc="upper left",
            bbox_to_anchor=(MARGIN_INCHES / width, 1 - (TITLE_INCHES + LEGEND_INCHES * number) / height),
            ncols=len(entries),
            frameon=False,
            handlelength=2.6,
            borderpad=0,
            borderaxespad=0,
            columnspacing=1.6,
        )


def _handle(entry: Entry, width: float) -> Line2D | Patch:
    if isinstance(entry, DrawnSeries):
        return legend_line(entry, width)
    return Patch(facecolor=entry.colour, edgecolor=MUTED, linewidth=0.4, label=entry.name)


def _legend_rows(legend: Sequence[Entry], width: float) -> list[list[Entry]]:
    """Distribute the entries to as many rows as they need; each name once."""
    rows: list[list[Entry]] = []
    free = 0.0
    for entry in {entry.name: entry for entry in legend}.values():
        needed = HANDLE_INCHES + width_inches(entry.name)
        if not rows or needed > free:
            rows.append([])
            free = width - 2 * MARGIN_INCHES
        rows[-1].append(entry)
        free -= needed
    return rows
