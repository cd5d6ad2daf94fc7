"""Axes of charts: linear from zero or logarithmic, with plain numbers and the worker counts as ticks."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

from analysis.arrays import Array
from analysis.figures.drawing.style import text_width

# From this ratio of the largest to the smallest worker count on, a linear axis presses small ones together.
_WIDE_RATIO = 32
# Ratios of the ends of a logarithmic axis: below the first its ticks are those of a linear axis, above the
# second they stand at powers of ten only.
LESS_THAN_A_DECADE = 6
SEVERAL_DECADES = 1000
# Share of the worker axis beside the last count: a linear axis has room for the bars beside a median.
BESIDE_LAST = 0.05
LEAST_TICK_GAP_PX = 8
# A tick with its distance to the text, with some margin; and a turned name of an axis.
TICK_PX = 12
AXIS_NAME_PX = 22

AxisName = Literal["x", "y"]


def is_wide(counts: Sequence[int]) -> bool:
    """Return whether the worker counts span so much that their axis is logarithmic."""
    return counts[-1] >= _WIDE_RATIO * counts[0]


def worker_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Set up the axis of workers: ticks where something was measured; from zero, or logarithmic."""
    axes.set_xlabel("workers")
    if is_wide(counts):
        axes.set_xscale("log", base=2)
        span = counts[-1] / counts[0]
        axes.set_xlim(counts[0] / span**BESIDE_LAST, counts[-1] * span**BESIDE_LAST)
    else:
        axes.set_xlim(0, (1 + BESIDE_LAST) * counts[-1])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(spaced(axes, counts))
    axes.xaxis.set_major_formatter(FuncFormatter(tick_text))


def spaced(axes: Axes, counts: Sequence[int]) -> list[int]:
    """Return the worker counts without those whose labels would touch; the largest stays."""
    kept: list[int] = []
    last = np.inf
    for count in reversed(counts):
        x = axes.bbox.width * in_panel(axes, count, 1.0)[0]
        needed = text_width(tick_text(count)) + LEAST_TICK_GAP_PX
        if last - x >= needed:
            kept.append(count)
            last = x
    return kept[::-1]


def keep_free(axes: Axes, *, left: float = 0.0, right: float = 0.0) -> None:
    """Narrow axes so that these pixels of their panel stay free beside them."""
    width = axes.figure.bbox.width
    place = axes.get_position()
    start = max(place.x0, left / width)
    stop = min(place.x1, 1 - right / width)
    axes.set_position((start, place.y0, stop - start, place.height))


def keep_tick_labels_free(axes: Axes) -> None:
    """Narrow axes until the texts of their y axis fit beside them."""
    low, high = sorted(axes.get_ylim())
    shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
    texts = axes.yaxis.get_major_formatter().format_ticks(shown)
    widest = max(map(text_width, texts), default=0.0)
    keep_free(axes, left=widest + TICK_PX + (AXIS_NAME_PX if axes.get_ylabel() else 0))


def in_panel(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Return the position of a point in data coordinates as shares of the panel's width and height."""
    position = axes.transLimits.transform(axes.transScale.transform((x, y)))
    return float(position[0]), float(position[1])


def from_zero(axes: Axes, which: AxisName, values: Array, *, least_top: float = 0.0) -> None:
    """Set up a linear axis that contains zero and, with some margin, all values; at least to `least_top`."""
    known = values[np.isfinite(values)]
    top = max(1.08 * float(known.max(initial=0.0)), least_top)
    bottom = 1.15 * float(known.min(initial=0.0))
    _set_limits(axes, which, bottom, top if top > bottom else 1.0)
    _set_ticks(_axis(axes, which), MaxNLocator(7, steps=[1, 2, 5, 10]))


def whole_numbers_from_zero(axes: Axes, which: AxisName, values: Array) -> None:
    """Set up a linear axis from zero whose ticks are whole numbers."""
    from_zero(axes, which, values)
    _axis(axes, which).set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))


def logarithmic(
    axes: Axes, which: AxisName, values: Array, *, below: float = 0.06, above: float = 0.06
) -> None:
    """Set up a logarithmic axis of all positive values, with free shares of its length at both ends."""
    known = values[np.isfinite(values) & (values > 0)]
    low = float(known.min())
    high = float(known.max())
    span = max(high / low, 1.5)
    axes.set(**{f"{which}scale": "log"})
    _set_limits(axes, which, low / span**below, high * span**above)
    _set_ticks(_axis(axes, which), _logarithmic_ticks(span))


def percent_axis(axes: Axes, which: AxisName) -> None:
    """Show the shares of an axis as per cent."""
    _axis(axes, which).set_major_formatter(FuncFormatter(lambda value, _: tick_text(100 * value) + " %"))


def tick_text(value: float, _position: object = None) -> str:
    """Return a tick's number: no exponent, thousands apart, a true minus sign."""
    return f"{value + 0.0:,.10g}".replace("-", "\N{MINUS SIGN}")


def _logarithmic_ticks(span: float) -> Locator:
    """Return round numbers, closer together where the axis spans less than a decade."""
    if span < LESS_THAN_A_DECADE:
        return MaxNLocator(5, steps=[1, 2, 5, 10])
    return LogLocator(subs=(1.0,) if span > SEVERAL_DECADES else (1.0, 2.0, 5.0))


def _set_ticks(axis: Axis, locator: Locator) -> None:
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(tick_text))


def _axis(axes: Axes, which: AxisName) -> Axis:
    return axes.xaxis if which == "x" else axes.yaxis


def _set_limits(axes: Axes, which: AxisName, low: float, high: float) -> None:
    set_limits = axes.set_xlim if which == "x" else axes.set_ylim
    set_limits(low, high)
