"""Axes of charts: linear from zero or logarithmic, with plain numbers and the worker counts as ticks."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

WIDE_RATIO = 32
LESS_THAN_A_DECADE, SEVERAL_DECADES = 6, 1000
LEAST_DISTANCE = 0.043

Name = Literal["x", "y"]


def is_wide(counts: Sequence[int]) -> bool:
    """Whether the worker counts span so much that their axis is logarithmic."""
    return counts[-1] >= WIDE_RATIO * counts[0]


def worker_axis(axes: Axes, counts: Sequence[int], *, room: float = 1.2) -> None:
    """The axis of workers: ticks where something was measured, from zero, or logarithmic where wide.

    `room` leaves space for labels to the right of the last count, as a factor on a linear axis.
    """
    axes.set_xlabel("workers")
    if is_wide(counts):
        axes.set_xscale("log", base=2)
        span = counts[-1] / counts[0]
        axes.set_xlim(counts[0] / span**0.06, counts[-1] * span ** (room - 1))
    else:
        axes.set_xlim(0, room * counts[-1])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(spaced(axes, counts))
    axes.xaxis.set_major_formatter(FuncFormatter(tick_text))


def spaced(axes: Axes, counts: Sequence[int]) -> list[int]:
    """The worker counts without those whose labels would touch; the largest stays."""
    kept: list[int] = []
    places: list[float] = []
    for count in reversed(counts):
        place = in_panel(axes, count, 1.0)[0]
        if not places or places[-1] - place >= LEAST_DISTANCE * max(1.0, len(str(count)) / 2):
            kept.append(count)
            places.append(place)
    return kept[::-1]


def in_panel(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a place in data coordinates lies, as shares of the panel's width and height."""
    place = axes.transLimits.transform(axes.transScale.transform((x, y)))
    return float(place[0]), float(place[1])


def from_zero(
    axes: Axes, which: Name, values: NDArray[np.float64], *, least_top: float = 0.0, whole: bool = False
) -> None:
    """A linear axis that contains zero and, with some room, all values; at least up to `least_top`.

    `whole` keeps its ticks at whole numbers.
    """
    known = values[np.isfinite(values)]
    top = max(1.08 * float(known.max(initial=0.0)), least_top)
    bottom = 1.15 * float(known.min(initial=0.0))
    _limits(axes, which, (bottom, top if top > bottom else 1.0))
    axis = _axis(axes, which)
    axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=whole))
    axis.set_major_formatter(FuncFormatter(tick_text))


def logarithmic(
    axes: Axes, which: Name, values: NDArray[np.float64], *, below: float = 0.06, above: float = 0.06
) -> None:
    """A logarithmic axis that contains all positive values, with free shares of its length at both ends."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = float(known.min()), float(known.max())
    span = max(high / low, 1.5)
    limits = low / span**below, high * span**above
    axes.set(**{f"{which}scale": "log"})
    _limits(axes, which, limits)
    axis = _axis(axes, which)
    axis.set_major_locator(_logarithmic_ticks(span))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(tick_text))


def _logarithmic_ticks(span: float) -> Locator:
    """Round numbers, closer together where the axis spans less than a decade."""
    if span < LESS_THAN_A_DECADE:
        return MaxNLocator(5, steps=[1, 2, 5, 10])
    return LogLocator(subs=(1.0,) if span > SEVERAL_DECADES else (1.0, 2.0, 5.0))


def percent_axis(axes: Axes, which: Name) -> None:
    """Shares shown as per cent."""
    _axis(axes, which).set_major_formatter(FuncFormatter(lambda value, _: tick_text(100 * value) + " %"))


def tick_text(value: float, _position: object = None) -> str:
    """A tick's number: no exponent, thousands apart, a true minus sign."""
    return f"{value + 0.0:,.10g}".replace("-", "\N{MINUS SIGN}")


def _axis(axes: Axes, which: Name) -> Axis:
    return axes.xaxis if which == "x" else axes.yaxis


def _limits(axes: Axes, which: Name, limits: tuple[float, float]) -> None:
    if which == "x":
        axes.set_xlim(limits)
    else:
        axes.set_ylim(limits)
