"""A row of the fairness table: what should be equal between two frameworks, whether it is, and the fact."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from analysis.study import COMPARED, NAMES
from unet_scaling.study.config import Framework

YES = "yes"
NO = "no"
NOT_KNOWN = "not known"


class PointPair(NamedTuple):
    """The key of a comparison: KEY."""

    options: str
    native_knobs: str
    other_knobs: str
    workers: int
    framework: Framework = COMPARED[1]


@dataclass(frozen=True)
class Check:
    """One row of the fairness table: what should be equal, whether it is, and the fact.

    `withholds`: this is reason enough not to call a framework faster; at the points in `pairs`, or at all
    points where `pairs` is empty. `framework`: which one is compared with native DDP, where the row is of
    such a pair and that is not Horovod. `remark` is said beside every claim, whatever the mark.
    """

    check: str
    mark: str
    fact: str
    withholds: bool = False
    pairs: frozenset[PointPair] = frozenset()
    framework: Framework | None = None
    remark: str = ""

    @property
    def title(self) -> str:
        """Return the check, with the framework that it is about where that is not Horovod."""
        return f"{self.check} ({NAMES[self.framework]})" if self.framework else self.check

    @property
    def one_sided(self) -> bool:
        """Return whether one framework's runs alone leave it unknown, so that they may differ in it."""
        return self.mark == NOT_KNOWN and self.withholds


# Checks return these; the fairness table knows their names.
def yes(fact: str) -> Check:
    """Return a check that holds."""
    return Check("", YES, fact)


def no(fact: str) -> Check:
    """Return a check that does not hold, and forbids no claim."""
    return Check("", NO, fact)


def withhold_claims(fact: str, pairs: Iterable[PointPair] = ()) -> Check:
    """Return a check that does not hold and forbids to call a framework faster, at these points or at all."""
    return Check("", NO, fact, withholds=True, pairs=frozenset(pairs))


def not_known(fact: str) -> Check:
    """Return a check that the records cannot answer."""
    return Check("", NOT_KNOWN, fact)


def recorded_by_one(fact: str, pairs: Iterable[PointPair]) -> Check:
    """Return a check that only one framework's records answer at these points: no claim may rest on it."""
    return Check("", NOT_KNOWN, fact, withholds=True, pairs=frozenset(pairs))
