"""Training curves, a panel per framework and set of options: the chart of three figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.axes import from_zero, in_panel, logarithmic, whole_numbers_from_zero
from analysis.figures.drawing.captions import alternative_text, facts_of_series, on_workers
from analysis.figures.drawing.curves import MOST_RUN_CURVES, Curves, counts_drawn
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.labels import Label, end_labels, tip_labels
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.style import DASHED, MUTED
from analysis.figures.drawing.titles import title_marks
from analysis.study import NAN
from analysis.text import chart_number
from unet_scaling.study.config import Framework

# Opacity of the line of the fewest workers; that of the most is opaque.
FAINTEST = 0.35
# Share of a panel's height within which two lines end at the same place.
SAME_HEIGHT = 0.02
# Worker counts that a merged label lists; more become a range.
_MOST_LISTED = 2
# Lines of more steps than this have no markers.
MOST_MARKED_STEPS = 12
TIME_SENTENCE = "Time is training time, the warm-up included."


@dataclass(frozen=True)
class CurveChart:
    """What is drawn against what: columns of a table with one row per run and step.

    `log_y` makes both axes logarithmic, for a quantity that falls by much; else it starts at zero. `target`
    is a value with a line of its own.
    """

    title: str
    x: str
    y: str
    x_label: str
    log_x: bool
    log_y: bool
    least_top: float = 0.0
    target: float = NAN


def curve_panels(inputs: Inputs, chart: CurveChart, curves: Curves) -> list[Panel]:
    """Return a panel for each framework and set of options, with one line per point."""
    return [_panel(chart, panel, curves) for panel in _panels(inputs, curves.medians)]


def _panel(chart: CurveChart, panel: Sequence[DrawnSeries], curves: Curves) -> Panel:
    first = panel[0]

    def draw(axes: Axes) -> None:
        _set_axes(axes, chart, curves.of(first.options))
        _draw_panel(axes, chart, panel, curves)

    title = f"{first.framework_name}: {chart.title}"
    legend = panel if len(panel) > 1 else ()
    return Panel(title, draw, first.options, legend, first.style.text_colour)


def curve_sentence(inputs: Inputs) -> str:
    """Return what the lines of training curves are."""
    repeated = int(inputs.points["repeats"].max()) > 1
    thin = f"; thin: its runs, at most {MOST_RUN_CURVES}" if repeated else ""
    return f"Numbers: workers. Thick: the median over the runs of a point{thin}."


def undrawn_counts_sentence(inputs: Inputs) -> str:
    """Return a sentence where not every worker count of a series has a curve; else nothing."""
    undrawn = any(
        len(counts_drawn(inputs, series.options, series.framework))
        < series.rows(inputs.points)["workers"].nunique()
        for series in inputs.series
    )
    return "Not every worker count is drawn." if undrawn else ""


def curve_alternative(opening: str, inputs: Inputs, column: str) -> str:
    """Return the opening with the median of a column of the runs of each series at its most workers."""
    return alternative_text(
        f"{opening} at the most workers",
        facts_of_series(inputs, lambda series: _last_median(series.rows(inputs.study.runs), column)),
    )


def _last_median(runs: pd.DataFrame, column: str) -> Iterator[str]:
    workers = runs["workers"].max()
    values = runs.loc[runs["workers"] == workers, column].dropna()
    if len(values):
        yield f"{chart_number(float(values.median()))} {on_workers(int(workers))}"


def _panels(inputs: Inputs, table: pd.DataFrame) -> list[list[DrawnSeries]]:
    """Return the series of each set of options and framework that has rows in a table."""
    panels: dict[tuple[str, Framework], list[DrawnSeries]] = {}
    for series in inputs.series:
        same = (table["options"] == series.options) & (table["framework"] == series.framework)
        if same.any():
            panels.setdefault((series.options, series.framework), []).append(series)
    return list(panels.values())


def _set_axes(axes: Axes, chart: CurveChart, table: pd.DataFrame) -> None:
    """Set up axes for both frameworks of one set of options alike."""
    x = table[chart.x].to_numpy(dtype=np.float64)
    y = table[chart.y].to_numpy(dtype=np.float64)
    axes.set_xlabel(chart.x_label)
    if chart.log_x:
        logarithmic(axes, "x", x)
    elif chart.x == "trained":
        whole_numbers_from_zero(axes, "x", x)
    else:
        from_zero(axes, "x", x)
    if chart.log_y:
        logarithmic(axes, "y", y, below=0.14)
    else:
        from_zero(axes, "y", y, least_top=chart.least_top)


def _draw_panel(axes: Axes, chart: CurveChart, panel: Sequence[DrawnSeries], curves: Curves) -> None:
    if np.isfinite(chart.target):
        _draw_target(axes, chart.target)
    labels = [label for series in panel for label in _draw_series(axes, chart, series, curves)]
    if chart.x == "trained":
        end_labels(axes, _merged(axes, labels))
    else:
        tip_labels(axes, labels, below=chart.y == "loss")


def _draw_series(axes: Axes, chart: CurveChart, series: DrawnSeries, curves: Curves) -> Iterator[Label]:
    """Draw a line for every point, with its runs thin; more workers are drawn stronger."""
    runs = series.rows(curves.runs)
    points = list(series.rows(curves.medians).groupby("workers"))
    for number, (workers, median) in enumerate(points, start=1):
        alpha = FAINTEST + (1 - FAINTEST) * number / len(points)
        _draw_runs(axes, chart, series, runs[runs["workers"] == workers], alpha)
        _draw_median(axes, chart, series, median, alpha)
        yield from _tip(chart, series, median)


def _draw_target(axes: Axes, target: float) -> None:
    axes.axhline(target, color=MUTED, linewidth=1.2, linestyle=DASHED, zorder=1)
    text = f"target {chart_number(target, '.2f')}"
    across = ("axes fraction", "data")
    axes.annotate(text, (0.01, target), (0, 4), xycoords=across, textcoords="offset points", color=MUTED)


def _tip(chart: CurveChart, series: DrawnSeries, median: pd.DataFrame) -> Iterator[Label]:
    """Yield the label of the last step at which the quantity is known."""
    last = median[median[chart.y].notna()].tail(1)
    for x, y, workers in zip(last[chart.x], last[chart.y], last["workers"], strict=True):
        yield Label(float(x), float(y), str(workers), series.style.text_colour)


def _draw_runs(axes: Axes, chart: CurveChart, series: DrawnSeries, runs: pd.DataFrame, alpha: float) -> None:
    colour = series.style.colour
    for name, run in runs.groupby("run"):
        (line,) = axes.plot(
            run[chart.x], run[chart.y], color=colour, linewidth=0.8, alpha=0.4 * alpha, zorder=2
        )
        title_marks(line, [str(name)])


def _draw_median(
    axes: Axes, chart: CurveChart, series: DrawnSeries, median: pd.DataFrame, alpha: float
) -> None:
    workers = median["workers"].iloc[0]
    (line,) = axes.plot(
        median[chart.x],
        median[chart.y],
        color=series.style.colour,
        linestyle=series.line_style,
        linewidth=2,
        alpha=alpha,
        label=f"{series.name}, {workers}",
        marker=series.style.marker if len(median) <= MOST_MARKED_STEPS else None,
        markersize=4,
        zorder=3,
    )
    title_marks(line, [f"{series.name} {on_workers(workers)}: the median of its runs"])


def _merged(axes: Axes, labels: Sequence[Label]) -> list[Label]:
    """Return one label for lines that end at the same height, as the losses of equal training do."""
    groups: dict[int, list[Label]] = {}
    for label in labels:
        groups.setdefault(round(in_panel(axes, label.x, label.y)[1] / SAME_HEIGHT), []).append(label)
    return [replace(group[0], text=_counts_text(group)) for group in groups.values()]


def _counts_text(group: Sequence[Label]) -> str:
    counts = sorted({int(label.text) for label in group})
    return ", ".join(map(str, counts)) if len(counts) <= _MOST_LISTED else f"{counts[0]} to {counts[-1]}"
