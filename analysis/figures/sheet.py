"""The sheet a chart is drawn on: title and legend in the head, panels of fixed size in rows below."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.figures.looks import INK, MUTED, TEXT_POINTS, PartLook, shortened, width_inches
from analysis.figures.marks import median_line
from analysis.figures.series import Series

LEFT_INCHES, RIGHT_INCHES, BOTTOM_INCHES = 0.7, 0.12, 0.5
BETWEEN_INCHES = 0.78
MARGIN_INCHES = 0.1
Entry = Series | PartLook
TITLE_INCHES, LEGEND_INCHES, PANEL_TITLE_INCHES, NO_TITLE_INCHES = 0.36, 0.25, 0.34, 0.12


def sheet(
    title: str,
    legend: Sequence[Entry],
    panel_titles: Sequence[str],
    columns: int,
    panel: tuple[float, float],
) -> tuple[Figure, list[Axes]]:
    """A figure of panels of this width and height in inches, row by row, with title and legend in the head.

    `panel_titles` has one title, perhaps empty, for each panel. The last row may have fewer panels.
    """
    rows = -(-len(panel_titles) // columns)
    width = LEFT_INCHES + columns * panel[0] + (columns - 1) * BETWEEN_INCHES + RIGHT_INCHES
    legend_rows = _legend_rows(legend, width)
    titled = PANEL_TITLE_INCHES if any(panel_titles) else NO_TITLE_INCHES
    head = TITLE_INCHES + LEGEND_INCHES * len(legend_rows) + titled
    pitch = panel[1] + BOTTOM_INCHES + titled
    height = head + rows * pitch - titled
    figure = Figure(figsize=(width, height), dpi=150)
    for number, text in enumerate(panel_titles):
        row, column = divmod(number, columns)
        left = LEFT_INCHES + column * (panel[0] + BETWEEN_INCHES)
        bottom = height - head - row * pitch - panel[1]
        _panel(figure, (left, bottom, *panel), text)
    _head(figure, title, legend_rows)
    return figure, figure.axes


def columns_for(panels: int) -> int:
    """How many panels stand side by side."""
    return {1: 1, 2: 2, 4: 2}.get(panels, 3)


def legend_line(series: Series, width: float) -> Line2D:
    """A series' entry in a legend, its name cut to this many inches."""
    return median_line(series, [], [], label=shortened(series.name, width))


def _handle(entry: Entry, width: float) -> Line2D | Patch:
    if isinstance(entry, Series):
        return legend_line(entry, width)
    return Patch(facecolor=entry.colour, edgecolor=MUTED, linewidth=0.4, label=entry.name)


def _panel(figure: Figure, inches: tuple[float, float, float, float], title: str) -> None:
    width, height = figure.get_size_inches()
    left, bottom, wide, high = inches
    axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
    axes.set_title(shortened(title, wide), size=TEXT_POINTS, color=INK, pad=8)


def _head(figure: Figure, title: str, legend_rows: Sequence[Sequence[Entry]]) -> None:
    width, height = figure.get_size_inches()
    text = shortened(title, width - 2 * MARGIN_INCHES, 11)
    figure.text(MARGIN_INCHES / width, 1 - 0.24 / height, text, size=10.5, weight="bold")
    for number, drawn in enumerate(legend_rows):
        corner = MARGIN_INCHES / width, 1 - (TITLE_INCHES + LEGEND_INCHES * number) / height
        figure.legend(
            handles=[_handle(entry, width - 0.9) for entry in drawn],
            loc="upper left",
            bbox_to_anchor=corner,
            ncols=len(drawn),
            frameon=False,
            handlelength=2.6,
            borderpad=0,
            borderaxespad=0,
            columnspacing=1.6,
        )


def _legend_rows(legend: Sequence[Entry], width: float) -> list[list[Entry]]:
    """The legend's entries in as many rows as they need; each name once."""
    rows: list[list[Entry]] = []
    room = 0.0
    for series in {each.name: each for each in legend}.values():
        needed = 0.75 + width_inches(series.name)
        if not rows or needed > room:
            rows.append([])
            room = width - 2 * MARGIN_INCHES
        rows[-1].append(series)
        room -= needed
    return rows
