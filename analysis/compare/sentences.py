"""A comparison of two studies in sentences that claim no more than their launches support."""

import math
from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from analysis.compare.facts import ComparedFact
from analysis.compare.iou import A_HIGHER, B_HIGHER, REFUSED
from analysis.compare.sides import StudySide
from analysis.compare.throughput import A_FASTER, B_FASTER, SUGGESTIONS
from analysis.findings.comparison import NO_DIFFERENCE, NOT_ENOUGH, WITHHELD
from analysis.findings.machines import clocks_differ, with_clocks
from analysis.findings.order import start_times
from analysis.statistics.intervals import FEWEST_REPEATS, RECOMMENDED_REPEATS
from analysis.study import NAMES
from analysis.text import Row, count, first_of, listed, series_name

# A sentence names so many points; compare.csv has the others.
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
    claims = (A_FASTER, B_FASTER, *SUGGESTIONS)
    for outcome in (*claims, WITHHELD):
        for row in rows:
            if row["outcome"] == outcome:
                yield _claim(a, b, row)
    yield from _together(rows, "outcome", NO_DIFFERENCE, _no_difference)
    yield from _together(rows, "outcome", NOT_ENOUGH, _too_few)


def _claim(a: StudySide, b: StudySide, row: Row) -> str:
    faster, slower = (b, a) if row["ratio_low"] > 1 else (a, b)
    low, high = sorted(_percent(row[name]) for name in ("ratio_low", "ratio_high"))
    digits = 0 if low >= 1 else 1
    by = f"{_percent(row['ratio']):.{digits}f} % faster than {slower.letter}"
    verb = "measured" if row["outcome"] == WITHHELD else "is"
    claim = f"{faster.title} {verb} {by} [{low:.{digits}f}, {high:.{digits}f}] with {point_name_of(row)}"
    if row["outcome"] == WITHHELD:
        return f"no verdict on speed: {claim}, but {row['doubts']}"
    if row["outcome"] in SUGGESTIONS:
        return f"a few launches suggest that {claim} ({_evidence(row)}; {RECOMMENDED_REPEATS} can show it)"
    return f"{claim} ({_evidence(row)})"


def point_name_of(row: Row) -> str:
    """Return "native DDP, bucket_cap_mb=5, precision=bf16 on 4 workers"."""
    return f"{series_label(row)} on {count(row['workers'], 'worker')}"


def series_label(row: Row) -> str:
    """Return the framework of a row with all its options, those that both frameworks have last."""
    return ", ".join(filter(None, (series_name(row, NAMES), row["options"])))


def _percent(ratio: float) -> float:
    """Return how much faster the faster study is."""
    return 100 * math.expm1(abs(math.log(ratio)))


def _evidence(row: Row) -> str:
    launches = f"{row['launches_a']} and {row['launches_b']} launches"
    corrected = f"; corrected for {row['comparisons']:.0f} comparisons" if row["comparisons"] > 1 else ""
    return f"{100 * row['coverage']:.0f} % interval, {launches}{corrected}"


def _together(rows: Rows, column: str, outcome: str, text: Callable[[Row], str]) -> Iterator[str]:
    """Yield one sentence on all points of this outcome."""
    found = [f"{point_name_of(row)}{text(row)}" for row in rows if row[column] == outcome]
    if found:
        yield f"{outcome}: {first_of(found, 'point', _MOST_POINTS, separator='; ')}"


def _no_difference(row: Row) -> str:
    ratio = f": B / A {row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}]"
    needed = row["launches_needed"]
    if math.isnan(needed):
        return ratio
    number = f"about {needed:.0f}" if needed <= _MOST_ADVISED else f"more than {_MOST_ADVISED}"
    return f"{ratio} ({number} launches of each would show it, if it is true)"


def _too_few(row: Row) -> str:
    have = f"{row['launches_a']} in A, {row['launches_b']} in B"
    needed = f"at least {FEWEST_REPEATS} of each are needed, {RECOMMENDED_REPEATS} recommended"
    return f": B / A {row['ratio']:.3f} measured, of launches {have}; {needed}"


