"""A comparison of two studies in sentences that claim no more than their launches support."""

import math
from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from analysis.compare.iou import A_HIGHER, B_HIGHER, NEITHER_LEARNED, REFUSED
from analysis.compare.sides import StudySide
from analysis.compare.throughput import A_FASTER, B_FASTER, SUGGESTIONS
from analysis.contrast import NO_DIFFERENCE, NOT_ENOUGH, WITHHELD
from analysis.stats import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import NAMES
from analysis.text import Row, bracketed, count, interval, listed, number, series_name

# Points of one outcome are named up to this many; of more the tables tell.
_MOST_POINTS = 4
# More launches are out of reach: the number would only pretend to a plan.
_MOST_ADVISED = 100

Rows = Sequence[Row]


def headlines(a: StudySide, b: StudySide, points: pd.DataFrame) -> list[str]:
    """Return which study is faster where and where its IoU is higher, the surest answers first."""
    rows = points.to_dict("records")
    if not rows:
        return ["nothing to compare: no framework, number of workers and options that both studies have"]
    return [*_of_throughput(a, b, rows), *_of_iou(a, b, rows)]


def _of_throughput(a: StudySide, b: StudySide, rows: Rows) -> Iterator[str]:
    for outcome in (A_FASTER, B_FASTER, *SUGGESTIONS, WITHHELD):
        yield from (_claim(a, b, row) for row in rows if row["outcome"] == outcome)
    yield from _together(rows, "outcome", NO_DIFFERENCE, "", _no_difference)
    needed = f" (at least {FEWEST_REPEATS} of each study are needed, {RECOMMENDED_REPEATS} recommended)"
    yield from _together(rows, "outcome", NOT_ENOUGH, needed, _too_few)


def _claim(a: StudySide, b: StudySide, row: Row) -> str:
    if row["outcome"] == WITHHELD:
        return f"no verdict on speed: {_faster(a, b, row, 'measured')}, but {row['doubts']}"
    claim = _faster(a, b, row)
    if row["outcome"] in SUGGESTIONS:
        return f"a few launches suggest that {claim} ({_evidence(row)}; {RECOMMENDED_REPEATS} can show it)"
    return f"{claim} ({_evidence(row)})"


def _faster(a: StudySide, b: StudySide, row: Row, verb: str = "is") -> str:
    """Return "B (after) is 12 % faster than A [9, 15] with native DDP on 4 workers"."""
    faster, slower = (b, a) if row["ratio_low"] > 1 else (a, b)
    low, high = sorted(percent_faster(row[name]) for name in ("ratio_low", "ratio_high"))
    form = ".0f" if low >= 1 else ".1f"
    percent = f"{number(percent_faster(row['ratio']), form)} % faster than {slower.letter}"
    return f"{faster.title} {verb} {percent} {interval(low, high, form)} with {compared_point(row)}"


def percent_faster(ratio: float) -> float:
    """Return how much faster the faster study is."""
    return 100 * math.expm1(abs(math.log(ratio)))


def compared_point(row: Row) -> str:
    """Return "native DDP, bucket_cap_mb=5, precision=bf16 on 4 workers"."""
    return f"{series_label(row)} on {count(row['workers'], 'worker')}"


def series_label(row: Row) -> str:
    """Return the framework of a row with all its options, those that both frameworks have last."""
    return ", ".join(filter(None, (series_name(row, NAMES), row["options"])))


def _evidence(row: Row) -> str:
    launches = f"{row['launches_a']} and {row['launches_b']} launches"
    corrected = f"; corrected for {row['comparisons']:.0f} comparisons" if row["comparisons"] > 1 else ""
    return f"{100 * row['coverage']:.0f} % interval, {launches}{corrected}"


def _together(
    rows: Rows, column: str, outcome: str, advice: str, numbers: Callable[[Row], str]
) -> Iterator[str]:
    """Yield one sentence on all points of this outcome, with their numbers unless they are many."""
    found = [row for row in rows if row[column] == outcome]
    if len(found) > _MOST_POINTS:
        yield f"{outcome} at {len(found)} of {count(len(rows), 'point')}{advice}"
    elif found:
        points = "; ".join(f"{compared_point(row)}{numbers(row)}" for row in found)
        yield f"{outcome}{advice}: {points}"


def _no_difference(row: Row) -> str:
    ratio = f": B / A {row['ratio']:.3f} {bracketed(row['ratio_low'], row['ratio_high'], '.3f')}"
    needed = row["launches_needed"]
    if not math.isnan(needed):
        launches = f"about {needed:.0f}" if needed <= _MOST_ADVISED else f"more than {_MOST_ADVISED}"
        ratio = f"{ratio} ({launches} launches of each would show it, if it is true)"
    return f"{ratio}{_in_doubt(row)}"


def _too_few(row: Row) -> str:
    launches = f"{row['launches_a']} launches in A, {row['launches_b']} in B"
    return f": B / A {row['ratio']:.3f} of {launches}{_in_doubt(row)}"


def _in_doubt(row: Row) -> str:
    return f", but {row['doubts']}" if row["doubts"] else ""


def _of_iou(a: StudySide, b: StudySide, rows: Rows) -> Iterator[str]:
    heading = a.study.score.heading
    margin = min(side.study.criteria.iou_margin for side in (a, b))
    for row in rows:
        higher = {A_HIGHER: a, B_HIGHER: b}.get(row["iou_outcome"])
        if higher:
            where = f"in {higher.title} with {compared_point(row)}"
            yield f"{heading} is higher {where}{_difference(row, margin)}"
    yield from (f"{heading}: {text}" for text in _without_higher(rows))


def _without_higher(rows: Rows) -> Iterator[str]:
    needed = f" (at least {FEWEST_REPEATS} seeds of each study are needed)"
    yield from _together(rows, "iou_outcome", NO_DIFFERENCE, "", _difference)
    yield from _together(rows, "iou_outcome", NOT_ENOUGH, needed, lambda _: "")
    as_constant = ", since neither study scores more than a constant prediction"
    yield from _together(rows, "iou_outcome", NEITHER_LEARNED, as_constant, _scores)
    reasons = dict.fromkeys(row["iou_remarks"] for row in rows if row["iou_outcome"] == REFUSED)
    if reasons:
        yield f"not compared: {listed(reasons)}"


def _scores(row: Row) -> str:
    return f": A {row['iou_a']:.3f}, B {row['iou_b']:.3f}"


def _difference(row: Row, margin: float = 0.0) -> str:
    """Return the difference with its interval, and whether all of it is smaller than the studies care for."""
    low, high = (row[f"iou_difference_{end}"] for end in ("low", "high"))
    inside = f", within the margin of {margin:g}" if -margin < low and high < margin else ""
    unpaired = "" if row["seeds_paired"] else ", seeds not paired"
    return f": B - A {row['iou_difference']:+.4f} {bracketed(low, high, '+.4f')}{inside}{unpaired}"
