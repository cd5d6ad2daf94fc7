"""What a chart shows: which sets of options, which lines in each, and the single runs behind them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.budget.overhead import NO_OVERHEAD, Overhead
from analysis.figures.looks import LINE_STYLES, LOOKS, LineStyle, Look, printable
from analysis.findings.verdict import Verdict
from analysis.study import NAMES, POINT, Study
from unet_scaling.study.config import Framework

MOST_OPTIONS = 6
MOST_KNOBS = len(LINE_STYLES)
MOST_RUNS = 20


@dataclass(frozen=True)
class Series:
    """One framework with one setting of its knobs, under one set of options: what a line shows."""

    options: str
    framework: Framework
    knobs: str
    line_style: LineStyle
    framework_name: str

    @property
    def name(self) -> str:
        """What the legend calls it."""
        return ", ".join(printable(part) for part in (self.framework_name, self.knobs) if part)

    @property
    def look(self) -> Look:
        """Colour and marker of its framework."""
        return LOOKS[self.framework]

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table that are of this series."""
        here = (table["options"] == self.options) & (table["knobs"] == self.knobs)
        return table[here & (table["framework"] == self.framework)]


@dataclass(frozen=True)
class Inputs:
    """The tables that charts are drawn from: the study, and what the other modules made of it."""

    study: Study
    points: pd.DataFrame
    comparisons: pd.DataFrame
    iou: pd.DataFrame
    cost: pd.DataFrame
    predictions: pd.DataFrame
    verdicts: Sequence[Verdict]
    overhead: Overhead = NO_OVERHEAD

    @cached_property
    def options(self) -> list[str]:
        """The sets of options that are drawn, one panel each."""
        return list(dict.fromkeys(self.points["options"]))[:MOST_OPTIONS]

    @cached_property
    def drawn(self) -> "Inputs":
        """The same without the sets of options that no chart shows; a large study has hundreds."""
        runs = self._of_drawn(self.study.runs)
        epochs, evaluations = (
            table[table["run"].isin(runs["run"])] for table in (self.study.epochs, self.study.evaluations)
        )
        return replace(
            self,
            study=replace(self.study, runs=runs, epochs=epochs, evaluations=evaluations),
            points=self._of_drawn(self.points),
            iou=self._of_drawn(self.iou),
            cost=self._of_drawn(self.cost),
            predictions=self._of_drawn(self.predictions),
        )

    def _of_drawn(self, table: pd.DataFrame) -> pd.DataFrame:
        return table[table["options"].isin(self.options)]

    def series(self, options: str) -> list[Series]:
        """The lines of a panel, native DDP first; the knob settings of a framework differ in line style."""
        points = self.points[self.points["options"] == options]
        return [
            Series(options, framework, knobs, LINE_STYLES[number], name)
            for framework, name in self.study.names.items()
            for number, knobs in enumerate(_knobs(points, framework)[:MOST_KNOBS])
        ]

    def counts(self, options: str) -> list[int]:
        """The worker counts that any line of a panel has."""
        return sorted({int(each) for each in self.points.loc[self.points["options"] == options, "workers"]})

    @cached_property
    def runs(self) -> pd.DataFrame:
        """At most 20 runs of each point, with throughput, speed-up, efficiency, deviation and IoU of each.

        They stand on the baseline of their point, so that they scatter about its median.
        """
        runs = self.study.runs[[*POINT, "repeat", "iou"]].assign(
            throughput=self.study.runs[self.study.throughput]
        )
        runs = runs[runs["options"].isin(self.options)]
        runs = runs[runs.groupby(POINT).cumcount() < MOST_RUNS]
        baseline = (self.points["throughput"] / self.points["speedup"]).rename("baseline")
        of_point = pd.concat([self.points[[*POINT, "repeats"]], baseline], axis=1)
        runs = runs.merge(of_point, on=POINT, how="left")
        runs["speedup"] = runs["throughput"] / runs["baseline"]
        runs["efficiency"] = runs["speedup"] / runs["workers"]
        return runs.assign(deviation=1 - runs["efficiency"])

    @cached_property
    def undrawn(self) -> str:
        """What the charts do not show and the tables have, in words; empty where they show all."""
        options = self.points["options"].nunique() - len(self.options)
        knobs = sum(
            max(0, len(_knobs(self.points[self.points["options"] == each], framework)) - MOST_KNOBS)
            for each in self.options
            for framework in NAMES
        )
        found = [
            f"{number} more {what}"
            for number, what in ((options, "sets of options"), (knobs, "settings of knobs"))
            if number
        ]
        return f"Not drawn, but in the tables: {' and '.join(found)}." if found else ""


def _knobs(points: pd.DataFrame, framework: Framework) -> list[str]:
    return list(dict.fromkeys(points.loc[points["framework"] == framework, "knobs"]))


def evenly(values: Sequence[int], most: int) -> list[int]:
    """At most so many of the values, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(float(place))] for place in np.linspace(0, len(values) - 1, most)]
