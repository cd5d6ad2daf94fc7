"""Everything that a comparison of two studies says, before any of it is written or printed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pandas as pd

from analysis.compare.contrast import A_FASTER, B_FASTER, compared_points
from analysis.compare.facts import OPTION, ComparedFact, compared_facts, remarks_on, unequal_samples
from analysis.compare.sides import StudySide, match_points
from analysis.contrast import NO_DIFFERENCE
from analysis.restriction import after, restriction_words
from analysis.score import Score
from analysis.study import NAMES
from analysis.text import count, first_of, series_name
from analysis.words import lines
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

# What the launches show of the speed of B against that of A.
SpeedChange = Literal["faster", "slower", "mixed", "equal", "unclear"]
# What a line has room for.
_MOST_NAMED = 12


@dataclass(frozen=True)
class StudyComparison:
    """Two studies, what differs between them, and the ratio and difference at every point that both have.

    `points` has one row per matched point, in the order of A; `only` one per point of one study alone.
    """

    a: StudySide
    b: StudySide
    facts: list[ComparedFact]
    points: pd.DataFrame
    only: pd.DataFrame

    @property
    def score(self) -> Score:
        """Return the score of both studies, which train one task."""
        return self.a.study.score

    @property
    def differing(self) -> list[ComparedFact]:
        """Return the facts in which the studies differ."""
        return [fact for fact in self.facts if fact.differs]

    @property
    def nothing_differs(self) -> str:
        """Return what to say in place of a table of differences."""
        if self.facts:
            return "Nothing that the records say."
        return "Not known: logs in the older layout say nothing of where they come from."

    @property
    def same(self) -> str:
        """Return what is the same in both studies, on one line; empty where no fact is known."""
        equal = [fact for fact in self.facts if not fact.differs]
        options = sum(fact.group == OPTION for fact in equal)
        others = [fact.name for fact in equal if fact.group != OPTION]
        return first_of([count(options, "option")] * bool(options) + others, "fact", _MOST_NAMED)

    @property
    def emulated(self) -> str:
        """Return what stands before every number of emulated studies; empty where workers computed."""
        words = dict.fromkeys(restriction_words(side.study) for side in (self.a, self.b))
        return "; ".join(filter(None, words))

    @property
    def change(self) -> SpeedChange:
        """Return whether B is faster at all points where anything is shown."""
        outcomes = {row["outcome"] for row in self.points.to_dict("records")}
        shown = outcomes & {A_FASTER, B_FASTER}
        if len(shown) > 1:
            return "mixed"
        if shown:
            return "faster" if B_FASTER in shown else "slower"
        return "equal" if outcomes == {NO_DIFFERENCE} else "unclear"

    @cached_property
    def headline(self) -> str:
        """Return which study is faster, by how much at how many points, and where the IoU of B is another."""
        return after(self.emulated, " ".join(self._said(headline=True)))

    @cached_property
    def headlines(self) -> list[str]:
        """Return which study is faster where, and where its IoU is higher, in sentences."""
        unequal = [] if self.points.empty else unequal_samples(self.differing, self.score)
        return [after(self.emulated, text) for text in (*unequal, *self._said(headline=False))]

    def _said(self, *, headline: bool) -> list[str]:
        values = {"a": self.a, "b": self.b, "rows": self.points.to_dict("records"), "score": self.score}
        return lines("compared", headline=headline, equal=self.change == "equal", **values)

    @property
    def only_lines(self) -> list[str]:
        """Return the points that one study alone has, one line for each framework and options."""
        found = []
        for _, rows in self.only.groupby(["only_in", "framework", "options", "knobs"], sort=False):
            first = rows.to_dict("records")[0]
            series = ", ".join(filter(None, (series_name(first, NAMES), first["options"])))
            workers = ", ".join(map(str, rows["workers"]))
            found.append(f"only in {first['only_in']}: {series} on workers {workers}")
        return found

    @cached_property
    def notes(self) -> list[str]:
        """Return what to know before any number is used."""
        return list(remarks_on(self.a, self.b, self.differing))


def compare_studies(a: StudySide, b: StudySide) -> StudyComparison:
    """Return the comparison of two studies. Pure: nothing is read or written.

    Raises UserError where only one of them has records: then no number of one can be held against the other.
    """
    if a.study.provenance_known != b.study.provenance_known:
        older, recorded = (a, b) if b.study.provenance_known else (b, a)
        raise UserError(
            f"{older.letter} = {older.folder} holds logs in the older layout, {recorded.letter} = "
            f"{recorded.folder} records: the logs say neither how many images an epoch has nor which images "
            "an IoU is of; compare two studies of one kind",
            EXIT_BAD_DATA,
        )
    matching = match_points(a, b)
    axes = tuple(dict.fromkeys((*a.study.axes, *b.study.axes)))
    only = [
        (point.framework, point.workers, *side.label(point, axes), side.letter)
        for side, points in ((a, matching.only_a), (b, matching.only_b))
        for point in points
    ]
    return StudyComparison(
        a,
        b,
        compared_facts(a, b, matching),
        compared_points(a, b, matching.matches),
        pd.DataFrame(only, columns=["framework", "workers", "options", "knobs", "only_in"]),
    )
