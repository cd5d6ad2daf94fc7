"""Time against worker-hours: what a faster run costs, and the points that no other beats in both."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.axes import from_zero, logarithmic
from analysis.figures.looks import MUTED, PAPER
from analysis.figures.marks import halo
from analysis.figures.over_workers import FACET, SINGLE_PANEL
from analysis.figures.series import Inputs, Series
from analysis.figures.sheet import columns_for, sheet

SECONDS_PER_HOUR = 3600
LOGARITHMIC_FROM = 4
TO_TARGET = ("seconds_to_target", "worker_hours_to_target")
OF_A_RUN = ("training_seconds", "worker_hours")


@dataclass(frozen=True)
class Clock:
    """A unit that keeps the numbers of an axis small."""

    name: str
    per_second: float


def cost_figure(inputs: Inputs) -> Figure:
    """Hours against worker-hours, each mark labelled with its workers; the Pareto set filled and joined."""
    every = inputs.options
    of = {options: _time_of(inputs, options) for options in every}
    same = len(set(of.values())) == 1
    titles = list(every) if same else [": ".join(filter(None, (options, of[options]))) for options in every]
    legend = [series for options in every for series in inputs.series(options)]
    size = SINGLE_PANEL if len(every) == 1 else FACET
    title = f"Time against cost: {of[every[0]]}" if same else "Time against cost"
    figure, panels = sheet(title, legend, titles, columns_for(len(every)), size)
    for axes, options in zip(panels, every, strict=True):
        _draw(axes, inputs, options)
    return figure


def cost_rows(inputs: Inputs, options: str) -> pd.DataFrame:
    """The points of one set of options by the time that its Pareto set is of.

    Columns added: `seconds`, `hours` (worker-hours), each with `_low` and `_high`.
    """
    rows = inputs.cost[inputs.cost["options"] == options]
    if not rows["pareto_of"].str.endswith("of one epoch").all():
        seconds, hours = TO_TARGET if rows[TO_TARGET[0]].notna().all() else OF_A_RUN
        return rows.assign(
            **{f"seconds{end}": rows[f"{seconds}{end}"] for end in ("", "_low", "_high")},
            **{f"hours{end}": rows[f"{hours}{end}"] for end in ("", "_low", "_high")},
        )
    hours_each = rows["worker_hours_per_epoch"]
    unknown = dict.fromkeys(("seconds_low", "seconds_high", "hours_low", "hours_high"), np.nan)
    return rows.assign(seconds=hours_each / rows["workers"] * SECONDS_PER_HOUR, hours=hours_each, **unknown)


def _time_of(inputs: Inputs, options: str) -> str:
    return str(inputs.cost.loc[inputs.cost["options"] == options, "pareto_of"].iloc[0])


def _draw(axes: Axes, inputs: Inputs, options: str) -> None:
    rows = cost_rows(inputs, options)
    time = _clock(rows["seconds"])
    worker = _clock(rows["hours"] * SECONDS_PER_HOUR)
    rows = _scaled(_scaled(rows, "seconds", time.per_second), "hours", worker.per_second * SECONDS_PER_HOUR)
    _axes(axes, rows, time, worker)
    front = rows[rows["pareto"]].sort_values("hours")
    axes.plot(
        front["hours"],
        front["seconds"],
        color=MUTED,
        linewidth=7,
        alpha=0.2,
        zorder=1,
        solid_capstyle="round",
    )
    for series in inputs.series(options):
        _draw_series(axes, series, series.of(rows).sort_values("workers"))


def _axes(axes: Axes, rows: pd.DataFrame, time: Clock, worker: Clock) -> None:
    axes.set_xlabel(f"worker-{worker.name}")
    axes.set_ylabel(time.name)
    x = rows[["hours", "hours_low", "hours_high"]].to_numpy(dtype=np.float64).ravel()
    y = rows[["seconds", "seconds_low", "seconds_high"]].to_numpy(dtype=np.float64).ravel()
    if rows["seconds"].max() >= LOGARITHMIC_FROM * rows["seconds"].min():
        logarithmic(axes, "x", x, above=0.12)
        logarithmic(axes, "y", y, above=0.12)
    else:
        from_zero(axes, "x", x * 1.08)
        from_zero(axes, "y", y)


def _draw_series(axes: Axes, series: Series, rows: pd.DataFrame) -> None:
    look = series.look
    axes.plot(
        rows["hours"],
        rows["seconds"],
        color=look.colour,
        linestyle=series.line_style,
        linewidth=0.9,
        alpha=0.5,
    )
    axes.vlines(rows["hours"], rows["seconds_low"], rows["seconds_high"], color=look.colour, linewidth=1.3)
    axes.hlines(rows["seconds"], rows["hours_low"], rows["hours_high"], color=look.colour, linewidth=1.3)
    for beaten, part in rows.groupby(~rows["pareto"]):
        axes.plot(
            part["hours"],
            part["seconds"],
            color=look.colour,
            linestyle="none",
            marker=look.marker,
            markersize=look.points,
            markerfacecolor=PAPER if beaten else look.colour,
            markeredgecolor=look.colour if beaten else PAPER,
            markeredgewidth=1.3 if beaten else 0.8,
            zorder=4,
            label=series.name,
        )
    offset, side = ((-6, -4), "right") if series.framework == "pytorch_native" else ((6, 4), "left")
    for hours, seconds, workers in zip(rows["hours"], rows["seconds"], rows["workers"], strict=True):
        axes.annotate(
            str(workers),
            (hours, seconds),
            offset,
            textcoords="offset points",
            ha=side,
            va="top" if side == "right" else "bottom",
            color=look.colour,
            weight="bold",
            path_effects=halo(),
            zorder=5,
        )


def _clock(seconds: "pd.Series[float]") -> Clock:
    typical = float(seconds.median())
    return next(
        (Clock(name, 1 / size) for name, size in (("hours", 3600.0), ("minutes", 60.0)) if typical >= size),
        Clock("seconds", 1.0),
    )


def _scaled(rows: pd.DataFrame, name: str, factor: float) -> pd.DataFrame:
    names = [name, f"{name}_low", f"{name}_high"]
    return rows.assign(**{each: rows[each] * factor for each in names})
