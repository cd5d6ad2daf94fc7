"""What all charts share: their inputs, the frame of a panel, its axes, and the texts in it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from math import ceil
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.assembly.assemble import Report
from analysis.figures.style import (
    LINE_STYLES,
    PX_PER_INCH,
    SERIES_STYLES,
    TITLE_PX,
    Colour,
    FrameworkStyle,
    LineStyle,
    shortened,
    text_width,
)
from analysis.study import NAN, POINT, SERIES, Array, Study, bounded
from analysis.text import Row, chart_number, chart_percent, clean, count, printable, resolved

# More panels and marks than these can no longer be told apart on a page, nor more knobs by their line style.
MOST_OPTIONS = 6
MOST_SINGLE_RUNS = 20
# Two panels stand side by side on a page of 1200 pixels. Their axes are about as wide and high as these.
PANEL_WIDTH_PX = 390
PLOT_WIDTH_PX = 292
PLOT_HEIGHT_PX = 220
MARGIN_PX = 10
# Rows above the axes, the distance to them, and what lies below: ticks and the name of the axis.
TITLE_ROW_PX = 26
TEXT_ROW_PX = 20
HEAD_GAP_PX = 6
FOOT_PX = 52
# The line or patch of a legend's entry with the distances around it.
HANDLE_PX = 58
LEAST_TICK_GAP_PX = 6
# A line of text with some air, and from a line's end to its label, past the bars and runs beside its median.
LABEL_LINE_PX = 16
LABEL_DISTANCE_PX = 24
# Shares of a panel's width between ends whose labels share a column, and of its height that labels may take.
COLUMN_WIDTH = 0.06
LOWEST_LABEL = 0.03
HIGHEST_LABEL = 1.02
# From this ratio of the largest to the smallest worker count on, a linear axis presses small ones together.
WIDE_RATIO = 32
# Share of the worker axis beside the last count: it has room for the bars beside a median.
BESIDE_LAST = 0.05
# Ratios of the ends of a logarithmic axis: below the first its ticks are those of a linear axis, above the
# second they stand at powers of ten only.
LESS_THAN_A_DECADE = 6
SEVERAL_DECADES = 1000
# Share of a logarithmic axis that is free at both of its ends.
BEYOND_ENDS = 0.06
# How the gid of an artist starts that carries the titles of its marks.
TITLES = "titles:"


@dataclass(frozen=True)
class DrawnSeries:
    """One framework with one setting of its knobs, under one set of options: one line of a chart."""

    options: str
    framework: str
    knobs: str
    framework_name: str
    style: FrameworkStyle
    line_style: LineStyle = "-"
    filled: bool = True

    @property
    def name(self) -> str:
        """The name in the legend."""
        return ", ".join(printable(part) for part in (self.framework_name, self.knobs) if part)

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a table that belong to this series, in the order of the workers."""
        if table.empty:
            return table
        own = (table["framework"] == self.framework) & (table["options"] == self.options)
        return table[own & (table["knobs"] == self.knobs)].sort_values("workers", kind="stable")

    def line(self) -> Line2D:
        """Return a line without points in the style of the series, for a legend."""
        return Line2D([], [], label=self.name, **self.look())

    def look(self, **others: object) -> dict[str, Any]:
        """Return the properties of its line with markers; open ones can be seen around filled ones."""
        edge, size = (Colour.PAPER, 1.0) if self.filled else (self.style.colour, 1.3)
        face = self.style.colour if self.filled else Colour.PAPER
        line = {"color": self.style.colour, "linestyle": self.line_style, "linewidth": 2, "zorder": 4}
        marker = {"marker": self.style.marker, "markersize": size * self.style.marker_px}
        return line | marker | {"markerfacecolor": face, "markeredgecolor": edge} | others


def drawn_series(
    table: pd.DataFrame, names: Mapping[Any, str], most_options: int = MOST_OPTIONS
) -> list[DrawnSeries]:
    """Return the series of the first sets of options of a table: native DDP first, at most 4 knobs each."""
    series = []
    for options in table["options"].unique()[:most_options] if len(table) else ():
        for framework, name in names.items():
            own = table[(table["options"] == options) & (table["framework"] == framework)]
            for knobs, line in zip(own["knobs"].unique(), LINE_STYLES, strict=False):
                style = SERIES_STYLES[framework]
                series.append(DrawnSeries(options, framework, knobs, name, style, line))
    return series


