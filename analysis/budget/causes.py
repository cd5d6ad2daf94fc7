"""Common to all rules of the diagnosis: a cause of overhead, and when an overhead is one to speak of."""

import math
from dataclasses import dataclass

from scipy import stats  # type: ignore[import-untyped]

from analysis.budget.point_facts import PointFacts
from analysis.stats import CONFIDENCE
from analysis.study import NAN

# Of the point's worker time, and by judgement, as every threshold of the rules for which no measurement is
# named: at 2 % noise of a launch 5 repeats show a difference of 3 % in about half of all studies
# (docs/statistics.md), so that the effect of a cure for less could not be seen.
REPORTED_OVERHEAD = 0.03
# Of the point's worker time, at the low end of its interval as `significant` has it: then no noise of
# launches blames more than 5 % of studies without any difference (docs/statistics.md).
LEAST_SHOWN_OVERHEAD = 0.01
# What takes time on 1 worker too is longer or shorter with the pace of each launch as a whole: without an
# interval nothing is known of it. On 1 worker there is no wire and nobody to wait for.
VARIES_WITH_THE_PACE = ("compute", "data_wait")
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


def significant(facts: PointFacts, part: str, explained: float = 0.0) -> bool:
    """Return whether a part has enough overhead beyond what is `explained` by other causes, and it is shown.

    From 3 repeats on an interval has to lie clearly above 0. Of what varies with the pace it is widened by
    Student's t over the normal quantile, since a bootstrap of few launches is as much too narrow (Hesterberg,
    What Teachers Should Know About the Bootstrap, 2015, section 4.1.2).
    """
    overhead = facts.overhead[part]
    low = facts.overhead_intervals[part][0]
    if part in VARIES_WITH_THE_PACE and facts.alone is not None:
        if math.isnan(low):
            return False
        outside = (1 - CONFIDENCE) / 2
        freedom = min(facts.launches, facts.alone.launches) - 1
        low = overhead - (overhead - low) * stats.t.isf(outside, freedom) / stats.norm.isf(outside)
    return overhead - explained >= REPORTED_OVERHEAD and not low - explained < LEAST_SHOWN_OVERHEAD


def milliseconds(seconds: float) -> str:
    """Return a time of a step as text: "145 ms", or "1.2 s" from a second on."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
