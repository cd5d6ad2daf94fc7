"""Match the points of two studies: equal framework, workers and options, but for options that changed."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from analysis.compare.sides import StudyPoint, StudySide
from analysis.loading.options import OPERATIONAL
from unet_scaling.study.config import FRAMEWORKS, Framework

# The options that need not agree, by framework.
Ignored = Mapping[Framework, frozenset[str]]


@dataclass(frozen=True)
class PointMatch:
    """A point of A, the point of B that it is compared with, and what tells the match from others."""

    a: StudyPoint
    b: StudyPoint
    options: str
    knobs: str


@dataclass(frozen=True)
class Matching:
    """The points that both studies have, and those that only one of them has."""

    matches: tuple[PointMatch, ...]
    only_a: tuple[StudyPoint, ...]
    only_b: tuple[StudyPoint, ...]


def match_points(a: StudySide, b: StudySide) -> Matching:
    """Match the points of both studies, in the order of A.

    An option changed where all of A has one value of it and all of B another: it is what is compared, so
    points may differ in it. In every other option they must agree, but for those that only guard a run or
    name a place, unless a study varies them.
    """
    ignored = _ignored(a, b)
    of_b = {_key(point, ignored): point for point in b.points}
    found = [(point, of_b.pop(_key(point, ignored), None)) for point in a.points]
    matches = [PointMatch(first, second, *_label(a, b, first, ignored)) for first, second in found if second]
    only_a = [first for first, second in found if not second]
    return Matching(tuple(matches), tuple(only_a), tuple(of_b.values()))


def _ignored(a: StudySide, b: StudySide) -> Ignored:
    places = frozenset(OPERATIONAL) - {*a.study.axes, *b.study.axes}
    return {name: changed_options(a.points, b.points, name) | places for name in FRAMEWORKS}


def changed_options(a: Sequence[StudyPoint], b: Sequence[StudyPoint], framework: str) -> frozenset[str]:
    """Return the options that have one value at all points of A, and another one at all of B."""
    first = _values(a, framework)
    second = _values(b, framework)
    return frozenset(
        key
        for key in first.keys() & second.keys()
        if len(first[key]) == len(second[key]) == 1 and first[key] != second[key]
    )


def _values(points: Sequence[StudyPoint], framework: str) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for point in points:
        if point.framework == framework:
            for key, value in point.settings.items():
                values.setdefault(key, set()).add(value)
    return values


def _key(point: StudyPoint, ignored: Ignored) -> Hashable:
    left_out = ignored[point.framework]
    settings = frozenset((key, value) for key, value in point.settings.items() if key not in left_out)
    return point.framework, point.workers, settings


def _label(a: StudySide, b: StudySide, point: StudyPoint, ignored: Ignored) -> tuple[str, str]:
    varied = dict.fromkeys((*a.study.axes, *b.study.axes))
    return a.label(point, [axis for axis in varied if axis not in ignored[point.framework]])