@dataclass(frozen=True)
class Inputs:
    """What figures are drawn from: a report, and its points with the intervals that tell something."""

    report: Report

    @property
    def study(self) -> Study:
        """The study of the report."""
        return self.report.study

    @cached_property
    def points(self) -> pd.DataFrame:
        """The points that lines are of."""
        return resolved(self.report.points)

    @cached_property
    def series(self) -> list[DrawnSeries]:
        """The series that are drawn."""
        return drawn_series(self.points, self.study.names)

    @cached_property
    def options(self) -> list[str]:
        """The sets of options that are drawn, one panel each."""
        return list(dict.fromkeys(series.options for series in self.series))

    @cached_property
    def runs(self) -> pd.DataFrame:
        """At most 20 runs of each repeated point, with throughput, speed-up and IoU of each.

        The baseline is that of their point, so that they scatter about its median.
        """
        runs = self.study.runs.assign(throughput=self.study.runs[self.study.throughput])
        runs = runs[[*POINT, "run", "iou", "throughput"]]
        runs = runs[runs.groupby(POINT).cumcount() < MOST_SINGLE_RUNS]
        speedups = ["speedup", "speedup_common"]
        of_point = self.points[[*POINT, "repeats", "throughput", *speedups]]
        runs = runs.merge(of_point, on=POINT, how="left", suffixes=("", "_of_point"))
        runs[speedups] = runs[speedups].mul(runs["throughput"] / runs["throughput_of_point"], axis=0)
        return runs[runs["repeats"] > 1]

    @cached_property
    def undrawn(self) -> str:
        """A sentence on what the tables have and no figure shows; empty where figures show all."""
        in_panels = self.points[self.points["options"].isin(self.options)]
        numbers = {
            "sets of options": self.points["options"].nunique() - len(self.options),
            "settings of knobs": len(in_panels[SERIES].drop_duplicates()) - len(self.series),
        }
        more = [f"{number} more {things}" for things, number in numbers.items() if number]
        return f"Not drawn, but in the tables: {' and '.join(more)}." if more else ""


@dataclass(frozen=True)
class Panel:
    """One chart of a figure.

    title    what is drawn, with its unit
    draw     draws it into empty axes
    options  a second line of the title: the set of options, where several are drawn
    legend   the lines or patches that are told apart
    colour   of the title
    plot_px  height of the axes
    right_px is at least free to their right, so that axes side by side are of one width
    """

    title: str
    draw: Callable[[Axes], None]
    options: str = ""
    legend: Sequence[Line2D | Patch] = ()
    colour: str = Colour.INK
    plot_px: float = PLOT_HEIGHT_PX
    right_px: float = MARGIN_PX

    @property
    def label(self) -> str:
        """Return its title with the options, on one line."""
        return printable(", ".join(filter(None, (self.title, self.options))))

    @property
    def legend_columns(self) -> int:
        """Return how many entries of the legend fit into a row."""
        widths = [text_width(str(entry.get_label())) + HANDLE_PX for entry in self.legend]
        room = PANEL_WIDTH_PX - MARGIN_PX
        columns = range(len(widths), 1, -1)
        fits = (n for n in columns if sum(part.max() for part in np.array_split(widths, n)) <= room)
        return next(fits, 1)

    @property
    def text_rows(self) -> int:
        """Return how many rows its options and its legend take."""
        return bool(self.options) + ceil(len(self.legend) / self.legend_columns)


def on_workers(workers: int) -> str:
    """Return "on 1 worker", "on 4 workers"."""
    return f"on {count(workers, 'worker')}"


