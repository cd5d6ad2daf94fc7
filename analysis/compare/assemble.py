"""Everything that a comparison of two studies says, before any of it is written or printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.compare.facts import OPTION, ComparedFact, compared_facts, unequal_samples
from analysis.compare.iou import iou_differences
from analysis.compare.matching import Matching, match_points
from analysis.compare.remarks import remarks_on
from analysis.compare.sentences import headlines
from analysis.compare.sides import StudyPoint, StudySide
from analysis.compare.throughput import throughput_ratios
from analysis.restriction import after, restriction_words
from analysis.score import Score
from analysis.text import count, first_of
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

_KEYS = ["framework", "workers", "options", "knobs"]
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
    def same(self) -> str:
        """Return what is the same in both studies, on one line; empty where no fact is known."""
        equal = [fact for fact in self.facts if not fact.differs]
        options = sum(fact.group == OPTION for fact in equal)
        others = [fact.name for fact in equal if fact.group != OPTION]
        parts = [count(options, "option")] * bool(options) + others
        return first_of(parts, "fact", _MOST_NAMED)

    @property
    def emulated(self) -> str:
        """Return what stands before every number of emulated studies; empty where workers computed."""
        words = dict.fromkeys(restriction_words(side.study) for side in (self.a, self.b))
        return "; ".join(filter(None, words))

    @cached_property
    def headlines(self) -> list[str]:
        """Return which study is faster where, and where its IoU is higher, in sentences."""
        found = headlines(self.a, self.b, self.points)
        every = found if self.points.empty else [*unequal_samples(self.differing, self.score), *found]
        return [after(self.emulated, text) for text in every]

    @cached_property
    def notes(self) -> list[str]:
        """Return what to know before any number is used."""
        return list(remarks_on(self.a, self.b, self.differing))


def compare_studies(a: StudySide, b: StudySide) -> StudyComparison:
    """Return the comparison of two studies. Pure: nothing is read or written.

    Raises UserError where only one of them has records: then no number of one can be held against the other.
    """
    if a.study.provenance_known != b.study.provenance_known:
        raise UserError(_without_records(a, b), EXIT_BAD_DATA)
    matching = match_points(a, b)
    only = pd.concat([_only(a, matching.only_a, b), _only(b, matching.only_b, a)], ignore_index=True)
    return StudyComparison(a, b, compared_facts(a, b, matching), _points(a, b, matching), only)


def _without_records(a: StudySide, b: StudySide) -> str:
    older, recorded = (a, b) if b.study.provenance_known else (b, a)
    return (
        f"{older.letter} = {older.folder} holds logs in the older layout, {recorded.letter} = "
        f"{recorded.folder} records: the logs say neither how many images an epoch has nor which images an "
        "IoU is of; compare two studies of one kind"
    )


def _points(a: StudySide, b: StudySide, matching: Matching) -> pd.DataFrame:
    keys = [(match.a.framework, match.a.workers, match.options, match.knobs) for match in matching.matches]
    table = pd.DataFrame(keys, columns=_KEYS)
    if not keys:
        return table
    ratios = throughput_ratios(a, b, matching.matches)
    return pd.concat([table, ratios, iou_differences(a, b, matching.matches)], axis=1)


def _only(side: StudySide, points: Sequence[StudyPoint], other: StudySide) -> pd.DataFrame:
    axes = tuple(dict.fromkeys((*side.study.axes, *other.study.axes)))
    rows = [(point.framework, point.workers, *side.label(point, axes), side.letter) for point in points]
    return pd.DataFrame(rows, columns=[*_KEYS, "only_in"])
