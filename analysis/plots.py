"""Pictures of a study: tables in, figure out. The only module that draws."""

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from analysis.intervals import coverage
from analysis.load import Study
from analysis.looks import DASHED, LINE_STYLES, LOOKS, MUTED, PANEL_INCHES, STYLE, LineStyle, Look
from analysis.speedup import runs_with_speedup
from analysis.verdict import NAMES, Verdict

LEFT, RIGHT = 0.045, 0.972
HEAD_INCHES, FOOT_INCHES = 1.12, 0.84


@dataclass(frozen=True)
class Panel:
    """One quantity over the workers: a column of the points and of the runs."""

    title: str
    column: str
    form: str

    def text(self, point: "pd.Series[float]") -> str:
        """A point's value as a label: three digits and no exponent; beside a speed-up its efficiency."""
        value = float(point[self.column])
        text = f"{value:.0f}" if value >= 100 else format(value, self.form)
        return f"{text} ({100 * point['efficiency']:.0f} %)" if self.column == "speedup" else text


@dataclass(frozen=True)
class Series:
    """One framework with one setting of its knobs: what a line shows."""

    name: str
    look: Look
    line_style: LineStyle
    points: pd.DataFrame
    runs: pd.DataFrame


def scaling_figure(study: Study, points: pd.DataFrame, verdicts: Sequence[Verdict]) -> Figure:
    """Speed-up, throughput and IoU over the workers; one row of panels for each set of options.

    `points` is the table of `summarise`. Each run is a small point behind the median of its point;
    bars are intervals, where the table has them.
    """
    runs = runs_with_speedup(study)
    every_options = list(dict.fromkeys(points["options"]))
    width, height = 3 * PANEL_INCHES[0], PANEL_INCHES[1] * len(every_options) + HEAD_INCHES + 0.2
    legend: dict[str, Series] = {}
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=150)
        rows = figure.subplots(len(every_options), 3, squeeze=False)
        top, bottom = 1 - HEAD_INCHES / height, FOOT_INCHES / height
        figure.subplots_adjust(left=LEFT, right=RIGHT, top=top, bottom=bottom, wspace=0.2, hspace=0.5)
        for row, options in zip(rows, every_options, strict=True):
            drawn = [series for series in _series(points, runs, options) if len(series.points)]
            _draw_row(row, _panels(study), drawn)
            row[0].annotate(options, (0, 1.15), xycoords="axes fraction", weight="bold", color=MUTED)
            legend |= {series.name: series for series in drawn}
        _head(figure, study, verdicts)
        _legend(figure, list(legend.values()))
        figure.text(LEFT, 0.14 / height, _caption(study, points), color=MUTED, size=8.5, linespacing=1.45)
    return figure


def picture(figure: Figure, file_format: str) -> bytes:
    """The figure as a file's content, "svg" or "png"; the same figure always gives the same bytes."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else {}
    with rc_context(STYLE):
        figure.savefig(buffer, format=file_format, metadata=metadata, facecolor="white")
    return buffer.getvalue()


def _panels(study: Study) -> tuple[Panel, ...]:
    return (
        Panel("Speed-up over 1 worker (efficiency)", "speedup", ".2f"),
        Panel(f"Throughput, {study.unit}", "throughput", ".3g"),
        Panel(f"IoU, {study.iou_scope}", "iou", ".3f"),
    )


def _series(points: pd.DataFrame, runs: pd.DataFrame, options: str) -> Iterator[Series]:
    """Every line of a row of panels; the knob settings of a framework differ in line style."""
    point_here, run_here = points["options"] == options, runs["options"] == options
    for framework, name in NAMES.items():
        knobs = dict.fromkeys(points.loc[points["framework"] == framework, "knobs"])
        for number, knob in enumerate(knobs):
            yield Series(
                name=f"{name}, {knob}" if knob else name,
                look=LOOKS[framework],
                line_style=LINE_STYLES[number % len(LINE_STYLES)],
                points=points[point_here & (points["framework"] == framework) & (points["knobs"] == knob)],
                runs=runs[run_here & (runs["framework"] == framework) & (runs["knobs"] == knob)],
            )


def _draw_row(row: Sequence[Axes], panels: Sequence[Panel], drawn: Sequence[Series]) -> None:
    workers = sorted({int(count) for series in drawn for count in series.points["workers"]})
    for axes, panel in zip(row, panels, strict=True):
        axes.set_title(panel.title)
        axes.set_xlabel("workers")
        axes.set_xticks(_ticks(workers))
        axes.set_xlim(0, (1.38 if panel.column == "speedup" else 1.2) * workers[-1])
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        if panel.column == "speedup":
            axes.set_yticks([0, *_ticks(workers)])
            axes.plot(
                [0, workers[-1]], [0, workers[-1]], color=MUTED, linewidth=1, linestyle=DASHED, zorder=1
            )
        for series, shift in zip(drawn, _shifts(len(drawn), workers[-1]), strict=True):
            _draw_series(axes, panel, series, shift)
        axes.set_ylim(0, _upper_limit(panel, drawn, workers[-1]))
        _end_labels(axes, panel, drawn, workers[-1])


def _ticks(workers: Sequence[int]) -> list[int]:
    """The worker counts that were measured, without those whose labels would touch."""
    kept: list[int] = []
    for count in reversed(workers):
        if not kept or kept[-1] - count >= 0.05 * workers[-1]:
            kept.append(count)
    return kept[::-1]


def _shifts(series: int, largest: int) -> list[float]:
    """Sideways steps, in workers: runs and intervals stand beside the medians, which stay in place."""
    return [0.05 * largest * (number / (series - 1) - 0.5) if series > 1 else 0.0 for number in range(series)]


def _draw_series(axes: Axes, panel: Panel, series: Series, shift: float) -> None:
    look, points = series.look, series.points
    runs = series.runs if (points["repeats"] > 1).any() else series.runs.iloc[:0]
    axes.scatter(
        runs["workers"] + shift,
        runs[panel.column],
        s=0.3 * look.points**2,
        color=look.colour,
        marker=look.marker,
        alpha=0.35,
        linewidths=0,
        zorder=2,
    )
    known = points[points[f"{panel.column}_low"] < points[f"{panel.column}_high"]]
    low, high = known[f"{panel.column}_low"], known[f"{panel.column}_high"]
    axes.vlines(known["workers"] + shift, low, high, color=look.colour, linewidth=1.3, alpha=0.8, zorder=3)
    axes.add_line(_line(series, points["workers"], points[panel.column]))


def _line(series: Series, workers: ArrayLike, values: ArrayLike) -> Line2D:
    """A series' line through its medians, in the panels and, without any, in the legend."""
    return Line2D(
        np.asarray(workers),
        np.asarray(values),
        color=series.look.colour,
        linestyle=series.line_style,
        linewidth=1.5,
        marker=series.look.marker,
        markersize=series.look.points,
        markeredgecolor="white",
        markeredgewidth=0.8,
        label=series.name,
        zorder=4,
    )


