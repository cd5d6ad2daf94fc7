"""Axes of charts: linear from zero or logarithmic, with plain numbers and the worker counts as ticks."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

from analysis.arrays import Array

# From this ratio of the largest to the smallest worker count on, a linear axis presses small ones together.
_WIDE_RATIO = 32
# Ratios of the ends of a logarithmic axis: below the first its ticks are those of a linear axis, above the
# second they stand at powers of ten only.
LESS_THAN_A_DECADE = 6
SEVERAL_DECADES = 1000
# Share of a panel's width that a worker count of one or two digits needs.
LEAST_TICK_DISTANCE = 0.043

AxisName = Literal["x", "y"]


def is_wide(counts: Sequence[int]) -> bool:
    """Return whether the worker counts span so much that their axis is logarithmic."""
    return counts[-1] >= _WIDE_RATIO * counts[0]


def worker_axis(axes: Axes, counts: Sequence[int], *, stretch: float = 1.2) -> None:
    """Set up the axis of workers: ticks where something was measured; from zero, or logarithmic where wide.

    `stretch` leaves space for labels to the right of the last count, as a factor on a linear axis.
    """
    axes.set_xlabel("workers")
    if is_wide(counts):
        axes.set_xscale("log", base=2)
        span = counts[-1] / counts[0]
        axes.set_xlim(counts[0] / span**0.06, counts[-1] * span ** (stretch - 1))
    else:
        axes.set_xlim(0, stretch * counts[-1])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(spaced(axes, counts))
    axes.xaxis.set_major_formatter(FuncFormatter(tick_text))


def spaced(axes: Axes, counts: Sequence[int]) -> list[int]:
    """Return the worker counts without those whose labels would touch; the largest stays."""
    kept: list[int] = []
    last = np.inf
    for count in reversed(counts):
        x = in_panel(axes, count, 1.0)[0]
        if last - x >= LEAST_TICK_DISTANCE * max(1.0, len(str(count)) / 2):
            kept.append(count)
            last = x
    return kept[::-1]


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
