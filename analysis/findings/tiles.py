"""The tiles of an answer: speed, IoU, and time and cost of one point, lit by the checks of the tables."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from analysis.findings.candidates import Candidate, CandidateSet
from analysis.findings.cost import CLOCK
from analysis.findings.device_words import DeviceWords
from analysis.findings.phrases import baseline_iou, compared_rows, point_words, signed
from analysis.findings.recommendation import Recommendation
from analysis.findings.standing import MOST_EFFICIENCY
from analysis.findings.verdict import claim_of
from analysis.text import Row, interval_of, number, percent, unit_of_value, with_interval

COST_TITLE = "Time and cost"
Light = Literal["good", "caution", "bad", "unknown"]


@dataclass(frozen=True)
class Tile:
    """One aspect of an answer: a short value, a sentence with interval and unit, a light and its reasons."""

    title: str
    value: str
    detail: str
    light: Light
    reasons: tuple[str, ...] = ()


def subject_of(advice: Recommendation) -> Candidate:
    """Return the point that the tiles are about: the one chosen, or the fastest on more than 1 worker.

    Where nothing is recommended it is the fastest that may still qualify, which the headline names.
    """
    if advice.workers != 1 and advice.chosen:
        return advice.chosen[0]
    larger = advice.candidates.larger
    undecided = [point for point in larger if point.standing == "undecided"] if advice.workers is None else []
    return (undecided or larger or advice.candidates.candidates)[0]


def speed_tile(advice: Recommendation, words: DeviceWords) -> Tile:
    """Return the speed-up against the best point on 1 worker; the throughput where that is not known."""
    point = subject_of(advice)
    study = advice.candidates.study
    measured = f"{point_words(point, words)}: {point.shown('throughput')} {study.unit}"
    if _without_baseline(point):
        value = f"{number(point.throughput, '~3')} {study.unit}"
        light: Light = "unknown"
        detail = f"{measured}; {_lacking(point, f'no speed-up without every framework on {words.of(1)}')}"
    else:
        value = f"{number(point.row['speedup_common'], '~2')}x"
        light = _speed_light(advice, point)
        detail = f"{measured}, {_scaling(point, study.criteria.efficiency_floor, words)}"
    return Tile("Speed", value, detail, light, tuple(_of_speed(advice, point, words)))


def _of_speed(advice: Recommendation, point: Candidate, words: DeviceWords) -> Iterator[str]:
    yield from advice.doubts
    yield from _claims(advice, words)
    yield from _own_speedup(point)


def _without_baseline(point: Candidate) -> bool:
    return point.workers == 1 or math.isnan(point.row["speedup_common"])


def _lacking(point: Candidate, of_larger: str) -> str:
    """Return what a comparison with 1 worker lacks."""
    return of_larger if point.workers > 1 else "no larger count was measured"


def _scaling(point: Candidate, floor: float, words: DeviceWords) -> str:
    speedup = with_interval(point.row, "speedup_common", ".2f")
    efficiency = with_interval(point.row, "efficiency_common", ".2f")
    return f"{speedup} times the fastest on {words.of(1)}, efficiency {efficiency} (floor {floor:g})"


def _claims(advice: Recommendation, words: DeviceWords) -> Iterator[str]:
    """Yield how the frameworks compare at their largest common worker count."""
    for row in compared_rows(advice.candidates):
        knobs = " against ".join(filter(None, (row["native_knobs"], row["horovod_knobs"])))
        where = f"on {words.of(int(row['workers']))}{f' ({knobs})' if knobs else ''}"
        yield f"{where} {claim_of(row)}"


def _own_speedup(point: Candidate) -> Iterator[str]:
    """Yield the speed-up of the tables, where it is not that against the fastest point on 1 worker."""
    own = number(point.row["speedup"], ".2f")
    if point.workers > 1 and own != number(point.row["speedup_common"], ".2f"):
        yield f"{with_interval(point.row, 'speedup', '.2f')} times {point.series} itself on 1"


def _speed_light(advice: Recommendation, point: Candidate) -> Light:
    floor = advice.candidates.study.criteria.efficiency_floor
    low = point.row["efficiency_common_low"]
    if math.isnan(low):
        return "unknown"
    if point.row["efficiency_common_high"] < floor:
        return "bad"
    doubted = advice.doubts or low > MOST_EFFICIENCY
    return "caution" if doubted or low < floor else "good"


def iou_tile(advice: Recommendation, words: DeviceWords) -> Tile:
    """Return the change of IoU against 1 worker with its interval and the margin."""
    point = subject_of(advice)
    score = advice.candidates.study.score
    iou = f"{point_words(point, words)}: {score.title} {with_interval(point.row, 'iou', '.3f')}"
    value = number(point.row["iou"], ".3f")
    if not advice.candidates.study.provenance_known:
        return Tile(score.heading, value, f"{iou}; of which images is not known", "unknown")
    if math.isnan(point.row["difference"]):
        detail = f"{iou}; {_lacking(point, f'no difference to {words.of(1)} is known')}"
    else:
        value = signed(point.row["difference"])
        detail = f"{iou}, {_change_of_iou(point, advice.candidates, words)}"
    return Tile(score.heading, value, detail, _iou_light(point), tuple(_of_iou(point)))


def _change_of_iou(point: Candidate, candidates: CandidateSet, words: DeviceWords) -> str:
    before = f"on {words.of(1)} {number(baseline_iou(point, candidates), '.3f')}"
    change = f"{signed(point.row['difference'])} {interval_of(point.row, 'difference', '+.3f')}".strip()
    return f"{before}: {change}, margin {point.row['margin']:.2g}"


def _of_iou(point: Candidate) -> Iterator[str]:
    yield point.row["iou_why"]
    if point.criterion == "other_iou":
        yield point.reason


def _iou_light(point: Candidate) -> Light:
    if point.criterion == "other_iou" or point.row["diverged"] or point.row["learned"] == "no":
        return "bad"
    lights: dict[str, Light] = {"yes": "good", "no": "bad"}
    answer: str = point.row["non_inferior"]
    if answer == "baseline" or math.isnan(point.row["difference"]):
        return "unknown"
    return lights.get(answer, "caution")


def cost_tile(advice: Recommendation, words: DeviceWords) -> Tile:
    """Return hours and worker-hours of one training of the point to train with, and to the target IoU."""
    best = advice.chosen[0] if advice.chosen else subject_of(advice)
    value = _median_duration(best.row)
    if best.workers > 1:
        value = f"{value}, {words.cost(best.row)}"
    detail = "; ".join(_costs(advice, best, words))
    return Tile(COST_TITLE, value, detail, _cost_light(best), tuple(_of_cost(advice, best)))


def _costs(advice: Recommendation, best: Candidate, words: DeviceWords) -> Iterator[str]:
    time = _duration(best.row, "training_seconds")
    cost = f" and {words.cost_with_interval(best.row)}" if best.workers > 1 else ""
    yield f"{point_words(best, words)}: {time}{cost} a training"
    if not math.isnan(best.row["seconds_to_target"]):
        score = advice.candidates.study.score
        yield f"{score.title} {best.row['target_iou']:g} after {_duration(best.row, 'seconds_to_target')}"
    yield from _against_one(advice, best, words)


def _duration(row: Row, column: str) -> str:
    size, unit = unit_of_value(row[column])
    return f"{with_interval(row, column, '~3', size)} {unit}"


def _median_duration(row: Row) -> str:
    size, unit = unit_of_value(row["training_seconds"])
    return f"{number(row['training_seconds'] / size, '~3')} {unit}"


def _against_one(advice: Recommendation, best: Candidate, words: DeviceWords) -> Iterator[str]:
    """Yield what a training of the same series costs on 1 worker."""
    for one in advice.candidates.candidates:
        if best.workers > 1 and one.workers == 1 and one.series == best.series:
            yield f"on {words.of(1)} {_median_duration(one.row)} and {words.cost(one.row)}"


def _cost_light(best: Candidate) -> Light:
    if math.isnan(best.row["training_seconds"]):
        return "unknown"
    return "good" if best.row["pareto"] and best.row["learned"] != "no" else "caution"


def _of_cost(advice: Recommendation, best: Candidate) -> Iterator[str]:
    yield f"{'in' if best.row['pareto'] else 'not in'} the Pareto set of {best.row['pareto_of']}"
    yield CLOCK
    if best.row["runs_to_target"]:
        share = best.row["runs_to_target"] / best.row["repeats"]
        reached = f"{advice.candidates.study.score.title} {best.row['target_iou']:g}"
        yield f"{percent(share, 0)} of the runs reach {reached}"