def records(rows: pd.DataFrame, column: str) -> list[Row]:
    """Return the rows in which a value is known."""
    return list(rows[rows[column].notna()].to_dict("records")) if len(rows) else []


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One quantity of a table; a panel for each group of its series.

    title   of its panels, with the unit
    y       column of `rows`, with its interval, if any, in `y`_low and `y`_high; other columns are POINT
    series  those drawn
    form    format of the number, ".1%" for shares; `unit` follows the number
    says    what a caption has to say of it
    by      attributes of the series that have a panel of their own
    told    rows that the alternative text tells, and `tells`, what they are; by default each series' last one
    """

    title: str
    rows: pd.DataFrame
    y: str
    series: Sequence[DrawnSeries] = ()
    form: str = ".3g"
    unit: str = ""
    says: str = ""
    by: tuple[str, ...] = ("options",)
    told: pd.DataFrame | None = None
    tells: str = "at the most workers"

    def draw(self, axes: Axes, series: Sequence[DrawnSeries]) -> None:
        """Draw one panel into empty axes."""
        raise NotImplementedError

    @property
    def is_known(self) -> bool:
        """Whether there is anything to draw."""
        return bool(len(self.rows) and self.rows[self.y].notna().any())

    @property
    def sentences(self) -> list[str]:
        """What a caption has to say of it."""
        return [self.says]

    def panels(self) -> list[Panel]:
        """Return the panels, in the order of the series."""
        known = [series for series in self.series if len(series.rows(self.rows))]
        return [self.panel(list(group)) for _, group in groupby(known, attrgetter(*self.by))]

    def panel(self, series: Sequence[DrawnSeries]) -> Panel:
        """Return the panel of some series; that of one framework has its name and its colour."""
        first, draw = series[0], partial(self.draw, series=series)
        legend = [each.line() for each in series]
        if "framework" not in self.by:
            return Panel(self.title, draw, first.options, legend)
        name = first.name if "knobs" in self.by else first.framework_name
        title, colour = f"{name}: {self.title}", first.style.text_colour
        return Panel(title, draw, first.options, legend if len(legend) > 1 else (), colour)

    def number(self, value: float) -> str:
        """Return a value with its unit."""
        if "%" in self.form:
            return chart_percent(value, int(self.form[1:-1]))
        return f"{chart_number(value, self.form)}{self.unit}"

    def value(self, row: Row) -> str:
        """Return the value of a row with its unit and its interval."""
        low, high = (row.get(name, NAN) for name in bounded(self.y)[1:])
        if not low < high:
            return self.number(row[self.y])
        scale, form = (100, f"{self.form[:-1]}f") if "%" in self.form else (1, self.form)
        ends = ", ".join(chart_number(scale * end, form) for end in (low, high))
        return f"{self.number(row[self.y])} [{ends}]"

    def ends(self, rows: pd.DataFrame) -> Array:
        """Return the values of rows with the ends of their intervals, (rows, 3)."""
        return rows.reindex(columns=bounded(self.y)).to_numpy(dtype=np.float64)

    def fact(self, row: Row) -> str:
        """Return what there is to know of a row."""
        return f"{self.value(row)} {on_workers(row['workers'])}"

    def facts(self) -> Iterator[str]:
        """Yield what there is to know of each series, with its options where several sets are drawn."""
        several = len({series.options for series in self.series}) > 1
        for series in self.series:
            name = f"{series.name} ({series.options})" if several and series.options else series.name
            rows = series.rows(self.rows if self.told is None else self.told)
            for row in records(rows, self.y)[-1 if self.told is None else 0 :]:
                yield f"{name} {self.fact(row)}"

    def alternative(self) -> str:
        """Return the key numbers, for those who cannot see the chart."""
        return printable(f"{self.title}, {self.tells}: {'; '.join(self.facts()) or 'nothing is known'}.")


def framed(panel: Panel, text_rows: int) -> Figure:
    """Return a panel as a figure, with room for so many rows of options and legend above its axes."""
    head = TITLE_ROW_PX + TEXT_ROW_PX * text_rows + HEAD_GAP_PX
    width, height = PANEL_WIDTH_PX, head + panel.plot_px + FOOT_PX
    size = (width / PX_PER_INCH, height / PX_PER_INCH)
    pad = MARGIN_PX / PX_PER_INCH
    figure = Figure(size, dpi=PX_PER_INCH, label=panel.label)
    axes = figure.add_subplot()
    panel.draw(axes)
    left, most, top = MARGIN_PX / width, width - 2 * MARGIN_PX, TITLE_ROW_PX
    title = shortened(panel.title, most, px=TITLE_PX, bold=True)
    figure.text(left, 1 - 19 / height, title, size=TITLE_PX, weight="bold", color=panel.colour)
    if panel.options:
        figure.text(left, 1 - (top + 13) / height, shortened(panel.options, most), color=Colour.MUTED)
        top += TEXT_ROW_PX
    if panel.legend:
        names = [shortened(str(entry.get_label()), most - HANDLE_PX) for entry in panel.legend]
        corner = (left, 1 - top / height)
        columns = panel.legend_columns
        figure.legend(list(panel.legend), names, loc="upper left", bbox_to_anchor=corner, ncols=columns)
    # Once: as the figure's own engine it would place them again, with a drawing of its own, for every file.
    ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - head / height), w_pad=pad, h_pad=pad / 2).execute(figure)
    place = axes.get_position()
    place.x1 = min(place.x1, 1 - panel.right_px / width)
    axes.set_position(place)
    return figure


def title_marks(artist: Artist, titles: Iterable[str]) -> None:
    """Name the marks of an artist that have a place, in the order drawn; one text names the whole artist.

    A browser shows them beside the pointer. They are in the gid, which becomes the id of a group in an SVG.
    """
    artist.set_gid(TITLES + json.dumps([clean(title) for title in titles]))


def is_wide(counts: Sequence[int]) -> bool:
    """Return whether the worker counts span so much that their axis is logarithmic."""
    return counts[-1] >= WIDE_RATIO * counts[0]


def worker_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Set up the axis of workers: ticks where something was measured; from zero, or logarithmic."""
    axes.set_xlabel("workers")
    if is_wide(counts):
        axes.set_xscale("log", base=2)
        span = counts[-1] / counts[0]
        axes.set_xlim(counts[0] / span**BESIDE_LAST, counts[-1] * span**BESIDE_LAST)
    else:
        axes.set_xlim(0, (1 + BESIDE_LAST) * counts[-1])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(spaced(axes, counts))
    axes.xaxis.set_major_formatter(FuncFormatter(tick_text))