def _upper_limit(panel: Panel, drawn: Sequence[Series], largest: int) -> float:
    """Axes start at zero; an IoU's ends at 1, a speed-up's not below the ideal."""
    if panel.column == "iou":
        return 1.04
    of_points = [series.points[[panel.column, f"{panel.column}_high"]].to_numpy().ravel() for series in drawn]
    of_runs = [series.runs[panel.column].to_numpy() for series in drawn]
    highest = max([float(value) for value in np.concatenate(of_points + of_runs) if value > 0], default=1.0)
    return 1.1 * (max(highest, largest) if panel.column == "speedup" else highest)


def _end_labels(axes: Axes, panel: Panel, drawn: Sequence[Series], largest: int) -> None:
    """The value of each line's last point beside it, pushed apart where two would touch."""
    last = [(series.points.iloc[-1], series.look.colour) for series in drawn]
    labels = [
        (float(row[panel.column]), row["workers"], panel.text(row), colour)
        for row, colour in last
        if not np.isnan(row[panel.column])
    ]
    if not labels:
        axes.text(0.68, 0.3, "not known", transform=axes.transAxes, color=MUTED, ha="center")
    if panel.column == "speedup":
        labels.append((float(largest), largest, "ideal", MUTED))
    height = -np.inf
    for value, workers, text, colour in sorted(labels):
        height = max(value, height + 0.062 * axes.get_ylim()[1])
        place = (workers + 0.045 * largest, height)
        axes.text(*place, text, color=colour, va="center", weight="normal" if text == "ideal" else "bold")


def _head(figure: Figure, study: Study, verdicts: Sequence[Verdict]) -> None:
    height = figure.get_figheight()
    figure.text(LEFT, 1 - 0.34 / height, f"U-Net scaling: {study.name}", size=13.5, weight="bold")
    if len(verdicts) == 1:
        sentence = str(verdicts[0])
        figure.text(LEFT, 1 - 0.62 / height, sentence[:1].upper() + sentence[1:], size=10, color=MUTED)


def _legend(figure: Figure, drawn: Sequence[Series]) -> None:
    figure.legend(
        handles=[_line(series, [], []) for series in drawn],
        loc="upper right",
        bbox_to_anchor=(RIGHT + 0.004, 1 - 0.1 / figure.get_figheight()),
        ncols=len(drawn),
        frameon=False,
        handlelength=2.6,
        fontsize=10.5,
        columnspacing=1.8,
    )


def _caption(study: Study, points: pd.DataFrame) -> str:
    counts = study.runs["framework"].value_counts()
    runs = ", ".join(
        f"{counts[framework]} {name}" for framework, name in NAMES.items() if framework in counts
    )
    fewest, most = int(points["repeats"].min()), int(points["repeats"].max())
    repeats = f"{most}" if fewest == most else f"{fewest} to {most}"
    parts = [f"{len(study.runs)} runs ({runs}), {repeats} per point."]
    if most > 1:
        parts.append("Small marks: single runs; large: their median.")
    parts.append(_bars(points.loc[points["throughput_low"].notna(), "repeats"]))
    parts.append("All axes start at zero.")
    return "\n".join(textwrap.wrap(" ".join(parts), 190))


def _bars(repeats: "pd.Series[int]") -> str:
    """What the bars are worth: for few repeats that is less than 95 %."""
    if repeats.empty:
        return "No intervals: they need 3 runs."
    return f"Bars: {100 * coverage(int(repeats.min())):.0f} % bootstrap intervals over the runs."
