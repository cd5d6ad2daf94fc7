"""Where the time of saliency maps goes: seconds of the workers for one map, in parts."""

from collections.abc import Iterator

from analysis.figures.drawing.captions import (
    alternative_text,
    bars_of_repeated_points,
    caption_text,
    facts_of_series,
    on_workers,
)
from analysis.figures.drawing.inputs import DrawnSeries, Inputs
from analysis.figures.drawing.layout import Panel
from analysis.figures.drawing.stacks import MOST_PANELS, Stack, StackChart, stack_panels
from analysis.figures.drawing.style import part_styles
from analysis.figures.saliency_speed import inputs_of_maps
from analysis.figures.saliency_speed import missing as no_speed
from analysis.text import chart_number, chart_percent

TITLE = "time for a saliency map"
SECTION = "saliency"
_PARTS = part_styles(
    forward_seconds="forward passes",
    masks_seconds="masks",
    weighting_seconds="weighting",
    sum_seconds="sum over workers",
    files_seconds="files",
    other_seconds="other",
)
PARTS_SENTENCE = (
    "Each part: seconds of all workers together for one map; sum over workers holds the wait for the "
    "slowest. Diamonds: the sum of the parts."
)


def draw(inputs: Inputs) -> list[Panel]:
    """Return the seconds of the workers for one map in parts, a panel for each series."""
    maps = inputs_of_maps(inputs)
    stacks = [
        Stack(
            f"{series.name}: worker-seconds for a map",
            series.rows(maps.points),
            series.options,
            series.style.text_colour,
        )
        for series in maps.series[:MOST_PANELS]
    ]
    return stack_panels(_CHART, [stack for stack in stacks if len(stack.table)])


def missing(inputs: Inputs) -> str | None:
    """Return why it cannot be drawn: no maps were timed."""
    return no_speed(inputs)


def caption(inputs: Inputs) -> str:
    """Return what the parts, diamonds and bars are."""
    maps = inputs_of_maps(inputs)
    return caption_text(maps, PARTS_SENTENCE, bars_of_repeated_points(maps))


def alternative(inputs: Inputs) -> str:
    """Return the seconds for a map of every series at its most workers, and the shares of the parts."""
    maps = inputs_of_maps(inputs)
    facts = facts_of_series(maps, lambda series: _facts(maps, series))
    return alternative_text("Stacked worker-seconds for a saliency map. At the most workers", facts)


def _facts(maps: Inputs, series: DrawnSeries) -> Iterator[str]:
    for row in series.rows(maps.points).tail(1).to_dict("records"):
        whole = row["worker_seconds_per_map"]
        parts = ", ".join(
            f"{style.name} {chart_percent(row[part] / whole)}" for part, style in _PARTS.items()
        )
        yield f"{chart_number(whole)} s {on_workers(row['workers'])} ({parts})"


_CHART = StackChart(
    _PARTS,
    total="worker_seconds_per_map",
    total_name="worker-seconds for a map",
    number=chart_number,
    share=False,
    least_top=0.0,
)