def spaced(axes: Axes, counts: Sequence[int]) -> list[int]:
    """Return the worker counts without those whose labels would touch; the largest stays."""
    kept: list[int] = []
    last = np.inf
    for workers in reversed(counts):
        x = PLOT_WIDTH_PX * in_panel(axes, workers, 1.0)[0]
        if last - x >= text_width(tick_text(workers)) + LEAST_TICK_GAP_PX:
            kept.append(workers)
            last = x
    return kept[::-1]


def value_axis(
    axes: Axes,
    which: Literal["x", "y"],
    values: Array,
    *,
    log: bool = False,
    least_top: float = 0.0,
    percent: bool = False,
) -> None:
    """Set up an axis that holds all values.

    It is linear, contains zero and goes at least to `least_top`; or it is logarithmic. `percent`: its values
    are shares.
    """
    known = values[np.isfinite(values)]
    if log:
        known = known[known > 0]
        low, high = float(known.min()), float(known.max())
        span = max(high / low, 1.5)
        limits = (low / span**BEYOND_ENDS, high * span**BEYOND_ENDS)
        ticks = (1.0,) if span > SEVERAL_DECADES else (1.0, 2.0, 5.0)
        near = MaxNLocator(5, steps=[1, 2, 5, 10])
        locator = near if span < LESS_THAN_A_DECADE else LogLocator(subs=ticks)
    else:
        bottom, top = 1.15 * known.min(initial=0.0), max(1.08 * known.max(initial=0.0), least_top)
        limits = (bottom, top if top > bottom else 1.0)
        locator = MaxNLocator(7, steps=[1, 2, 5, 10])
    axes.set(**{f"{which}scale": "log" if log else "linear", f"{which}lim": limits})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: tick_text(100 * value) + " %" if percent else tick_text(value))
    )


def tick_text(value: float, _position: object = None) -> str:
    """Return a tick's number: no exponent, thousands apart, a true minus sign."""
    return f"{value + 0.0:,.10g}".replace("-", "\N{MINUS SIGN}")


def in_panel(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Return the position of a point in data coordinates as shares of the panel's width and height."""
    position = axes.transLimits.transform(axes.transScale.transform((x, y)))
    return float(position[0]), float(position[1])


@dataclass(frozen=True)
class Label:
    """A text at a point in data coordinates; values of series are bold, guides are not."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = True


def write(
    axes: Axes,
    label: Label,
    offset_px: tuple[float, float],
    *,
    coordinates: tuple[str, str] = ("data", "data"),
) -> None:
    """Write a label this far from its point, outlined in the colour of the paper.

    It begins or ends there, or has it in its middle; `coordinates` are what x and y are given in.
    """
    right, up = offset_px
    axes.annotate(
        label.text,
        (label.x, label.y),
        offset_px,
        xycoords=coordinates,
        textcoords="offset points",
        ha="center" if right == 0 else "left" if right > 0 else "right",
        va="center" if up == 0 else "bottom" if up > 0 else "top",
        color=label.colour,
        weight="bold" if label.bold else "normal",
        path_effects=[patheffects.withStroke(linewidth=3, foreground=Colour.PAPER)],
        annotation_clip=False,
        zorder=5,
    )


def end_labels(axes: Axes, labels: Sequence[Label]) -> None:
    """Write texts to the right of their points, moved apart where they would touch, inside the panel.

    Labels at about the same x are a column; their heights are the nearest that are a line apart.
    """
    from scipy import optimize  # type: ignore[import-untyped]  # only now: it takes long to import

    columns: dict[int, list[tuple[float, int, Label]]] = {}
    # In reverse, so that of labels at the same height the first stands above the others.
    for number, label in enumerate(reversed(labels)):
        x, height = in_panel(axes, label.x, label.y)
        columns.setdefault(round(x / COLUMN_WIDTH), []).append((height, number, label))
    for column in map(sorted, columns.values()):
        steps = LABEL_LINE_PX / PLOT_HEIGHT_PX * np.arange(len(column))
        wanted = np.array([height for height, *_ in column])
        nearest = optimize.isotonic_regression(wanted - steps).x
        heights = nearest.clip(LOWEST_LABEL, HIGHEST_LABEL - steps[-1]) + steps
        for height, (*_, label) in zip(heights, column, strict=True):
            at = replace(label, y=float(height))
            write(axes, at, (LABEL_DISTANCE_PX, 0), coordinates=("data", "axes fraction"))
