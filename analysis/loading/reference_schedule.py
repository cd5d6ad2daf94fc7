"""The number of epochs that a log was asked for, as the learning rates in it tell."""

import math
from collections.abc import Sequence

# The reference study halves the rate at these shares of its epochs; at 0.75 a sibling of it one epoch later.
FIRST_DROP_SHARE = 0.4
SECOND_DROP_SHARE = 0.6
THIRD_DROP_SHARE = 0.75
# Rates are written with six decimals: each is off by up to half of the last.
_ROUNDING = 0.5e-6
SLACK = 1e-12  # of a sum of rounded numbers


def epochs_asked(rates: Sequence[float]) -> int | None:
    """Return the epochs that the reference's schedule tells, or None where the rates are not of it.

    `rates`: the learning rate of every epoch, in order. The first drop / 0.4 is what was asked for, where all
    three drops are there, each a halving at its place, and nothing else changes the rate but a rise to the
    scaled rate after the first epoch.
    """
    drops = _drops(rates)
    if len(drops) != 3 or not all(_is_half(rates[place], rates[place - 1]) for place in drops):
        return None
    first, second, third = drops
    epochs = round(first / FIRST_DROP_SHARE)
    places = (round(epochs * FIRST_DROP_SHARE, 6), round(epochs * SECOND_DROP_SHARE, 6))
    late = math.floor(round(epochs * THIRD_DROP_SHARE, 6))
    return epochs if (first, second) == places and third in (late, late + 1) else None


def _drops(rates: Sequence[float]) -> list[int]:
    """Return the epochs, counted from 0, at which the rate changes, but for a rise after the first epoch."""
    changes = [epoch for epoch in range(1, len(rates)) if rates[epoch] != rates[epoch - 1]]
    return changes[1:] if changes[:1] == [1] and rates[1] > rates[0] else changes


def _is_half(rate: float, before: float) -> bool:
    return abs(2 * rate - before) <= 3 * _ROUNDING + SLACK
