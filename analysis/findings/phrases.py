"""Phrases about the points of one set of options, which headlines and tiles share."""

import math
from collections.abc import Sequence

from analysis.findings.candidates import Candidate, CandidateSet
from analysis.findings.comparison import NOT_ENOUGH
from analysis.findings.device_words import DeviceWords
from analysis.findings.standing import MOST_EFFICIENCY, least_efficiency
from analysis.findings.verdict import claim_of, compared_framework
from analysis.study import COMPARED
from analysis.text import Row, first_of, number

# So many series fit in a headline.
MOST_SERIES = 4
# A fall of so many margins is plain from two digits.
MARGINS_BY_TWO_DIGITS = 5


def signed(difference: float) -> str:
    """Return a difference of IoU with its sign, "-0.002"; "±0.000" where it rounds to that."""
    text = number(difference, "+.3f")
    return "±0.000" if text in ("+0.000", "-0.000") else text


def point_words(point: Candidate, words: DeviceWords) -> str:
    """Return "8 GPUs with native DDP"."""
    return f"{words.of(point.workers)} with {point.series}"


def as_fast(point: Candidate) -> str:
    """Return how fast a point is against 1 worker, as far as its interval says."""
    speed = f"{number(point.row['speedup_common'], '~2')}x"
    if point.row["speedup_common_low"] > 1:
        return f"are {speed} as fast as 1"
    if point.row["speedup_common_high"] < 1:
        return f"are slower than 1 ({speed})"
    return f"are not shown to be faster than 1 ({speed})"


def is_doubted(point: Candidate, candidates: CandidateSet) -> bool:
    """Return whether the speed of a point against 1 worker may be wrong."""
    rows = [row for row in candidates.comparisons.values() if row["workers"] in (1, point.workers)]
    impossible = point.row["efficiency_common_low"] > MOST_EFFICIENCY
    unknown = math.isnan(point.row["speedup_common_low"])
    return bool(impossible or unknown or any(row["doubts"] for row in rows))


def why_not(point: Candidate, candidates: CandidateSet) -> str:
    """Return in few words why a point does not qualify."""
    if point.standing == "excluded" and point.criterion == "iou":
        # As many digits as tell the fall from the margin.
        digits = (
            ".2f" if abs(point.row["difference"]) > MARGINS_BY_TWO_DIGITS * point.row["margin"] else ".3f"
        )
        before = number(baseline_iou(point, candidates), digits)
        after = number(point.row["iou"], digits)
        return f"{candidates.study.score.title} falls from {before} to {after}"
    if point.standing == "excluded" and point.criterion == "efficiency":
        efficiency = number(point.row["efficiency_common"], ".2f")
        floor = least_efficiency(point.workers, candidates.study.criteria)
        return f"an efficiency of {efficiency} is below the floor of {floor:g}"
    return point.short


def baseline_iou(point: Candidate, candidates: CandidateSet) -> float:
    """Return the IoU of the same series on 1 worker, NaN where there is none."""
    same = [one for one in candidates.candidates if one.workers == 1 and one.series == point.series]
    return float(same[0].row["iou"]) if same else math.nan


def compared_rows(candidates: CandidateSet) -> Sequence[Row]:
    """Return the comparisons of the frameworks at the largest worker count that both have.

    Of several frameworks, those of the compared pair.
    """
    every = candidates.comparisons.values()
    rows = [row for row in every if compared_framework(row) == COMPARED[1]] or list(every)
    most = max((row["workers"] for row in rows), default=0)
    return [row for row in rows if row["workers"] == most]


def compared_clause(candidates: CandidateSet, words: DeviceWords) -> str:
    """Return how the frameworks compare at their largest common worker count; empty where they do not.

    With several settings of the knobs there is no single answer: the verdicts have them all.
    """
    rows = compared_rows(candidates)
    if len(rows) != 1 or rows[0]["outcome"] == NOT_ENOUGH:
        return ""
    return f"on {words.of(int(rows[0]['workers']))} {claim_of(rows[0])}"


def measured_so_far(candidates: CandidateSet, words: DeviceWords) -> str:
    """Return the speed of each series on its most workers: "Horovod 1.74x, native DDP 1.11x on 2 workers"."""
    points = _largest_of_each_series(candidates)
    speeds = [f"{point.series} {_speed(point, candidates)}" for point in points]
    counts = [words.of(point.workers) for point in points]
    if len(set(counts)) == 1:
        return f"{first_of(speeds, 'setting', MOST_SERIES)} on {counts[0]}"
    shown = [f"{speed} on {workers}" for speed, workers in zip(speeds, counts, strict=True)]
    return first_of(shown, "setting", MOST_SERIES)


def _largest_of_each_series(candidates: CandidateSet) -> list[Candidate]:
    ascending = sorted(candidates.candidates, key=lambda point: point.workers)
    largest = {point.series: point for point in ascending}
    return [largest[series] for series in sorted(largest)]


def _speed(point: Candidate, candidates: CandidateSet) -> str:
    # Against one baseline, else the framework that is slower on 1 worker would seem to be ahead.
    if point.workers > 1 and not math.isnan(point.row["speedup_common"]):
        return f"{number(point.row['speedup_common'], '.2f')}x"
    return f"{number(point.throughput, '~3')} {candidates.study.unit}"
