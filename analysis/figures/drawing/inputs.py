"""The inputs of every figure: the tables of a report, and which of their options and series are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.budget.overhead import NO_OVERHEAD, Overhead
from analysis.figures.drawing.style import FRAMEWORK_STYLES, LINE_STYLES, FrameworkStyle, LineStyle
from analysis.findings.verdict import Verdict
from analysis.forecast import SCORED_COLUMNS
from analysis.saliency import SaliencyFindings
from analysis.study import NAMES, POINT, SERIES, Study
from analysis.text import printable
from unet_scaling.study.config import Framework

# More panels, lines and marks than these can no longer be told apart on a page.
MOST_OPTIONS = 6
MOST_KNOBS = len(LINE_STYLES)
MOST_SINGLE_RUNS = 20
# What names a launch.
LAUNCH = ["run", "hosts", "seed", "repeat"]


@dataclass(frozen=True)
class DrawnSeries:
    """One framework with one setting of its knobs, under one set of options: one line of a chart."""

    options: str
    framework: Framework
    knobs: str
    line_style: LineStyle
    framework_name: str

    @property
    def name(self) -> str:
        """The name in the legend."""
        return ", ".join(printable(part) for part in (self.framework_name, self.knobs) if part)

    @property
    def style(self) -> FrameworkStyle:
        """Colour and marker of the framework."""
        return FRAMEWORK_STYLES[self.framework]

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a table that belong to this series."""
        shared = (table["options"] == self.options) & (table["knobs"] == self.knobs)
        return table[shared & (table["framework"] == self.framework)]


@dataclass(frozen=True)
class Inputs:
    """The tables that figures are drawn from: the study, and what the other modules derived from it."""

    study: Study
    points: pd.DataFrame
    comparisons: pd.DataFrame
    iou: pd.DataFrame
    cost: pd.DataFrame
    predictions: pd.DataFrame
    verdicts: Sequence[Verdict]
    overhead: Overhead = NO_OVERHEAD
    played: pd.DataFrame = field(default_factory=pd.DataFrame)
    scores: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(SCORED_COLUMNS)))
    saliency: SaliencyFindings | None = None

    @cached_property
    def options(self) -> list[str]:
        """The sets of options that are drawn, one panel each."""
        return list(dict.fromkeys(self.points["options"]))[:MOST_OPTIONS]

    @cached_property
    def panels(self) -> dict[str, list[DrawnSeries]]:
        """The series of every panel, by its set of options."""
        return {options: self._series(options) for options in self.options}

    @property
    def series(self) -> list[DrawnSeries]:
        """All series that are drawn, panel by panel."""
        return [series for panel in self.panels.values() for series in panel]

    def panels_in(self, table: pd.DataFrame) -> dict[str, list[DrawnSeries]]:
        """Return the panels and series that have rows in a table."""
        known = {
            options: [each for each in panel if len(each.rows(table))]
            for options, panel in self.panels.items()
        }
        return {options: panel for options, panel in known.items() if panel}

    def counts(self, options: str) -> list[int]:
        """Return the worker counts of all series of a panel."""
        return sorted({int(each) for each in self.points.loc[self.points["options"] == options, "workers"]})

    @cached_property
    def runs(self) -> pd.DataFrame:
        """At most 20 runs of each point, with throughput, speed-up, efficiency and IoU of each.

        The baseline is that of their point, so that they scatter about its median. `difference` is the IoU
        minus that of the same repeat on 1 worker.
        """
        runs = self.study.runs.assign(throughput=self.study.runs[self.study.throughput])
        runs = runs.loc[runs["options"].isin(self.options), [*POINT, *LAUNCH, "iou", "throughput"]]
        runs = _with_difference(runs)
        runs = runs[runs.groupby(POINT).cumcount() < MOST_SINGLE_RUNS]
        of_point = self.points[[*POINT, "repeats", "throughput", "speedup"]]
        runs = runs.merge(of_point, on=POINT, how="left", suffixes=("", "_of_point"))
        runs["speedup"] *= runs["throughput"] / runs["throughput_of_point"]
        return runs.assign(efficiency=runs["speedup"] / runs["workers"])

    @cached_property
    def undrawn(self) -> str:
        """A sentence on what the tables have and no figure shows; empty where figures show all."""
        numbers = {
            "sets of options": self.points["options"].nunique() - len(self.options),
            "settings of knobs": sum(self._undrawn_knobs(options) for options in self.options),
        }
        more = [f"{number} more {things}" for things, number in numbers.items() if number]
        return f"Not drawn, but in the tables: {' and '.join(more)}." if more else ""

    def _series(self, options: str) -> list[DrawnSeries]:
        """Native DDP first; the knob settings of a framework differ in line style."""
        return [
            DrawnSeries(options, framework, knobs, LINE_STYLES[number], name)
            for framework, name in self.study.names.items()
            for number, knobs in enumerate(self._knobs(options, framework)[:MOST_KNOBS])
        ]

    def _undrawn_knobs(self, options: str) -> int:
        return sum(max(0, len(self._knobs(options, framework)) - MOST_KNOBS) for framework in NAMES)

    def _knobs(self, options: str, framework: Framework) -> list[str]:
        panel = (self.points["options"] == options) & (self.points["framework"] == framework)
        return list(dict.fromkeys(self.points.loc[panel, "knobs"]))


def _with_difference(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with `difference`, which is unknown on 1 worker itself."""
    repeat = [*SERIES, "repeat"]
    alone = runs[runs["workers"] == 1].groupby(repeat)["iou"].first().rename("iou_alone")
    runs = runs.join(alone, on=repeat)
    difference = (runs["iou"] - runs["iou_alone"]).where(runs["workers"] > 1)
    return runs.assign(difference=difference)


def evenly(values: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the values, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(float(index))] for index in np.linspace(0, len(values) - 1, most)]
