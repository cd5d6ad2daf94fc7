"""The evidence behind a recommendation: the points named, those passed over, and the other framework."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from analysis.findings.candidates import Candidate, CandidateSet
from analysis.findings.verdict import claim_of
from analysis.text import count
from unet_scaling.study.config import Framework

# So many points of a kind are named; the rest is counted.
MOST_POINTS_NAMED = 4


def evidence(chosen: Sequence[Candidate], candidates: CandidateSet) -> Iterator[str]:
    """Yield why these points are recommended, why faster ones are not, and what else qualifies."""
    best = chosen[0]
    title = candidates.study.score.title
    yield from _other_framework(best, candidates)
    for point in chosen:
        yield f"{point}: {point.row['repeats']} repeats; {title}: {point.row['iou_why']}"
        yield f"{point}: {_cost(point, candidates)}"
    if best.workers == candidates.most_workers > 1:
        yield f"{count(best.workers, 'worker')} is the largest count measured: a larger one may be worth it"
    faster = [point for point in candidates.candidates if point.throughput > best.throughput]
    yield from _passed_over(faster, candidates)
    yield from _all_diverged(candidates)
    yield from _also_qualifying(chosen, candidates)


def _also_qualifying(chosen: Sequence[Candidate], candidates: CandidateSet) -> Iterator[str]:
    qualifying = [point for point in candidates.candidates if point.standing == "qualifies"]
    for point in [point for point in qualifying if point not in chosen][:MOST_POINTS_NAMED]:
        throughput = f"{point.shown('throughput')} {candidates.study.unit}"
        efficiency = f"efficiency {point.shown('efficiency_common')}"
        yield f"also qualifies: {point}, {throughput}, {efficiency}, {_cost(point, candidates)}"


def disqualifications(candidates: CandidateSet) -> Iterator[str]:
    """Yield why points do not qualify, the fastest first, and which have no usable run."""
    yield from _passed_over(candidates.candidates, candidates)
    yield from _all_diverged(candidates)


def _other_framework(best: Candidate, candidates: CandidateSet) -> Iterator[str]:
    """Yield how the other framework does on as many workers."""
    workers = count(best.workers, "worker")
    others = [point for point in candidates.others(best) if point.workers == best.workers]
    if not others:
        yield f"{_other_name(best, candidates)} has no usable run on {workers}"
    for point in others:
        row = candidates.comparison(best, point)
        if row is not None:
            fails = f"; {point.series}: {point.short}" if point.reason else ""
            yield f"on {workers} {claim_of(row)}{fails}"


def _other_name(best: Candidate, candidates: CandidateSet) -> str:
    names = candidates.study.names.items()
    return next(name for framework, name in names if framework != best.framework)


def _passed_over(points: Sequence[Candidate], candidates: CandidateSet) -> Iterator[str]:
    passed = [point for point in points if point.standing != "qualifies"]
    for point in passed[:MOST_POINTS_NAMED]:
        throughput = f"{point.shown('throughput')} {candidates.study.unit}"
        yield f"{point.standing}: {point}, {throughput}: {point.detail}"
    if len(passed) > MOST_POINTS_NAMED:
        yield f"and {len(passed) - MOST_POINTS_NAMED} more points that do not qualify"


def _all_diverged(candidates: CandidateSet) -> Iterator[str]:
    for series, workers, runs in lost_points(candidates):
        diverged = f"{count(runs, 'run')} diverged and none can be used"
        yield f"{series} on {count(workers, 'worker')}: {diverged}"


def lost_points(candidates: CandidateSet) -> Iterator[tuple[str, int, int]]:
    """Yield series, workers and diverged runs of points in no table, as none of their runs can be used."""
    usable = {(point.framework, point.row["knobs"], point.workers) for point in candidates.candidates}
    for (framework, knobs, workers), runs in _diverged_runs(candidates).items():
        if (framework, knobs, workers) not in usable:
            yield candidates.study.names[framework] + (f" ({knobs})" if knobs else ""), workers, runs


def _diverged_runs(candidates: CandidateSet) -> Counter[tuple[Framework, str, int]]:
    """Return how many runs of each framework, knobs and worker count diverged."""
    left_out = candidates.study.left_out
    options = candidates.candidates[0].row["options"]
    lost = left_out[(left_out["state"] == "diverged") & (left_out["options"] == options)]
    return Counter(zip(lost["framework"], lost["knobs"], lost["workers"], strict=True))


def _cost(point: Candidate, candidates: CandidateSet) -> str:
    row = point.row
    parts = [f"{point.shown('worker_hours')} worker-hours per run"]
    if not math.isnan(row["node_hours"]):
        parts.append(f"{point.shown('node_hours')} node-hours")
    if not math.isnan(row["seconds_to_target"]):
        target = f"{candidates.study.score.title} {row['target_iou']:g}"
        reached = f"{target} after {point.shown('seconds_to_target')} s"
        parts.append(f"{reached} in {row['runs_to_target']} of {row['repeats']} runs")
    parts.append(f"{'in' if row['pareto'] else 'not in'} the Pareto set of {row['pareto_of']}")
    return ", ".join(parts)
