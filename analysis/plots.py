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

from analysis.load import Study
from analysis.looks import DASHED, LINE_STYLES, LOOKS, MUTED, PANEL_INCHES, STYLE, LineStyle, Look
from analysis.speedup import SERIES
from analysis.verdict import NAMES, Verdict

LEFT, RIGHT = 0.045, 0.972
HEAD_INCHES, FOOT_INCHES = 1.12, 0.92


@dataclass(frozen=True)
class Panel:
    """One quantity over the workers: a column of the points and of the runs."""

    title: str
    column: str
    form: str


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
    runs = _with_speedup(study)
    every_options = list(dict.fromkeys(points["options"]))
    width, height = 3 * PANEL_INCHES[0], PANEL_INCHES[1] * len(every_options) + HEAD_INCHES + 0.2
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=150)
        rows = figure.subplots(len(every_options), 3, squeeze=False)
        top, bottom = 1 - HEAD_INCHES / height, FOOT_INCHES / height
        figure.subplots_adjust(left=LEFT, right=RIGHT, top=top, bottom=bottom, wspace=0.2, hspace=0.5)
        for row, options in zip(rows, every_options, strict=True):
            drawn = list(_series(points[points["options"] == options], runs[runs["options"] == options]))
            _draw_row(row, _panels(study), drawn)
            row[0].annotate(options, (0, 1.15), xycoords="axes fraction", weight="bold", color=MUTED)
        _head(figure, study, verdicts)
        _legend(figure, drawn)
        figure.text(LEFT, 0.1 / height, _caption(study, points), color=MUTED, size=8.5, linespacing=1.45)
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
        Panel("Speed-up over 1 worker", "speedup", ".2f"),
        Panel(f"Throughput, {study.unit}", "throughput", ".3g"),
        Panel(f"IoU, {study.iou_scope}", "iou", ".3f"),
    )


def _with_speedup(study: Study) -> pd.DataFrame:
    """The runs with the throughput of each, and its speed-up over the median of the 1-worker runs."""
    runs = study.runs.assign(throughput=study.runs[study.throughput])
    alone = runs[runs["workers"] == 1].groupby(SERIES)["throughput"].median().rename("baseline")
    runs = runs.join(alone, on=SERIES)
    return runs.assign(speedup=runs["throughput"] / runs["baseline"])


def _series(points: pd.DataFrame, runs: pd.DataFrame) -> Iterator[Series]:
    """Every line of a row of panels; the knob settings of a framework differ in line style."""
    for framework, name in NAMES.items():
        knobs = dict.fromkeys(points.loc[points["framework"] == framework, "knobs"])
        for number, knob in enumerate(knobs):
            yield Series(
                name=f"{name}, {knob}" if knob else name,
                look=LOOKS[framework],
                line_style=LINE_STYLES[number % len(LINE_STYLES)],
                points=points[(points["framework"] == framework) & (points["knobs"] == knob)],
                runs=runs[(runs["framework"] == framework) & (runs["knobs"] == knob)],
            )


def _draw_row(row: Sequence[Axes], panels: Sequence[Panel], drawn: Sequence[Series]) -> None:
    workers = sorted({int(count) for series in drawn for count in series.points["workers"]})
    for axes, panel in zip(row, panels, strict=True):
        axes.set_title(panel.title)
        axes.set_xlabel("workers")
        axes.set_xticks(_ticks(workers))
        axes.set_xlim(0, 1.17 * workers[-1])
        if panel.column == "speedup":
            _ideal(axes, workers[-1])
        for series in drawn:
            _draw_series(axes, panel, series)
        axes.set_ylim(0, _upper_limit(panel, drawn, workers[-1]))
        _end_labels(axes, panel, drawn)


def _ticks(workers: Sequence[int]) -> list[int]:
    """The worker counts that were measured, without those whose labels would touch."""
    kept: list[int] = []
    for count in reversed(workers):
        if not kept or kept[-1] - count >= 0.05 * workers[-1]:
            kept.append(count)
    return kept[::-1]


def _ideal(axes: Axes, largest: int) -> None:
    axes.plot([0, largest], [0, largest], color=MUTED, linewidth=1, linestyle=DASHED, zorder=1)
    place: dict[str, object] = {"rotation_mode": "anchor", "transform_rotates_text": True, "va": "bottom"}
    middle = 0.5 * largest
    axes.text(middle, 1.03 * middle, "ideal", color=MUTED, size=8.5, rotation=45, ha="center", **place)


def _draw_series(axes: Axes, panel: Panel, series: Series) -> None:
    look, points, runs = series.look, series.points, series.runs
    small = {"markersize": 0.7 * look.points, "alpha": 0.3, "markeredgewidth": 0, "linestyle": "none"}
    axes.plot(runs["workers"], runs[panel.column], color=look.colour, marker=look.marker, zorder=2, **small)
    known = points[points[f"{panel.column}_low"] < points[f"{panel.column}_high"]]
    low, high = known[f"{panel.column}_low"], known[f"{panel.column}_high"]
    axes.vlines(known["workers"], low, high, color=look.colour, linewidth=1.8, zorder=3)
    axes.add_line(_line(series, points["workers"], points[panel.column]))


def _line(series: Series, workers: Sequence[float], values: Sequence[float]) -> Line2D:
    """A series' line through its medians, in the panels and, without any, in the legend."""
    return Line2D(
        workers,
        values,
        color=series.look.colour,
        linestyle=series.line_style,
        linewidth=1.6,
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
    columns = [series.points[[panel.column, f"{panel.column}_high"]] for series in drawn]
    values = np.concatenate([column.to_numpy().ravel() for column in columns])
    highest = max([float(value) for value in values if value > 0], default=1.0)
    return 1.08 * max(highest, largest) if panel.column == "speedup" else 1.12 * highest


def _end_labels(axes: Axes, panel: Panel, drawn: Sequence[Series]) -> None:
    """The value of each line's last point beside it, pushed apart where two would touch."""
    last = [(series.points.iloc[-1], series.look.colour) for series in drawn]
    known = [(row[panel.column], row["workers"], colour) for row, colour in last if row[panel.column] > 0]
    height = -np.inf
    for value, workers, colour in sorted(known):
        height = max(value, height + 0.065 * axes.get_ylim()[1])
        offset: dict[str, object] = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(format(value, panel.form), (workers, height), color=colour, weight="bold", **offset)
    if not known:
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, color=MUTED, ha="center")


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
    runs = ", ".join(f"{counts[framework]} {name}" for framework, name in NAMES.items() if framework in counts)
    fewest, most = int(points["repeats"].min()), int(points["repeats"].max())
    repeats = f"{most}" if fewest == most else f"{fewest} to {most}"
    parts = [f"{len(study.runs)} runs ({runs}), {repeats} per point."]
    if most > 1:
        parts.append("Small marks: single runs; large: their median.")
    known = points["throughput_low"].notna().any()
    parts.append("Bars: 95 % bootstrap intervals over the runs." if known else "No intervals: they need 3 runs.")
    parts.append("A worker is one process with a device of its own. All axes start at zero.")
    return "\n".join(textwrap.wrap(" ".join(parts), 170))
