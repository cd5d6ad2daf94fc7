"""Sets of options against each other: what differs, and which one is best where that can be said."""

from collections.abc import Sequence

from analysis.findings.device_words import device_words
from analysis.findings.headline import kind_of
from analysis.findings.phrases import point_words
from analysis.findings.recommendation import Recommendation
from analysis.loading.options import is_knob
from analysis.study import Study
from analysis.text import Row, count, listed


def compared_options(recommendations: Sequence[Recommendation]) -> str:
    """Return one line over the answers of a study with several sets of options; empty for one set."""
    if len(recommendations) < 2:
        return ""
    differing = listed(_differing(recommendations[0].candidates.study))
    sets = f"{count(len(recommendations), 'set')} of options that differ in {differing}"
    return f"{sets}: {_compared(recommendations)}"


def _compared(recommendations: Sequence[Recommendation]) -> str:
    kinds = {kind_of(advice) for advice in recommendations}
    if kinds == {"stay"}:
        return "do not scale out with any of them"
    if kinds - {"scale", "stay"}:
        return "which is best is not shown, as not every one has a decided answer"
    best = best_set(recommendations)
    title = recommendations[0].candidates.study.score.title
    if best is None:
        return f"which is best is not shown, as none has both a larger throughput and no lower {title}"
    study = best.candidates.study
    point = best.chosen[0]
    where = f"{best.options} on {point_words(point, device_words(study))}"
    return f"the fastest without a lower {title} is {where}, {point.shown('throughput')} {study.unit}"


def _differing(study: Study) -> list[str]:
    """Return the options that the sets differ in, by the names of their keys."""
    return [axis.partition(".")[2] for axis in study.axes if not is_knob(axis)]


def best_set(recommendations: Sequence[Recommendation]) -> Recommendation | None:
    """Return the set whose point is faster than that of every other, by whole intervals, at no lower IoU."""
    if not all(advice.chosen for advice in recommendations):
        return None
    for advice in recommendations:
        others = [other.chosen[0] for other in recommendations if other is not advice]
        if all(_beats(advice.chosen[0].row, other.row) for other in others):
            return advice
    return None


def _beats(row: Row, other: Row) -> bool:
    """Return whether a point is faster, and its IoU lower by no more than the margin, by whole intervals."""
    faster = row["throughput_low"] > other["throughput_high"]
    margin = min(row["margin"], other["margin"])
    return bool(faster and row["learned"] != "no" and row["iou_low"] > other["iou_high"] - margin)
