"""Kinds of charts: each draws one quantity of a table, and says its numbers to those who cannot see it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Transform, offset_copy

from analysis.figures import frame
from analysis.figures.style import DASHED, PALETTE, SERIES_STYLES, Colour, shortened, text_width
from analysis.study import Names
from analysis.text import Row, chart_number

# Labels at the ends of lines have so much room in every panel, so that axes side by side are of one width.
LABELS_PX = 110
# By how much bars and single runs of series stand beside their median.
BAR_STEP_PX = 3
RUN_STEP_PX = 5
# Margins that an axis spans at least: with fewer, the noise of the seeds would look like a loss.
LEAST_MARGINS = 4
# More panels of bars would not fit on a printed page.
MOST_STACKS = 8
# Of the distance between two bars.
BAR_WIDTH = 0.62
# From this height on a part has room for its number.
NUMBERED_PX = 15
# Of one curve.
MOST_MARKS = 8
# A row of a forest; a name that is longer is cut, and whole beside the pointer.
ROW_PX = 22
# A row with a longer name beside its mark would leave no room for the axis: the name stands above it.
MOST_NAME_PX = 130
NAMED_ROW_PX = 36


def sideways(axes: Axes, px: float) -> Transform:
    """Return data coordinates so many pixels to the right."""
    return offset_copy(axes.transData, axes.figure, x=px, units="points")  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Line(frame.Chart):
    """A quantity over the workers: medians with their intervals, and single runs beside them.

    rows       may have a column note, which is written beside a point
    runs       single runs with the columns POINT, run, throughput in `run_unit`, and `y`
    label      text at the end of a line
    scale      of the values: from zero, or logarithmic where the workers span much
    ideal      whether to draw as many as there are workers, to compare with
    least_top  up to where the axis goes at least
    margin     of a band below the value of 1 worker; the axis then does not start at zero
    """

    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    run_unit: str = ""
    label: Callable[[Row], str] | None = None
    scale: Literal["zero", "as workers"] = "zero"
    ideal: bool = False
    least_top: float = 0.0
    margin: float = 0.0

    @property
    def sentences(self) -> list[str]:
        """What the marks are."""
        most = self.runs["repeats"].max() if len(self.runs) else 1
        cut = f", the first {frame.MOST_SINGLE_RUNS} of a point" if most > frame.MOST_SINGLE_RUNS else ""
        marks = f"Small marks: single runs{cut}; large: the median of all." if most > 1 else ""
        return [marks, self.says]

    def panel(self, series: Sequence[frame.DrawnSeries]) -> frame.Panel:
        """Return a panel with room for the labels at the ends of the lines."""
        return replace(super().panel(series), right_px=LABELS_PX)

    def draw(self, axes: Axes, series: Sequence[frame.DrawnSeries]) -> None:
        """Draw a line for each series, and write which of them are not known."""
        rows = self.rows[self.rows["options"] == series[0].options]
        counts = sorted({*rows["workers"].astype(int)})
        frame.worker_axis(axes, counts)
        self._set_values(axes, rows, counts)
        labels = []
        if self.ideal:
            ends = [counts[0] if frame.is_wide(counts) else 0, counts[-1]]
            axes.plot(ends, ends, color=Colour.MUTED, linewidth=1.2, linestyle=DASHED, zorder=1)
            labels.append(frame.Label(ends[1], ends[1], "ideal", Colour.MUTED, bold=False))
        for number, each in enumerate(series):
            # -1, 1, -2, 2, ...: bars and runs of neighbours stand on different sides.
            labels += self.draw_series(axes, each, (number // 2 + 1) * (-1 if number % 2 == 0 else 1))
        frame.end_labels(axes, labels)
        unknown = [each.name for each in series if not frame.records(each.rows(rows), self.y)]
        if unknown:
            text = shortened(f"not known: {', '.join(unknown)}", frame.PLOT_WIDTH_PX)
            axes.text(0.98, 0.03, text, transform=axes.transAxes, color=Colour.MUTED, ha="right")

    def _set_values(self, axes: Axes, rows: pd.DataFrame, counts: Sequence[int]) -> None:
        values = self.ends(rows)
        if len(self.runs):
            values = np.append(values, self.runs.loc[self.runs["options"].isin(rows["options"]), self.y])
        log = self.scale == "as workers" and frame.is_wide(counts) and bool((values > 0).any())
        if self.ideal:
            values = np.append(values, counts)
        frame.value_axis(axes, "y", values, log=log, least_top=self.least_top, percent="%" in self.form)
        if self.ideal and not log:
            axes.set_yticks([0, *frame.spaced(axes, counts)])
        if self.margin:
            # In all panels the same axis. Where series share the median of 1 worker, there is one band.
            ends = self.ends(self.rows)
            low = float(np.nanmin(ends)) - self.margin
            height = max(float(np.nanmax(ends)) - low, LEAST_MARGINS * self.margin)
            axes.set_ylim(low - 0.1 * height, low + 1.1 * height)
            for median in rows.loc[(rows["workers"] == 1) & rows[self.y].notna(), self.y].unique():
                axes.axhspan(median - self.margin, median, color=Colour.GRID, linewidth=0, zorder=0.5)

    def draw_series(self, axes: Axes, series: frame.DrawnSeries, side: int) -> list[frame.Label]:
        """Draw one line with its bars and runs, those on this side; return the label at its end."""
        rows, style = series.rows(self.rows), series.style
        self._draw_runs(axes, series, side)
        _, low, high = self.ends(rows).T
        bars: dict[str, Any] = {"color": style.colour, "linewidth": 1.8, "alpha": 0.85, "zorder": 3}
        bars["transform"] = sideways(axes, BAR_STEP_PX * side)
        is_bar = low < high
        axes.vlines(rows["workers"][is_bar], low[is_bar], high[is_bar], **bars)
        known = rows[rows[self.y].notna()]
        (line,) = axes.plot(known["workers"], known[self.y], label=series.name, **series.look())
        named = [(frame.on_workers(row["workers"]), self.value(row)) for row in frame.records(rows, self.y)]
        frame.title_marks(line, [f"{series.name} {where}: {value}" for where, value in named])
        for row in frame.records(rows, "note") if "note" in rows else ():
            where = ("data", "axes fraction") if np.isnan(row[self.y]) else ("data", "data")
            note = frame.Label(
                row["workers"], np.nan_to_num(row[self.y], nan=0.01), row["note"], style.text_colour
            )
            frame.write(axes, note, (0, 7), coordinates=where)
        labels = []
        for row in frame.records(rows, self.y)[-1:]:
            text = self.label(row) if self.label else self.number(row[self.y]).removesuffix(self.unit)
            labels += [frame.Label(row["workers"], row[self.y], text, style.text_colour)] * bool(text)
        return labels

    def _draw_runs(self, axes: Axes, series: frame.DrawnSeries, side: int) -> None:
        known = frame.records(series.rows(self.runs), self.y)
        px = RUN_STEP_PX * (side + int(np.sign(side)))
        size, where = 0.55 * series.style.marker_px, sideways(axes, px)
        look = series.look(linestyle="none", markersize=size, markeredgewidth=0, alpha=0.5, zorder=2)
        x, y = ([run[name] for run in known] for name in ("workers", self.y))
        (dots,) = axes.plot(x, y, transform=where, **look)
        titles = []
        for run in known:
            speed = chart_number(run["throughput"], ".4g")
            titles.append(f"{run['run']}, {speed} {self.run_unit}" if speed else run["run"])
        frame.title_marks(dots, titles)


@dataclass(frozen=True, kw_only=True)
class Stack(frame.Chart):
    """Parts over the workers, bottom first, and beside each bar the total `y`; all panels have one y axis.

    parts      column of a part -> its name
    least_top  up to where the axis goes at least
    """

    parts: Mapping[str, str]
    least_top: float
    by: tuple[str, ...] = ("options", "framework", "knobs")

    def panels(self) -> list[frame.Panel]:
        """Return the panels; the parts are the same in all, so the first one has the legend."""
        first, *others = super().panels()[:MOST_STACKS]
        names = zip(self.parts.values(), PALETTE, strict=False)
        look: dict[str, Any] = {"edgecolor": Colour.MUTED, "linewidth": 0.5}
        patches = [Patch(facecolor=colour, label=name, **look) for name, (colour, _) in names]
        return [replace(first, legend=patches), *others]

    def fact(self, row: Row) -> str:
        """Return the total and those parts that are not 0 as shown."""
        shown = {name: self.number(row[part]) for part, name in self.parts.items()}
        zeros = (self.number(0.0), self.number(-0.0))
        parts = ", ".join(f"{name} {text}" for name, text in shown.items() if text not in zeros)
        return f"{self.number(row[self.y])} {frame.on_workers(row['workers'])} ({parts or 'no part above 0'})"

    def draw(self, axes: Axes, series: Sequence[frame.DrawnSeries]) -> None:
        """Draw the parts of each worker count upon each other, gains below zero, and their sums."""
        drawn = pd.concat([each.rows(self.rows) for each in self.series])
        parts = drawn[[*self.parts]].to_numpy(dtype=np.float64)
        sums_of_parts = parts.clip(min=0).sum(axis=1), parts.clip(max=0).sum(axis=1)
        reached = np.concatenate([*sums_of_parts, self.ends(drawn).ravel()])
        frame.value_axis(axes, "y", reached, least_top=self.least_top, percent="%" in self.form)
        rows = series[0].rows(self.rows)
        places, beside = np.arange(len(rows)), max(0.6, 1.6 - len(rows) / 2)
        axes.set(xlabel="workers", xlim=(-beside, len(rows) - 1 + beside))
        axes.set_xticks(places, [str(workers) for workers in rows["workers"]])
        axes.grid(visible=False, axis="x")
        axes.axhline(0, color=Colour.MUTED, linewidth=1)
        values = rows[[*self.parts]].to_numpy(dtype=np.float64)
        up, down = values.clip(min=0), values.clip(max=0)
        base = np.where(values >= 0, up.cumsum(axis=1) - up, down.cumsum(axis=1) - down)
        for part, (name, (colour, on_colour)) in enumerate(zip(self.parts.values(), PALETTE, strict=False)):
            look: dict[str, Any] = {"color": colour, "edgecolor": Colour.PAPER, "linewidth": 0.8}
            bars = axes.bar(places, values[:, part], BAR_WIDTH, base[:, part], **look)
            for bar, workers in zip(bars, rows["workers"], strict=True):
                text = self.number(bar.get_height())
                frame.title_marks(bar, [f"{name} {frame.on_workers(workers)}: {text}"])
                height = abs(bar.get_height()) / np.ptp(axes.get_ylim()) * frame.PLOT_HEIGHT_PX
                width = BAR_WIDTH / np.ptp(axes.get_xlim()) * frame.PLOT_WIDTH_PX
                if height > NUMBERED_PX and width > text_width(text):
                    x, y = bar.get_center()
                    axes.text(x, y, text, color=on_colour, ha="center", va="center")
        x = places + 0.65 * BAR_WIDTH
        totals, low, high = self.ends(rows).T
        axes.vlines(x, low, high, color=Colour.INK, linewidth=1.6, zorder=4)
        (sums,) = axes.plot(x, totals, "D", color=Colour.INK, markersize=5, zorder=5)
        told = [(frame.on_workers(row["workers"]), self.value(row)) for row in rows.to_dict("records")]
        frame.title_marks(sums, [f"{self.title} {where}: {value}" for where, value in told])


@dataclass(frozen=True, kw_only=True)
class ShareCurve(frame.Chart):
    """A quantity against `x`, a column of shares, with bands."""

    x: str = "pixel_share"
    axis: str = "share of the pixels"

    def draw(self, axes: Axes, series: Sequence[frame.DrawnSeries]) -> None:
        """Draw a line for each series."""
        rows = self.rows[self.rows["options"] == series[0].options].dropna(subset=[self.x, self.y])
        axes.set_xlabel(self.axis)
        self.set_axes(axes, rows)
        for each in series:
            own = each.rows(rows)
            band: dict[str, Any] = {"color": each.style.colour, "alpha": 0.15, "linewidth": 0}
            if f"{self.y}_low" in own:
                axes.fill_between(own[self.x], own[f"{self.y}_low"], own[f"{self.y}_high"], **band)
            (line,) = axes.plot(own[self.x], own[self.y], **self.look(each, len(own)))
            frame.title_marks(line, [each.name])

    def look(self, series: frame.DrawnSeries, points: int) -> dict[str, Any]:  # noqa: ARG002
        """Return the properties of a line of so many points."""
        return series.look()

    def set_axes(self, axes: Axes, rows: pd.DataFrame) -> None:
        """Set up the axes for all rows of a panel."""
        frame.value_axis(axes, "x", np.array([0.0, 1.0]), percent=True)
        axes.set_xlim(0, 1)
        frame.value_axis(axes, "y", self.ends(rows), least_top=1.0)

    def fact(self, row: Row) -> str:
        """Return the value alone."""
        return self.number(row[self.y])


@dataclass(frozen=True, kw_only=True)
class TrainingCurve(ShareCurve):
    """A quantity against what a training took so far; `log`: logarithmic where all of it is positive."""

    log: bool = False

    def look(self, series: frame.DrawnSeries, points: int) -> dict[str, Any]:
        """Return a wide line of the first framework, so that it is seen below an equal one; few marks."""
        frameworks = list(dict.fromkeys(each.framework for each in self.series))
        place = frameworks.index(series.framework)
        marks = (place % max(1, points), max(len(frameworks), points // MOST_MARKS))
        return series.look(linewidth=1.6 if place or len(frameworks) == 1 else 4, markevery=marks)

    def set_axes(self, axes: Axes, rows: pd.DataFrame) -> None:
        """Set up the axes; that of x is logarithmic where the series end far apart."""
        x, values = rows[self.x].to_numpy(dtype=np.float64), self.ends(rows)
        ends = rows.groupby(["framework", "workers"])[self.x].max()
        is_wide = bool(ends.max() >= frame.WIDE_RATIO * ends.min() > 0)
        frame.value_axis(axes, "x", x, log=is_wide)
        frame.value_axis(axes, "y", values, log=self.log and bool(np.nanmin(values, initial=np.inf) > 0))


@dataclass(frozen=True, kw_only=True)
class Forest(frame.Chart):
    """Ratios or differences, a row for each comparison, beside a line where both sides are equal.

    rows   in the order drawn: `y` with its interval, NaN where not known; heading and name; framework, ""
           for a grey diamond, and claimed, else grey; title, beside the pointer
    equal  the value where both are equal; a ratio, equal at 1, has a logarithmic axis
    axis   its name
    arms   the frameworks of a legend
    """

    equal: float
    axis: str
    arms: Names = field(default_factory=dict)

    def facts(self) -> Iterator[str]:
        """Yield all rows."""
        yield from (row["title"] for row in frame.records(self.rows, self.y))

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Heading and name of each line; the rows of a heading stand below it where they have names."""
        lines = list(dict.fromkeys(zip(self.rows["heading"], self.rows["name"], strict=True)))
        if any(name for _, name in lines):
            lines = list(dict.fromkeys(line for one in lines for line in ((one[0], ""), one)))
        return lines

    def panels(self) -> list[frame.Panel]:
        """Return the one panel."""
        arms = [frame.DrawnSeries("", arm, "", name, SERIES_STYLES[arm]) for arm, name in self.arms.items()]
        draw = partial(self.draw, series=())
        legend = [arm.line() for arm in arms]
        height = (NAMED_ROW_PX if self._is_named_above else ROW_PX) * len(self.lines)
        return [frame.Panel(self.title, draw, legend=legend, plot_px=height)]

    @property
    def _is_named_above(self) -> bool:
        return max(text_width(name) for _, name in self.lines) > MOST_NAME_PX

    def draw(self, axes: Axes, series: Sequence[frame.DrawnSeries]) -> None:  # noqa: ARG002
        """Draw all rows, each with its number and its interval."""
        values = np.append(self.ends(self.rows), self.equal)
        nothing = not np.nan_to_num(values).any()
        frame.value_axis(axes, "x", np.array([-0.01, 0.01]) if nothing else values, log=self.equal > 0)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.axvline(self.equal, color=Colour.MUTED, linewidth=1.2)
        above = self._is_named_above
        names = [
            shortened("" if above and name else name or heading, MOST_NAME_PX) for heading, name in self.lines
        ]
        axes.set_yticks(range(len(names)), names)
        for place, (_, name) in enumerate(self.lines) if above else ():
            shown = shortened(name, frame.PLOT_WIDTH_PX)
            axes.annotate(shown, (0, place), (0, 6), ("axes fraction", "data"), "offset points", va="bottom")
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel=self.axis, ylim=(len(names) - 0.5, -0.5))
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        is_named = any(name for _, name in self.lines)
        for text, (_, name) in zip(axes.get_yticklabels(), self.lines, strict=True):
            text.set_fontweight("bold" if is_named and not name else "normal")
        for row in frame.records(self.rows, self.y):
            y = self.lines.index((row["heading"], row["name"]))
            style = SERIES_STYLES.get(row["framework"])
            colour = style.colour if style and row["claimed"] else Colour.MUTED
            axes.hlines(y, row[f"{self.y}_low"], row[f"{self.y}_high"], color=colour, linewidth=1.8)
            (mark,) = axes.plot(row[self.y], y, style.marker if style else "D", color=colour, markersize=7)
            frame.title_marks(mark, [row["title"]])
            number = frame.Label(1, y, self.value(row), Colour.INK, bold=False)
            frame.write(axes, number, (10, 0), coordinates=("axes fraction", "data"))
