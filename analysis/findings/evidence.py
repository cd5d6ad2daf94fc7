"""The evidence behind a recommendation: the points named, those passed over, and the other framework."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from analysis.findings.candidates import Candidate, CandidateSet
from analysis.text import count, with_interval

# So many points of a kind are named; the rest is counted.
MOST_NAMED = 4


def evidence(chosen: Sequence[Candidate], candidates: CandidateSet) -> Iterator[str]:
    """Yield why these points are recommended, why faster ones are not, and what else qualifies."""
    best = chosen[0]
    yield from _other_framework(best, candidates)
    for point in chosen:
        yield f"{point}: {point.row['repeats']} repeats; IoU: {point.row['iou_why']}"
        yield f"{point}: {_cost(point)}"
    if best.workers == max(point.workers for point in candidates.candidates) > 1:
        yield f"{count(best.workers, 'worker')} is the largest count measured: a larger one may be worth it"
    faster = [point for point in candidates.candidates if point.throughput > best.throughput]
    yield from _passed_over(faster, candidates.study.unit)
    yield from _all_diverged(candidates)
    yield from _also_qualifying(chosen, candidates)


def _also_qualifying(chosen: Sequence[Candidate], candidates: CandidateSet) -> Iterator[str]:
    qualifying = [point for point in candidates.candidates if point.standing == "qualifies"]
    for point in [point for point in qualifying if point not in chosen][:MOST_NAMED]:
        throughput = f"{point.shown('throughput')} {candidates.study.unit}"
        efficiency = f"efficiency {point.shown('efficiency_common')}"
        yield f"also qualifies: {point}, {throughput}, {efficiency}, {_cost(point)}"


def why_not(candidates: CandidateSet) -> Iterator[str]:
    """Yield why points do not qualify, the fastest first, and which have no usable run."""
    yield from _passed_over(candidates.candidates, candidates.study.unit)
    yield from _all_diverged(candidates)


def _other_framework(best: Candidate, candidates: CandidateSet) -> Iterator[str]:
    """Yield how the other framework does on as many workers."""
    names = candidates.study.names
    others = [point for point in candidates.others(best) if point.workers == best.workers]
    if not others:
        other = next(name for framework, name in names.items() if framework != best.framework)
        yield f"{other} has no usable run on {count(best.workers, 'worker')}"
    for point in others:
        row = candidates.comparison(best, point)
        if row is not None:
            ratio = f"DDP / Horovod {with_interval(row, 'ratio', '~4')}"
            fails = f"; {point.series}: {point.short}" if point.reason else ""
            yield f"on {count(best.workers, 'worker')} {row['outcome']}: {ratio}{fails}"


def _passed_over(points: Sequence[Candidate], unit: str) -> Iterator[str]:
    passed = [point for point in points if point.standing != "qualifies"]
    for point in passed[:MOST_NAMED]:
        yield f"{point.standing}: {point}, {point.shown('throughput')} {unit}: {point.detail}"
    if len(passed) > MOST_NAMED:
        yield f"and {len(passed) - MOST_NAMED} more points that do not qualify"


def _all_diverged(candidates: CandidateSet) -> Iterator[str]:
    """Yield points that are in no table, because runs of them diverged and none can be used."""
    study, options = candidates.study, candidates.candidates[0].row["options"]
    lost = study.left_out[(study.left_out["state"] == "diverged") & (study.left_out["options"] == options)]
    usable = {(point.framework, point.row["knobs"], point.workers) for point in candidates.candidates}
    points = zip(lost["framework"], lost["knobs"], lost["workers"], strict=True)
    for (framework, knobs, workers), runs in Counter(points).items():
        if (framework, knobs, workers) not in usable:
            series = study.names[framework] + (f" ({knobs})" if knobs else "")
            diverged = f"{count(runs, 'run')} diverged and none can be used"
            yield f"{series} on {count(workers, 'worker')}: {diverged}"


def _cost(point: Candidate) -> str:
    row = point.row
    parts = [f"{point.shown('worker_hours')} worker-hours per run"]
    if not math.isnan(row["node_hours"]):
        parts.append(f"{point.shown('node_hours')} node-hours")
    if not math.isnan(row["seconds_to_target"]):
        reached = f"IoU {row['target_iou']:g} after {point.shown('seconds_to_target')} s"
        parts.append(f"{reached} in {row['runs_to_target']} of {row['repeats']} runs")
    parts.append(f"{'in' if row['pareto'] else 'not in'} the Pareto set of {row['pareto_of']}")
    return ", ".join(parts)
