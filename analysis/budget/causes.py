"""Common to all rules of the diagnosis: a cause of overhead, and when an overhead is one to speak of."""

import math
from dataclasses import dataclass

from analysis.budget.point_facts import PointFacts
from analysis.study import NAN

# Of the point's worker time, and by judgement, as every threshold of the rules for which no measurement is
# named: at 2 % noise of a launch 5 repeats show a difference of 3 % in about half of all studies
# (docs/statistics.md), so that the effect of a cure for less could not be seen.
REPORTED_OVERHEAD = 0.03
# Of the point's worker time, at the low end of its interval. An interval of 5 launches promises 94 %, and a
# study has two frameworks: with 0 up to 8 % of studies without any difference were blamed
# (benchmarks/false_diagnoses.py), with this 3.5 % of the same.
LEAST_SHOWN_OVERHEAD = 0.01
# Of an overhead, for what is named as its cause: two causes cannot each be the larger half.
EXPLAINS = 0.5


@dataclass(frozen=True)
class Cause:
    """A cause of overhead: the share of worker time it is about, the evidence, and what to try next.

    `at_stake` is what is lost against 1 worker, or of what is there on 1 worker too its share; its interval
    is NaN below 3 repeats, and where no interval of the overhead budget is of it alone.
    """

    at_stake: float
    finding: str
    evidence: str
    try_next: str
    at_stake_low: float = NAN
    at_stake_high: float = NAN


def significant(facts: PointFacts, *parts: str, explained: float = 0.0) -> bool:
    """Return whether these parts have enough overhead, and the launches show it of one of them.

    From 3 repeats on an interval has to lie clearly above 0. `explained` is known to have another cause.
    """
    lows = [facts.overhead_intervals[part][0] - explained for part in parts]
    shown = any(math.isnan(low) or low >= LEAST_SHOWN_OVERHEAD for low in lows)
    overhead = sum(facts.overhead[part] for part in parts)
    return shown and overhead - explained >= REPORTED_OVERHEAD


def milliseconds(seconds: float) -> str:
    """Return a time of a step as text: "145 ms", or "1.2 s" from a second on."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
