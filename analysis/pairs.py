"""What is compared: points and runs of native DDP beside those of another framework; and checks of them."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from analysis.stats import counts_for_speed
from analysis.study import COMPARED, NAMES, POINT, Study
from analysis.text import Row, clean, count, first_of
from unet_scaling.study.config import Framework

PAIR = ["options", "native_knobs", "horovod_knobs", "workers"]
# With the framework that is compared with native DDP: its knobs are `horovod_knobs`, whichever it is.
KEY = [*PAIR, "framework"]
# A sentence carries three examples; the rest is counted.
MOST_EXAMPLES = 3
YES = "yes"
NO = "no"
NOT_KNOWN = "not known"
# The check of the runs on 1 worker as the baseline of those on more.
BASELINE = "same baseline"
# The check that neither other programs nor stalls disturbed the launches.
QUIET = "machine quiet"

Sides = tuple[Sequence[Row], Sequence[Row]]


class PointPair(NamedTuple):
    """The key of a comparison: KEY."""

    options: str
    native_knobs: str
    horovod_knobs: str
    workers: int
    framework: Framework = COMPARED[1]


@dataclass(frozen=True)
class Check:
    """One row of the fairness table: what should be equal, whether it is, and the fact.

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


def no(fact: str) -> Check:
    """Return a check that does not hold, and forbids no claim."""
    return Check("", NO, fact)


def withhold_claims(fact: str, pairs: Iterable[PointPair] = ()) -> Check:
    """Return a check that does not hold and forbids to call a framework faster, at these points or at all."""
    return Check("", NO, fact, withholds=True, pairs=frozenset(pairs))


def not_known(fact: str) -> Check:
    """Return a check that the records cannot answer."""
    return Check("", NOT_KNOWN, fact)


def known_of_one(fact: str, pairs: Iterable[PointPair]) -> Check:
    """Return a check that only one framework's records answer at these points: no claim may rest on it."""
    return Check("", NOT_KNOWN, fact, withholds=True, pairs=frozenset(pairs))


def side_by_side(table: pd.DataFrame, on: Sequence[str]) -> pd.DataFrame:
    """Return every pair of rows of native DDP and of another framework that agree in the columns `on`.

    `framework` is the other one. Other columns end in `_native` and `_other`; the knobs are `native_knobs`
    and `horovod_knobs`.
    """
    is_native = table["framework"] == COMPARED[0]
    native = table[is_native].drop(columns="framework")
    both = native.merge(table[~is_native], on=list(on), suffixes=("_native", "_other"))
    return both.rename(columns={"knobs_native": "native_knobs", "knobs_other": "horovod_knobs"})


def paired_runs(study: Study) -> pd.DataFrame:
    """Return one row for each pair of runs of one repeat: KEY, repeat, and the columns of both runs.

    Pairs with a disturbed launch are left out where enough others of their point remain; `has_disturbed`
    tells the others of these.
    """
    pairs = side_by_side(study.runs, ["options", "workers", "repeat"])
    pairs["has_disturbed"] = (pairs["disturbed_native"] != "") | (pairs["disturbed_other"] != "")
    return pairs[counts_for_speed(pairs, pairs["has_disturbed"], KEY)].reset_index(drop=True)


def pair_of(row: Sequence[Any]) -> PointPair:
    """Return the values of PAIR, or of KEY, as plain text and number."""
    options, native, horovod, workers, *framework = row
    return PointPair(str(options), str(native), str(horovod), int(workers), *framework)


def pairs_of(table: pd.DataFrame) -> list[PointPair]:
    """Return the KEY of each row."""
    return [pair_of(row) for row in table[KEY].itertuples(index=False, name=None)]


def grouped(runs: Iterable[Row], columns: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """Return the runs that agree in these columns, by their values, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in runs:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    return groups


def sides(runs: Iterable[Row]) -> dict[PointPair, Sides]:
    """Return every pair of points of equal options and workers, with the runs of each framework."""
    points = grouped(runs, POINT)
    alike: dict[Hashable, list[tuple[Any, ...]]] = {}
    for point in points:
        options, _, _, workers = point
        alike.setdefault((options, workers), []).append(point)
    return {
        PointPair(options, knobs, other[2], workers, other[1]): (own, points[other])
        for (options, framework, knobs, workers), own in points.items()
        if framework == COMPARED[0]
        for other in alike[options, workers]
        if other[1] != COMPARED[0]
    }


def repeats_of(both: Sides) -> Iterator[tuple[Row, Row]]:
    """Yield the two runs of each repeat that both frameworks have."""
    others = {row["repeat"]: row for row in both[1]}
    return ((row, others[row["repeat"]]) for row in both[0] if row["repeat"] in others)


def names_of_pair(study: Study, pair: PointPair) -> tuple[str, str]:
    """Return the names of native DDP and of the framework that is compared with it."""
    return study.names[COMPARED[0]], study.names.get(pair.framework, NAMES[pair.framework])


def in_both(name: str, values: Iterable[Sequence[str]], names: Iterable[str]) -> str:
    """Return what both frameworks have of a fact: "hosts: a in native DDP, b in Horovod"."""
    shown = [first_of([clean(value) for value in own], "value", MOST_EXAMPLES) for own in values]
    told = [f"{text or 'not recorded'} in {arm}" for text, arm in zip(shown, names, strict=True)]
    return f"{clean(name)}: {', '.join(told)}"


def point_name(pair: PointPair) -> str:
    """Return "at 2 workers (lr=0.1; bucket=5)"."""
    varied = "; ".join(part for part in (pair.options, pair.native_knobs, pair.horovod_knobs) if part)
    return clean(f"at {count(pair.workers, 'worker')}{f' ({varied})' if varied else ''}")


def first_points(parts: Iterable[str]) -> str:
    """Return the first of these phrases about points, and how many more there are."""
    return first_of(list(parts), "point", MOST_EXAMPLES, separator="; ")
