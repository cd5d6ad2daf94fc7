"""The answer of a comparison of two studies in one sentence, and what kind of answer it is."""

from collections.abc import Iterator, Sequence
from typing import Literal

from analysis.compare.assemble import StudyComparison
from analysis.compare.iou import A_HIGHER, B_HIGHER, NEITHER_LEARNED
from analysis.compare.sentences import compared_point, percent_faster
from analysis.compare.throughput import A_FASTER, B_FASTER
from analysis.contrast import NO_DIFFERENCE
from analysis.restriction import after
from analysis.score import Score
from analysis.text import Row, count, number

# What the launches show of the speed of B against that of A.
SpeedChange = Literal["faster", "slower", "mixed", "equal", "unclear"]


def speed_change(comparison: StudyComparison) -> SpeedChange:
    """Return whether B is faster at all points where anything is shown."""
    outcomes = {row["outcome"] for row in comparison.points.to_dict("records")}
    shown = outcomes & {A_FASTER, B_FASTER}
    if len(shown) > 1:
        return "mixed"
    if shown:
        return "faster" if B_FASTER in shown else "slower"
    return "equal" if outcomes == {NO_DIFFERENCE} else "unclear"


def study_headline(comparison: StudyComparison) -> str:
    """Return which study is faster, by how much at how many points, and where the IoU of B is another one."""
    rows = comparison.points.to_dict("records")
    if not rows:
        return comparison.headlines[0]
    speed = list(_faster(comparison, rows)) or [_not_shown(comparison, rows)]
    return after(comparison.emulated, "; ".join([*speed, *_iou(comparison.score, rows)]))


def _faster(comparison: StudyComparison, rows: Sequence[Row]) -> Iterator[str]:
    a = comparison.a
    b = comparison.b
    for outcome, faster, slower in ((B_FASTER, b, a), (A_FASTER, a, b)):
        found = [row for row in rows if row["outcome"] == outcome]
        if found:
            yield f"{faster.title} is {_percents(found)} faster than {slower.letter} {_place(found, rows)}"


def _percents(rows: Sequence[Row]) -> str:
    """Return "12 %", or "5 to 12 %" of several points."""
    percents = [percent_faster(row["ratio"]) for row in rows]
    form = ".0f" if min(percents) >= 1 else ".1f"
    ends = dict.fromkeys(number(end, form) for end in (min(percents), max(percents)))
    return f"{' to '.join(ends)} %"


def _place(found: Sequence[Row], rows: Sequence[Row]) -> str:
    if len(found) == 1:
        return f"with {compared_point(found[0])}"
    return f"at {len(found)} of {count(len(rows), 'point')}"


def _everywhere(rows: Sequence[Row]) -> str:
    return _place(rows, rows) if len(rows) == 1 else f"at any of {len(rows)} points"


def _not_shown(comparison: StudyComparison, rows: Sequence[Row]) -> str:
    titles = f"{comparison.a.title} and {comparison.b.title}"
    if speed_change(comparison) == "equal":
        return f"no significant difference in speed between {titles} {_everywhere(rows)}"
    return f"the launches do not show which of {titles} is faster"


def _iou(score: Score, rows: Sequence[Row]) -> Iterator[str]:
    for outcome, word in ((A_HIGHER, "lower"), (B_HIGHER, "higher")):
        found = [row for row in rows if row["iou_outcome"] == outcome]
        if found:
            most = max(abs(row["iou_difference"]) for row in found)
            up_to = "up to " if len(found) > 1 else ""
            yield f"the {score.title} of B is {word} {_place(found, rows)}, by {up_to}{number(most, '.3f')}"
    found = [row for row in rows if row["iou_outcome"] == NEITHER_LEARNED]
    if found:
        yield f"but neither learned anything {_place(found, rows)}"