def _of_iou(a: StudySide, b: StudySide, rows: Rows) -> Iterator[str]:
    for row in rows:
        if row["iou_outcome"] in (A_HIGHER, B_HIGHER):
            higher = (a if row["iou_outcome"] == A_HIGHER else b).title
            size = _within_margin(row, min(side.study.criteria.iou_margin for side in (a, b)))
            yield f"IoU is higher in {higher} with {point_name_of(row)}: B - A {_difference(row)}{size}"
    equal = [row for row in rows if row["iou_outcome"] == NO_DIFFERENCE]
    if equal:
        found = [f"{point_name_of(row)}: B - A {_difference(row)}" for row in equal]
        yield f"IoU: {NO_DIFFERENCE}: {first_of(found, 'point', _MOST_POINTS, separator='; ')}"
    refused = dict.fromkeys(row["iou_remarks"] for row in rows if row["iou_outcome"] == REFUSED)
    if refused:
        yield f"IoU is not compared: {listed(refused)}"
    few = [point_name_of(row) for row in rows if row["iou_outcome"] == NOT_ENOUGH]
    if few:
        needed = f"at least {FEWEST_REPEATS} of each study are needed"
        yield f"IoU: not enough seeds, {needed}: {first_of(few, 'point', _MOST_POINTS, separator='; ')}"


def _within_margin(row: Row, margin: float) -> str:
    """Return that a difference is smaller than the studies care for; else nothing."""
    inside = -margin < row["iou_difference_low"] and row["iou_difference_high"] < margin
    return f", within the margin of {margin:g}" if inside else ""


def _difference(row: Row) -> str:
    low, high = (row[f"iou_difference_{end}"] for end in ("low", "high"))
    return f"{row['iou_difference']:+.4f} [{low:+.4f}, {high:+.4f}]"


def remarks_on(a: StudySide, b: StudySide, differing: Sequence[ComparedFact]) -> Iterator[str]:
    """Yield what no ratio tells by itself: how many things differ, when both studies ran, shared launches."""
    yield from _copies(a, b)
    if len(differing) > 1:
        yield f"the studies differ in {len(differing)} facts: a ratio is that of all of them together"
    if not a.study.provenance_known:
        yield "logs in the older layout do not say what differs: code, versions, machine and data are unknown"
    yield from _apart(a, b)
    yield from _clocks(a, b)
    for side in (a, b):
        if len(side.study.left_out):
            left_out = count(len(side.study.left_out), "run")
            yield f"{side.letter} leaves out {left_out}: python -m analysis {side.folder} says why"
        yield from (f"{side.letter}: {note}" for note in side.study.notes)


def _copies(a: StudySide, b: StudySide) -> Iterator[str]:
    """Yield how many launches stand in both studies: they are no evidence that two things are equal."""
    first, second = ({_launch(side, run) for run in side.study.headers} for side in (a, b))
    if first & second:
        yield f"{count(len(first & second), 'launch')} stand in both studies: they are the same measurement"


def _launch(side: StudySide, run: str) -> tuple[object, ...]:
    header = side.study.headers[run]
    row = side.study.runs[side.study.runs["run"] == run].iloc[0]
    return header.config_sha256, header.started_utc, row["hosts"], row["images_per_second"], row["iou"]


def _apart(a: StudySide, b: StudySide) -> Iterator[str]:
    """Yield when both studies ran, where one ran before the other."""
    times = [start_times(side.study.runs).dropna() for side in (a, b)]
    if any(started.empty for started in times):
        return
    first, second = times
    if first.max() < second.min() or second.max() < first.min():
        spans = [f"{started.min():%Y-%m-%d %H:%M} to {started.max():%Y-%m-%d %H:%M}" for started in times]
        changed = "what changed on the machine between them is part of every ratio"
        yield f"A ran {spans[0]}, B {spans[1]} (UTC): {changed}"


def _clocks(a: StudySide, b: StudySide) -> Iterator[str]:
    first, second = (float(with_clocks(side.study)["mhz"].median()) for side in (a, b))
    if clocks_differ(first, second):
        yield f"the median clock of the cores was {first:,.0f} MHz in A, {second:,.0f} MHz in B"
