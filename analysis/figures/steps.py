"""Distribution of the times of single steps over the workers, with the own work of every worker."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.figures.drawing.artists import markers, series_sides, sideways
from analysis.figures.drawing.axes import logarithmic, worker_axis
from analysis.figures.drawing.captions import alternative_text, caption_text, facts_of_series, on_workers
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.labels import Label, end_labels
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.titles import title_marks
from analysis.study import POINT, STEP_QUANTILES
from analysis.text import chart_number

TITLE = "single steps"
SECTION = "budget"
STEPS_SENTENCE = (
    "Large marks: the median step; thick bars: the middle half of the steps; thin bars: 5 to 95 % of them; "
    "crosses: the longest. Dots: each worker's own work in a step, all but waiting for gradients: a dot "
    "above the others of its point is a straggler. Warm-up is left out; of a long run a sample is recorded."
)
STEP_TIMES = [*STEP_QUANTILES, "work_seconds"]
# Shares of a panel's width by which a series stands beside its worker count, its dots beside that, and all
# labels to the right of the last worker count.
SERIES_STEP = 0.012
DOTS_STEP = 0.01
LABEL_STEP = 0.01


def draw(inputs: Inputs) -> list[Panel]:
    """Return milliseconds of single steps over the workers; a panel for each set of options."""
    steps = _milliseconds(inputs)
    return [_panel(options, panel, steps) for options, panel in inputs.panels_in(steps).items()]


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no run has a file of single steps."""
    known = len(inputs.study.steps)
    return None if known else "no run has steps.parquet, which is written where training.budget is on"


def caption(inputs: Inputs) -> str:
    """Return what the marks, bars and dots are."""
    return caption_text(inputs, STEPS_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return the median and the longest step of every series at its most workers, and its slowest worker."""
    steps = _milliseconds(inputs)
    facts = facts_of_series(inputs, lambda series: _facts(series.rows(steps)))
    return alternative_text("Times of single steps against workers. Median step at the most workers", facts)


def _facts(rows: pd.DataFrame) -> Iterator[str]:
    last = rows[rows["workers"] == rows["workers"].max()]
    for point in _points(last).to_dict("records"):
        median, longest = (chart_number(point[name]) for name in ("median_seconds", "maximum_seconds"))
        work = last.groupby("worker")["work_seconds"].median()
        slowest = f"worker {work.idxmax()} has most own work, {chart_number(work.max())} ms"
        yield f"{median} ms {on_workers(point['workers'])}, longest {longest} ms, {slowest}"


def _milliseconds(inputs: Inputs) -> pd.DataFrame:
    """Return the quantiles of every run and worker in milliseconds, with the point of the run."""
    steps = inputs.study.steps
    steps = steps.assign(**{name: 1000 * steps[name].astype(np.float64) for name in STEP_TIMES})
    return steps.merge(inputs.study.runs[[*POINT, "run"]], on="run")


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per worker count: the median over runs and workers of each quantile, and the maximum."""
    points = rows.groupby("workers")
    medians = points[[*STEP_QUANTILES]].median()
    return medians.assign(maximum_seconds=points["maximum_seconds"].max()).reset_index()


def _panel(options: str, panel: Sequence[DrawnSeries], steps: pd.DataFrame) -> Panel:
    def draw(axes: Axes) -> None:
        _draw_panel(axes, panel, steps[steps["options"] == options])

    return Panel("Time of single steps, ms", draw, options, panel)


def _draw_panel(axes: Axes, panel: Sequence[DrawnSeries], shown: pd.DataFrame) -> None:
    worker_axis(axes, sorted(set(shown["workers"].astype(int))))
    logarithmic(axes, "y", shown[STEP_TIMES].to_numpy(dtype=np.float64).ravel())
    for series, side in zip(panel, series_sides(len(panel)), strict=True):
        rows = series.rows(shown)
        _draw_workers(axes, series, rows, side)
        _draw_quantiles(axes, series, _points(rows), side)
    end_labels(axes, [_label(axes, series, _points(series.rows(shown))) for series in panel])


def _label(axes: Axes, series: DrawnSeries, points: pd.DataFrame) -> Label:
    """Return the label of the last median, to the right of all marks."""
    x = sideways(axes, points["workers"], LABEL_STEP)
    median = float(points["median_seconds"].iloc[-1])
    return Label(x[-1], median, chart_number(median), series.style.text_colour)


def _draw_quantiles(axes: Axes, series: DrawnSeries, points: pd.DataFrame, side: float) -> None:
    """Draw a mark, two bars and a cross for each worker count."""
    colour = series.style.colour
    x = sideways(axes, points["workers"], side * SERIES_STEP)
    axes.vlines(x, points["p05_seconds"], points["p95_seconds"], color=colour, linewidth=1.8)
    axes.vlines(x, points["p25_seconds"], points["p75_seconds"], color=colour, linewidth=7, alpha=0.4)
    medians = markers(axes, series, x, points["median_seconds"], filled=True, label=series.name)
    title_marks(medians, _titles(series, points, "median"))
    (longest,) = axes.plot(x, points["maximum_seconds"], "x", color=colour, markersize=6, linestyle="none")
    title_marks(longest, _titles(series, points, "maximum"))


def _titles(series: DrawnSeries, points: pd.DataFrame, name: str) -> Iterator[str]:
    for row in points.to_dict("records"):
        milliseconds = chart_number(row[f"{name}_seconds"])
        yield f"{series.name} {on_workers(row['workers'])}: {name} step {milliseconds} ms"


def _draw_workers(axes: Axes, series: DrawnSeries, rows: pd.DataFrame, side: float) -> None:
    """Draw a dot for every worker: the median over its runs of its own work in a step."""
    workers = rows.groupby(["workers", "worker"], as_index=False)["work_seconds"].median()
    x = sideways(axes, workers["workers"], side * SERIES_STEP + np.sign(side) * DOTS_STEP)
    work = workers["work_seconds"]
    dots = axes.scatter(x, work, s=14, color=series.style.colour, alpha=0.6, linewidths=0)
    titles = zip(workers["worker"], work, strict=True)
    title_marks(dots, [f"worker {worker}: own work {chart_number(ms)} ms" for worker, ms in titles])
