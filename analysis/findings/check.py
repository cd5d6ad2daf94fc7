"""One row of the fairness table: what should be equal, whether it is, and what a "no" forbids."""

from collections.abc import Iterable
from dataclasses import dataclass

YES, NO, NOT_KNOWN = "yes", "no", "not known"
# The check of the runs on 1 worker as the baseline of those on more.
BASELINE = "same baseline"
WITHOUT_RECORD = "logs in the older layout do not say"

# Options, knobs of native DDP, knobs of Horovod, workers: one row of analysis/findings/comparison.py.
Pair = tuple[str, str, str, int]


@dataclass(frozen=True)
class Check:
    """What should be equal, whether it is ("yes", "no", "not known"), and the fact.

    `withholds`: this "no" is reason enough not to call a framework faster; at the points in `pairs`, or
    at all points where `pairs` is empty. `one_sided`: this "not known" is of one framework's runs alone,
    so that they may differ in it from the other's.
    """

    check: str
    mark: str
    fact: str
    withholds: bool = False
    pairs: frozenset[Pair] = frozenset()
    one_sided: bool = False


def withholding(checks: Iterable[Check], pair: Pair) -> list[Check]:
    """Return the checks that forbid to call a framework faster at this point."""
    return [check for check in checks if check.withholds and (not check.pairs or pair in check.pairs)]
