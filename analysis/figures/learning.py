"""How training goes: loss against epochs and seconds, and IoU against seconds, one line per point."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.axes import from_zero, in_panel, logarithmic
from analysis.figures.courses import Courses, iou_courses, loss_courses
from analysis.figures.looks import DASHED, MUTED, SMALL_POINTS, plain
from analysis.figures.marks import Label, end_labels, tip_labels
from analysis.figures.series import Inputs, Series
from analysis.figures.sheet import sheet
from analysis.study import NAMES
from unet_scaling.study.config import Framework

PANEL = (3.9, 3.1)
LOGARITHMIC_FROM = 10
FAINTEST = 0.35
SAME_PLACE = 0.02
FEW = 2
FEW_STEPS = 12


@dataclass(frozen=True)
class Course:
    """What is drawn against what: columns of a table with one row per run and step.

    `log_y` lets a quantity that falls by much be logarithmic in both axes; else it starts at zero.
    """

    title: str
    x: str
    y: str
    x_label: str
    log_x: bool
    log_y: bool
    least_top: float = 0.0
    level: float = float("nan")
    level_text: str = ""


def loss_figure(inputs: Inputs, *, against: str) -> Figure:
    """Loss against "epochs" or "seconds": a panel per framework and set of options."""
    courses = loss_courses(inputs)
    steps = int(courses.medians["trained"].max())
    loss = courses.medians["loss"].dropna()
    logarithms = steps >= LOGARITHMIC_FROM and bool((loss > 0).all()) and loss.max() >= 3 * loss.min()
    if against == "epochs":
        course = Course("Training loss against epochs", "trained", "loss", "epochs", logarithms, logarithms)
    else:
        title = "Training loss against training time"
        course = Course(title, "elapsed", "loss", "seconds of training", logarithms, logarithms)
    return _figure(inputs, course, courses)


def time_to_iou_figure(inputs: Inputs) -> Figure:
    """IoU against seconds of training: a panel per framework and set of options, with the target IoU."""
    courses = iou_courses(inputs)
    elapsed = courses.medians["elapsed"]
    target = inputs.cost["target_iou"].dropna()
    level = float(target.iloc[0]) if len(target) else float("nan")
    wide = bool(elapsed.max() >= 20 * elapsed.min())
    course = Course(
        "IoU against training time",
        "elapsed",
        "iou",
        "seconds of training",
        log_x=wide,
        log_y=False,
        least_top=1.04,
        level=level,
        level_text=f"target {plain(level, '.2f')}",
    )
    return _figure(inputs, course, courses)


def _figure(inputs: Inputs, course: Course, courses: Courses) -> Figure:
    panels = list(_panels(inputs, courses.medians))
    frameworks = {framework for _, framework in panels}
    named = [(inputs.study.names[framework], options) for options, framework in panels]
    titles = [", ".join(part for part in parts if part) for parts in named]
    columns = len(frameworks) if len(panels) > 3 else len(panels)
    figure, drawn = sheet(f"{course.title}, by number of workers", [], titles, columns, PANEL)
    for axes, (options, framework) in zip(drawn, panels, strict=True):
        _axes(axes, course, pd.concat([_under(options, part) for part in (courses.medians, courses.runs)]))
        series = [each for each in inputs.series(options) if each.framework == framework]
        labels = [label for each in series for label in _lines(axes, course, each, courses)]
        if course.x == "trained":
            end_labels(axes, _merged(axes, labels))
        else:
            tip_labels(axes, labels, below=course.y == "loss")
        _level(axes, course)
    return figure


def _panels(inputs: Inputs, table: pd.DataFrame) -> Iterator[tuple[str, Framework]]:
    present = set(zip(table["options"], table["framework"], strict=True))
    for options in inputs.options:
        for framework in NAMES:
            if (options, framework) in present:
                yield options, framework


def _under(options: str, table: pd.DataFrame) -> pd.DataFrame:
    return table[table["options"] == options]


def _axes(axes: Axes, course: Course, table: pd.DataFrame) -> None:
    """Both frameworks of one set of options have the same axes."""
    x, y = (table[name].to_numpy(dtype=np.float64) for name in (course.x, course.y))
    axes.set_xlabel(course.x_label)
    if course.log_x:
        logarithmic(axes, "x", x, above=0.18)
    else:
        from_zero(axes, "x", 1.15 * x, whole=course.x == "trained")
    if course.log_y:
        logarithmic(axes, "y", y, below=0.14)
    else:
        from_zero(axes, "y", y, least_top=course.least_top)


def _lines(axes: Axes, course: Course, series: Series, courses: Courses) -> Iterator[Label]:
    """The median line of every point over its runs, thin; more workers are drawn stronger."""
    medians, runs = series.of(courses.medians), series.of(courses.runs)
    counts = sorted({int(each) for each in medians["workers"]})
    for place, workers in enumerate(counts):
        alpha = FAINTEST + (1 - FAINTEST) * (place + 1) / len(counts)
        for _, run in runs[runs["workers"] == workers].groupby("number"):
            colour = series.look.colour
            axes.plot(run[course.x], run[course.y], color=colour, linewidth=0.6, alpha=0.4 * alpha, zorder=2)
        middle = medians[medians["workers"] == workers]
        axes.plot(
            middle[course.x],
            middle[course.y],
            color=series.look.colour,
            linestyle=series.line_style,
            linewidth=1.6,
            alpha=alpha,
            label=f"{series.name}, {workers}",
            marker=series.look.marker if len(middle) <= FEW_STEPS else None,
            markersize=3.2,
            zorder=3,
        )
        last = middle[middle[course.y].notna()].iloc[-1:]
        for x, y in zip(last[course.x], last[course.y], strict=True):
            yield Label(float(x), float(y), str(workers), series.look.colour)


def _merged(axes: Axes, labels: Sequence[Label]) -> list[Label]:
    """One label for lines that end at the same place, as the losses of equal training do."""
    groups: dict[int, list[Label]] = {}
    for label in labels:
        groups.setdefault(round(in_panel(axes, label.x, label.y)[1] / SAME_PLACE), []).append(label)
    merged = []
    for group in groups.values():
        counts = sorted({int(label.text) for label in group})
        text = ", ".join(map(str, counts)) if len(counts) <= FEW else f"{counts[0]} to {counts[-1]}"
        merged.append(replace(group[0], text=text))
    return merged


def _level(axes: Axes, course: Course) -> None:
    if np.isfinite(course.level):
        axes.axhline(course.level, color=MUTED, linewidth=1, linestyle=DASHED, zorder=1)
        axes.text(
            0.01,
            course.level + 0.012,
            course.level_text,
            transform=axes.get_yaxis_transform(),
            color=MUTED,
            size=SMALL_POINTS,
        )
