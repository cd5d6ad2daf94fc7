"""One row of the fairness table: what should be equal, whether it is, and which claims a "no" forbids."""

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.study import NAMES
from unet_scaling.study.config import Framework

YES = "yes"
NO = "no"
NOT_KNOWN = "not known"
# The check of the runs on 1 worker as the baseline of those on more.
BASELINE = "same baseline"
# The check that neither other programs nor stalls disturbed the launches.
QUIET = "machine quiet"
WITHOUT_RECORD = "logs in the older layout do not say"
WITHOUT_HEADER = "the records of scripts do not say"

# Options, knobs of native DDP, knobs of Horovod, workers: the key of a comparison (pairs.PAIR).
PointPair = tuple[str, str, str, int]


@dataclass(frozen=True)
class Check:
    """What should be equal, whether it is ("yes", "no", "not known"), and the fact.

    `withholds`: this is reason enough not to call a framework faster; at the points in `pairs`, or at all
    points where `pairs` is empty. `framework`: which one is compared with native DDP, where the row is of
    such a pair and that is not Horovod.
    """

    check: str
    mark: str
    fact: str
    withholds: bool = False
    pairs: frozenset[PointPair] = frozenset()
    framework: Framework | None = None

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


def no(fact: str, pairs: Iterable[PointPair] = ()) -> Check:
    """Return a check that does not hold, at these points or at all, and forbids no claim."""
    return Check("", NO, fact, pairs=frozenset(pairs))


def withhold_claims(fact: str, pairs: Iterable[PointPair] = ()) -> Check:
    """Return a check that does not hold and forbids to call a framework faster, at these points or at all."""
    return Check("", NO, fact, withholds=True, pairs=frozenset(pairs))


def not_known(fact: str) -> Check:
    """Return a check that the records cannot answer."""
    return Check("", NOT_KNOWN, fact)


def known_of_one(fact: str, pairs: Iterable[PointPair]) -> Check:
    """Return a check that only one framework's records answer at these points: no claim may rest on it."""
    return Check("", NOT_KNOWN, fact, withholds=True, pairs=frozenset(pairs))


def withholding(checks: Iterable[Check], pair: PointPair) -> list[Check]:
    """Return the checks that forbid to call a framework faster at this point."""
    return [check for check in checks if check.withholds and (not check.pairs or pair in check.pairs)]
