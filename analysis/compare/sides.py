"""The two studies of a comparison, called A and B, and which of their points are compared."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from analysis.load import load_study
from analysis.older import load_reference
from analysis.options import OPERATIONAL, flat_options, labels, shown
from analysis.study import POINT, Study
from unet_scaling.study.config import ALL_FRAMEWORKS, Framework
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.record_lines import Header

Letter = Literal["A", "B"]
# More reasons would hide the advice; left_out.csv of the study's own report has them all.
_MOST_REASONS = 3


@dataclass(frozen=True)
class StudyPoint:
    """A point of one study: its runs, and its options by flat key, {"training.precision": "fp32", ...}."""

    framework: Framework
    workers: int
    runs: tuple[str, ...]
    settings: Mapping[str, str]


@dataclass(frozen=True)
class StudySide:
    """One of the two studies, its folder and its points, in the order of its runs."""

    letter: Letter
    folder: Path
    study: Study
    points: tuple[StudyPoint, ...]

    @property
    def title(self) -> str:
        """Return "A (before)"."""
        return f"{self.letter} ({self.study.name})"

    def headers(self, points: Sequence[StudyPoint]) -> list[Header]:
        """Return the headers of the runs of these points; none of logs in the older layout."""
        headers = self.study.headers
        return [headers[run] for point in points for run in point.runs if run in headers]

    def label(self, point: StudyPoint, axes: Sequence[str]) -> tuple[str, str]:
        """Return what these axes say of a point: shared options, and knobs of its framework."""
        headers = self.headers([point])
        return labels(headers[0].config, axes) if headers else ("", "")


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


def read_side(letter: Letter, folder: Path) -> StudySide:
    """Return the study in a folder: its records, or logs in the older layout where it has no records.

    Raises UserError where the folder is missing or holds no usable run.
    """
    # Logs beside records lie in the folders of their runs.
    is_older = folder.is_dir() and any(folder.glob("log_*.csv"))
    study = load_reference(folder) if is_older else load_study(folder)
    if study.runs.empty and len(study.subject.runs):
        played = study.played is not None
        runs = "played runs only (training.plays)" if played else "no run with an epoch after the warm-up"
        raise UserError(f"{letter} = {folder} has {runs}: there is no speed to compare", EXIT_BAD_DATA)
    if study.runs.empty:
        rows = study.left_out.iloc[:_MOST_REASONS].to_dict("records")
        reasons = "; ".join(f"{row['run']}: {row['reason']}" for row in rows)
        raise UserError(f"{letter} = {folder} has no usable run: {reasons}", EXIT_BAD_DATA)
    points = []
    for _, rows_of_point in study.runs.groupby(POINT, sort=False):
        first = rows_of_point.iloc[0]
        header = study.headers.get(first["run"])
        options = flat_options(header.config) if header else {}
        settings = {name: shown(value) for name, value in options.items()}
        runs_of_point = tuple(rows_of_point["run"])
        points.append(StudyPoint(first["framework"], int(first["workers"]), runs_of_point, settings))
    return StudySide(letter, folder, study, tuple(points))


def match_points(a: StudySide, b: StudySide) -> Matching:
    """Match the points of both studies, in the order of A.

    An option changed where all of A has one value of it and all of B another: it is what is compared, so
    points may differ in it. In every other option they must agree, but for those that only guard a run or
    name a place, unless a study varies them.
    """
    varied = dict.fromkeys((*a.study.axes, *b.study.axes))
    places = frozenset(OPERATIONAL) - {*varied}
    ignored = {name: _changed_options(a.points, b.points, name) | places for name in ALL_FRAMEWORKS}

    def key(point: StudyPoint) -> Hashable:
        kept = {item for item in point.settings.items() if item[0] not in ignored[point.framework]}
        return point.framework, point.workers, frozenset(kept)

    of_b = {key(point): point for point in b.points}
    matches, only_a = [], []
    for point in a.points:
        other = of_b.pop(key(point), None)
        if other is None:
            only_a.append(point)
            continue
        axes = [axis for axis in varied if axis not in ignored[point.framework]]
        matches.append(PointMatch(point, other, *a.label(point, axes)))
    return Matching(tuple(matches), tuple(only_a), tuple(of_b.values()))


def _changed_options(a: Sequence[StudyPoint], b: Sequence[StudyPoint], framework: str) -> frozenset[str]:
    """Return the options that have one value at all points of A, and another one at all of B."""
    first: dict[str, set[str]] = {}
    second: dict[str, set[str]] = {}
    for values, points in ((first, a), (second, b)):
        for point in points:
            if point.framework == framework:
                for key, value in point.settings.items():
                    values.setdefault(key, set()).add(value)
    return frozenset(
        key
        for key in first.keys() & second.keys()
        if len(first[key]) == len(second[key]) == 1 and first[key] != second[key]
    )
