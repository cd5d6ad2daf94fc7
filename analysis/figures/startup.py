"""Seconds from the start of the workers' processes to the first epoch, in parts stacked over the workers."""

from collections.abc import Iterator

import pandas as pd

from analysis.figures.drawing.captions import alternative_text, caption_text, facts_of_series, on_workers
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.stacks import MOST_PANELS, Stack, StackChart, stack_panels
from analysis.figures.drawing.style import part_styles
from analysis.text import chart_number

TITLE = "start-up"
SECTION = "cost"
STARTUP_SENTENCE = (
    "Each part: mean over workers and runs. Diamonds: the sum; bars: from the fastest to the slowest run. "
    "Start-up is no part of the training time, nor of any throughput."
)
STARTUP_PARTS = part_styles(
    imports_seconds="imports",
    join_seconds="join the group",
    data_seconds="open the data",
    model_seconds="build the model",
    distribution_seconds="distribute the state",
    warm_up_step_seconds="warm-up step",
)


def draw(inputs: Inputs) -> list[Panel]:
    """Return the seconds that each part of the start-up takes; a panel for each series."""
    stacks = [
        Stack(f"{series.name}: seconds to the first epoch", table, series.options, series.style.text_colour)
        for series in inputs.series
        if len(table := _seconds(inputs, series))
    ]
    chart = StackChart(STARTUP_PARTS, "total", "start-up", _seconds_text, share=False, least_top=0.0)
    return stack_panels(chart, stacks[:MOST_PANELS])


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no record has its start-up."""
    known = len(inputs.study.startups)
    return None if known else "no run recorded its start-up, which records have from format 3 on"


def caption(inputs: Inputs) -> str:
    """Return what parts, diamonds and bars are."""
    return caption_text(inputs, STARTUP_SENTENCE)


def alternative(inputs: Inputs) -> str:
    """Return the seconds of every series at its most workers, in parts."""
    facts = facts_of_series(inputs, lambda series: _facts(inputs, series))
    return alternative_text("Stacked parts of the start-up against workers. At the most workers", facts)


def _facts(inputs: Inputs, series: DrawnSeries) -> Iterator[str]:
    for row in _seconds(inputs, series).tail(1).to_dict("records"):
        parts = ", ".join(f"{style.name} {_seconds_text(row[part])}" for part, style in STARTUP_PARTS.items())
        yield f"{_seconds_text(row['total'])} {on_workers(row['workers'])} ({parts})"


def _seconds(inputs: Inputs, series: DrawnSeries) -> pd.DataFrame:
    """Return one row per worker count: mean seconds of each part, their `total`, and that of single runs."""
    parts = inputs.study.startups.groupby("run", observed=True)[[*STARTUP_PARTS]].mean()
    runs = series.rows(inputs.study.runs)[["workers", "run"]].merge(parts, left_on="run", right_index=True)
    points = runs.assign(total=runs[[*STARTUP_PARTS]].sum(axis=1)).groupby("workers")
    totals = points["total"]
    means: pd.DataFrame = points[[*STARTUP_PARTS, "total"]].mean()
    return means.assign(total_low=totals.min(), total_high=totals.max()).reset_index()


def _seconds_text(seconds: float) -> str:
    return f"{chart_number(seconds, '.1f')} s"
