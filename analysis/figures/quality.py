"""IoU against the workers, of played and real runs, with the margin below 1 worker."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.arrays import Array
from analysis.figures.drawing.artists import interval_bars, last_known, markers
from analysis.figures.drawing.axes import tick_text, worker_axis
from analysis.figures.drawing.captions import alternative_text, on_workers, value_text
from analysis.figures.drawing.inputs import MOST_KNOBS, MOST_OPTIONS, DrawnSeries, Inputs
from analysis.figures.drawing.labels import Label, end_labels, write_beside
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.quantity import LABELS_PX
from analysis.figures.drawing.style import GRID, LINE_STYLES, MUTED
from analysis.figures.drawing.titles import title_marks
from analysis.played import kept_farthest_first, kept_ious
from analysis.stats import FEWEST_REPEATS, coverage
from analysis.text import chart_number, count, printable

TITLE = "{score} of played and real runs"
SECTION = "played"
NO_PLAYED_RUN = "no run of this study is played: training.plays trains as more workers than there are"
MARKS_SENTENCE = "Open marks: played, one worker trained exactly as so many; filled: real workers."
BEST_SENTENCE = '"best": the highest median of all sets of options at this number of workers.'
# Bars of played runs stand to the right of their mark, those of real ones to the left.
KIND_SIDES = {"played": 1.0, "real": -1.0}
# Margins that the axis spans at least: with fewer, the noise of the seeds would look like a loss.
LEAST_MARGINS = 4
# Share of the axis above and below all values, and below them where a word stands at the axis.
AIR_SHARE = 0.08
WORD_SHARE = 0.16
# An open mark can be seen around a filled one at the same place.
PLAYED_SIZE_RATIO = 1.4
_BEST_PX = 7


def draw(inputs: Inputs) -> list[Panel]:
    """Return the IoU over the workers; a panel for each set of options that has played runs."""
    limits = _limits(inputs)
    return [_panel(inputs, options, limits) for options in _options(inputs)]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no run is played, or none has an IoU."""
    if inputs.played.empty or not _with_played(inputs):
        return NO_PLAYED_RUN
    known = _drawn(inputs)["iou"].notna().any()
    return None if known else f"no played run has {inputs.study.score.with_article}"


def caption(inputs: Inputs) -> str:
    """Return how many runs are played, what the marks and bars are, and what is left out."""
    margin = chart_number(inputs.study.criteria.iou_margin)
    band = f"Grey band: the margin of {margin} below 1 worker."
    best = BEST_SENTENCE if inputs.played["best"].any() else ""
    axis = f"The axis of the {inputs.study.score.title} does not start at zero."
    parts = (_runs(inputs), MARKS_SENTENCE, axis, _bars(inputs), band, best, _undrawn(inputs))
    return " ".join(filter(None, parts))


def alternative(inputs: Inputs) -> str:
    """Return the IoU of every series at its most workers, and whether it is of played runs."""
    facts = [fact for options in _options(inputs) for fact in _facts(inputs, options)]
    return alternative_text(
        f"{inputs.study.score.heading} against workers, of played and real runs. At the most workers", facts
    )


def _facts(inputs: Inputs, options: str) -> Iterator[str]:
    for series in _series(inputs, options):
        last = last_known(series.rows(inputs.played), "iou")
        if last is not None:
            row = last.to_dict()
            name = f"{series.name} ({printable(options)})" if options else series.name
            yield f"{name} {value_text(row, 'iou', '.3f', '')} {on_workers(row['workers'])}, {row['kind']}"


def _with_played(inputs: Inputs) -> list[str]:
    """Return the sets of options that have played runs, those that keep the IoU farthest first."""
    return list(kept_farthest_first(kept_ious(inputs.played)))


def _options(inputs: Inputs) -> list[str]:
    return _with_played(inputs)[:MOST_OPTIONS]


def _drawn(inputs: Inputs) -> pd.DataFrame:
    """Return the rows of the drawn sets of options, their real runs included."""
    return inputs.played[inputs.played["options"].isin(_options(inputs))]


def _series(inputs: Inputs, options: str) -> list[DrawnSeries]:
    rows = inputs.played[inputs.played["options"] == options]
    return [
        DrawnSeries(options, framework, knobs, LINE_STYLES[number], name)
        for framework, name in inputs.study.names.items()
        for number, knobs in enumerate(
            rows.loc[rows["framework"] == framework, "knobs"].drop_duplicates()[:MOST_KNOBS]
        )
    ]


def _panel(inputs: Inputs, options: str, limits: tuple[float, float]) -> Panel:
    series = _series(inputs, options)
    rows = inputs.played[inputs.played["options"] == options]

    def draw_rows(axes: Axes) -> None:
        worker_axis(axes, sorted({int(workers) for workers in rows["workers"]}))
        _iou_axis(axes, limits)
        _draw_margin(axes, rows, inputs.study.criteria.iou_margin)
        labels = [label for each in series for label in _draw_series(axes, each, each.rows(rows))]
        end_labels(axes, labels, least_free=LABELS_PX)

    kinds = " and ".join(sorted(rows["kind"].unique()))
    return Panel(
        f"{inputs.study.score.heading}, {inputs.study.iou_scope}, {kinds}", draw_rows, options, series
    )


