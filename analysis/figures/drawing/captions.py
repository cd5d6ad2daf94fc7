"""Sentences that several captions and alternative texts share."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.restriction import restriction_words, with_restriction
from analysis.stats import FEWEST_REPEATS, coverage
from analysis.text import chart_interval, chart_number, count, printable, repeats_text


def caption_text(inputs: Inputs, *sentences: str) -> str:
    """Return a caption: how many runs there are, the figure's own sentences, and what is left out.

    Of emulated runs, it says so first.
    """
    parts = (_runs(inputs), *sentences, inputs.undrawn, _left_out(inputs))
    return with_restriction(restriction_words(inputs.study), " ".join(part for part in parts if part))


def alternative_text(opening: str, facts: Iterable[str]) -> str:
    """Return what a screen reader says: what is drawn, and its key numbers."""
    return f"{opening}: {'; '.join(facts) or 'nothing is known'}."


def facts_of_series(inputs: Inputs, facts: Callable[[DrawnSeries], Iterable[str]]) -> list[str]:
    """Return the facts of every series that is drawn, each after the name of its series."""
    return [f"{series_title(series, inputs)} {fact}" for series in inputs.series for fact in facts(series)]


def series_title(series: DrawnSeries, inputs: Inputs) -> str:
    """Return the name of a series, with its options where several sets of options are drawn."""
    several = len(inputs.options) > 1 and series.options
    return f"{series.name} ({printable(series.options)})" if several else series.name


def bars_sentence(inputs: Inputs, points: pd.DataFrame) -> str:
    """Return what the interval bars of these points are: few repeats allow less than 95 % confidence."""
    if points.empty:
        return f"No intervals: they need {FEWEST_REPEATS} runs."
    repeats = inputs.points.loc[inputs.points["repeats"] >= FEWEST_REPEATS, "repeats"]
    confidence = coverage(int(repeats.min()) if len(repeats) else FEWEST_REPEATS)
    return f"Bars: {100 * confidence:.0f} % bootstrap intervals over the runs."


def bars_of_repeated_points(inputs: Inputs) -> str:
    """Return the sentence on bars of a figure whose tables have an interval for every repeated point."""
    return bars_sentence(inputs, inputs.points[inputs.points["repeats"] >= FEWEST_REPEATS])


def on_workers(workers: int) -> str:
    """Return "on 1 worker", "on 4 workers"."""
    return f"on {count(workers, 'worker')}"


def interval_text(row: Mapping[Any, Any], column: str, form: str, scale: float = 1.0) -> str:
    """Return the interval of a number with a space before it; empty where there is none."""
    low = scale * row[f"{column}_low"]
    high = scale * row[f"{column}_high"]
    return f" {chart_interval(low, high, form)}" if low < high else ""


def value_text(row: Mapping[Any, Any], column: str, form: str, unit: str, scale: float = 1.0) -> str:
    """Return a number of a row with its unit and its interval."""
    return f"{chart_number(scale * row[column], form)}{unit}{interval_text(row, column, form, scale)}"


def _runs(inputs: Inputs) -> str:
    counts = inputs.study.runs["framework"].value_counts()
    runs = ", ".join(f"{counts[key]} {name}" for key, name in inputs.study.names.items() if key in counts)
    per_point = repeats_text(inputs.points["repeats"])
    return f"{count(len(inputs.study.runs), 'run')} ({runs}), {per_point} per point."


def _left_out(inputs: Inputs) -> str:
    number = len(inputs.study.left_out)
    if not number:
        return ""
    return f"{count(number, 'run')} {'was' if number == 1 else 'were'} left out; the report says why."