def _limits(inputs: Inputs) -> tuple[float, float]:
    """Return the ends of the axis, the same in all panels: they hold every value, interval and margin."""
    rows = _drawn(inputs)
    margin = inputs.study.criteria.iou_margin
    alone = rows.loc[rows["workers"] == 1, "iou"].to_numpy(dtype=np.float64)
    shown = rows[["iou", "iou_low", "iou_high"]].to_numpy(dtype=np.float64).ravel()
    values: Array = np.concatenate([shown, alone, alone - margin])
    low = float(np.nanmin(values))
    high = max(float(np.nanmax(values)), low + LEAST_MARGINS * margin)
    below = WORD_SHARE if rows["diverged"].any() else AIR_SHARE
    return low - below * (high - low), high + AIR_SHARE * (high - low)


def _iou_axis(axes: Axes, limits: tuple[float, float]) -> None:
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(tick_text))


def _draw_margin(axes: Axes, rows: pd.DataFrame, margin: float) -> None:
    """Draw the margin below the median of 1 worker as a band, where all series share that median."""
    alone = rows.loc[(rows["workers"] == 1) & rows["iou"].notna(), "iou"].unique()
    for number, iou in enumerate(alone):
        axes.axhspan(iou - margin, iou, color=GRID, alpha=0.9, linewidth=0, zorder=0.5)
        if number == 0:
            beside = axes.get_yaxis_transform()
            text = f"margin {chart_number(margin)}"
            axes.text(0.99, iou - margin, text, color=MUTED, transform=beside, ha="right", va="top")


def _draw_series(axes: Axes, series: DrawnSeries, rows: pd.DataFrame) -> Iterator[Label]:
    """Draw the played and the real points of a series; yield the label of its last one."""
    for kind, of_kind in rows.groupby("kind"):
        points = of_kind.sort_values("workers")
        _draw_kind(axes, series, points, str(kind))
        _name_points(axes, series, points.to_dict("records"))
    last = last_known(rows, "iou")
    if last is not None:
        text = chart_number(float(last["iou"]), ".3f")
        yield Label(float(last["workers"]), float(last["iou"]), text, series.style.text_colour)


def _draw_kind(axes: Axes, series: DrawnSeries, points: pd.DataFrame, kind: str) -> None:
    """Draw line, intervals and marks of the played or of the real points."""
    known = points[points["iou"].notna()]
    workers = known["workers"]
    axes.plot(workers, known["iou"], color=series.style.colour, linestyle=series.line_style, alpha=0.6)
    interval_bars(axes, series, points, "iou", KIND_SIDES[kind])
    label = f"{series.name}, {kind}"
    marks = markers(axes, series, workers, known["iou"], filled=kind == "real", label=label)
    if kind == "played":
        marks.set(markersize=PLAYED_SIZE_RATIO * series.style.marker_px, zorder=3.5)
    title_marks(marks, [_mark_title(series, row) for row in known.to_dict("records")])


def _mark_title(series: DrawnSeries, row: Mapping[object, object]) -> str:
    where = on_workers(int(str(row["workers"])))
    return f"{series.name}, {row['kind']}, {where}: {value_text(row, 'iou', '.3f', '')}"


def _name_points(axes: Axes, series: DrawnSeries, rows: Sequence[Mapping[object, object]]) -> None:
    """Write beside a point that it is the best of all sets, or at the axis that training diverges there."""
    for row in rows:
        workers = float(str(row["workers"]))
        if row["diverged"]:
            at_axis = ("data", "axes fraction")
            axes.annotate(
                "diverges", (workers, 0.03), xycoords=at_axis, ha="center", color=series.style.text_colour
            )
        elif row["best"]:
            label = Label(workers, float(str(row["iou"])), "best", series.style.text_colour)
            write_beside(axes, label, (0, _BEST_PX))


def _runs(inputs: Inputs) -> str:
    seeds = inputs.played.groupby("kind")["seeds"].sum()
    parts = [f"{count(int(seeds[kind]), f'{kind} run')}" for kind in ("played", "real") if kind in seeds]
    return f"{' and '.join(parts)}."


def _bars(inputs: Inputs) -> str:
    seeds = inputs.played.loc[inputs.played["seeds"] >= FEWEST_REPEATS, "seeds"]
    if seeds.empty:
        return f"No intervals: they need {FEWEST_REPEATS} seeds."
    return f"Bars: {100 * coverage(int(seeds.min())):.0f} % bootstrap intervals over the seeds."


def _undrawn(inputs: Inputs) -> str:
    more = len(_with_played(inputs)) - MOST_OPTIONS
    return f"Not drawn, but in the table: {count(more, 'more set')} of options." if more > 0 else ""
