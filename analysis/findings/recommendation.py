"""What to train with: for each set of options, one framework and worker count, or why none can be named.

A point qualifies where the interval of its efficiency, against the common best 1-worker point, lies above the
study's floor, its IoU is not inferior to 1 worker, and none of its runs diverged. Of those the one of largest
throughput is named. A point that evidence speaks against is excluded; one that evidence is missing for is
undecided. 1 worker always qualifies against itself: "do not scale out" is the answer only where every larger
count is excluded, since missing evidence is no reason to train on 1 worker. It names no framework: there is
nothing to average on 1 worker. A doubt about the comparison of the frameworks stands in the sentence.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.findings.candidates import (
    REPEATS_NEEDED,
    Candidate,
    candidates_of,
    count,
    missing_baselines,
    with_interval,
)
from analysis.findings.comparison import NO_DIFFERENCE, NOT_ENOUGH, SUGGESTED, WITHHELD
from analysis.statistics.intervals import FEWEST_REPEATS
from analysis.study import POINT, Study
from unet_scaling.study.config import Framework

MOST_NAMED = 4

# Of one set of options: rows of `comparison.compare` by workers, knobs of native DDP and of Horovod.
Comparisons = Mapping[tuple[int, str, str], Mapping[Hashable, Any]]


@dataclass(frozen=True)
class Recommendation:
    """One sentence about the runs that have these options, and the evidence for it.

    `workers` is None where nothing can be recommended; `framework` also where the two do not differ, and on
    1 worker.
    """

    options: str
    sentence: str
    framework: Framework | None
    workers: int | None
    why: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{self.options}] {self.sentence}" if self.options else self.sentence


def recommend(
    study: Study,
    points: pd.DataFrame,
    comparisons: pd.DataFrame,
    iou: pd.DataFrame,
    between: pd.DataFrame,
    cost: pd.DataFrame,
    baseline_doubt: str = "",
) -> list[Recommendation]:
    """One recommendation for each set of options, in the order of the points.

    `points` are those of `speedup.summarise`, `comparisons` of `comparison.compare`, `iou` of
    `quality.iou_table`, `between` of `quality.iou_between_frameworks`, `cost` of `cost.cost_table`, all of
    this study. `baseline_doubt` says what speaks against the runs on 1 worker as the baseline of the others.
    """
    quality = _further(points, iou.rename(columns={"why": "iou_why"}))
    table = points.merge(quality, on=POINT).merge(_further(points, cost), on=POINT)
    compared = _by_options(comparisons)
    return [
        _for_options(study, str(options), group, between, compared.get(str(options), {}), baseline_doubt)
        for options, group in table.groupby("options", sort=False)
    ]


def _by_options(comparisons: pd.DataFrame) -> Mapping[str, Comparisons]:
    found: dict[str, dict[tuple[int, str, str], Mapping[Hashable, Any]]] = {}
    for row in comparisons.to_dict("records"):
        key = row["workers"], row["native_knobs"], row["horovod_knobs"]
        found.setdefault(row["options"], {})[key] = row
    return found


def _further(points: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """What a table of points says that `points` does not, with the columns that name a point."""
    return table[[*POINT, *(name for name in table.columns if name not in points.columns)]]


def _for_options(
    study: Study,
    options: str,
    points: pd.DataFrame,
    between: pd.DataFrame,
    comparisons: Comparisons,
    baseline_doubt: str,
) -> Recommendation:
    candidates = candidates_of(points, between, study.criteria, study.names)
    best = next((each for each in candidates if each.standing == "qualifies"), None)
    if best is not None and best.workers == 1 and _is_best(candidates):
        why = tuple(_why_not(study, candidates))
        return Recommendation(options, _do_not_scale_out(study, candidates), None, 1, why)
    if best is None or best.workers == 1:
        sentence = _no_recommendation(study, candidates, missing_baselines(points, study.names))
        return Recommendation(options, sentence, None, None, tuple(_why_not(study, candidates)))
    chosen = [best, *_as_fast(best, candidates, comparisons)]
    return Recommendation(
        options,
        _sentence(study, chosen, candidates, comparisons, baseline_doubt),
        best.framework if len(chosen) == 1 else None,
        best.workers,
        tuple(_evidence(study, chosen, candidates, comparisons)),
    )


def _is_best(candidates: Sequence[Candidate]) -> bool:
    """Whether evidence speaks against every larger count; nothing does where there is none."""
    larger = [each for each in candidates if each.workers > 1]
    return bool(larger) and all(each.standing == "excluded" for each in larger)


def _do_not_scale_out(study: Study, candidates: Sequence[Candidate]) -> str:
    """That 1 worker is best, and what speaks against the fastest larger points."""
    criteria = study.criteria
    larger = [each for each in candidates if each.workers > 1]
    against = "; ".join(f"{each}: {each.short}" for each in larger[:MOST_NAMED])
    more = f"; and {len(larger) - MOST_NAMED} more points" if len(larger) > MOST_NAMED else ""
    return (
        f"Do not scale out, train on 1 worker: no larger worker count keeps both an efficiency of "
        f"{criteria.efficiency_floor:g} and an IoU not inferior to 1 worker "
        f"(margin {criteria.iou_margin:g}): "
        f"{against}{more}"
    )


def _is_open(candidate: Candidate) -> bool:
    return candidate.standing == "undecided"


def _no_recommendation(study: Study, candidates: Sequence[Candidate], missing: Sequence[str]) -> str:
    """Why nothing can be recommended, and what to do about it."""
    larger = [each for each in candidates if each.workers > 1]
    open_ones = [each for each in larger if _is_open(each)]
    most = max(int(each.row["repeats"]) for each in candidates)
    if not study.provenance_known:
        reason = f"these logs hold one run per point and no provenance; run a study of {REPEATS_NEEDED}"
    elif not larger:
        reason = "only 1 worker was measured; add larger worker counts to the study"
    elif missing:
        names = " and ".join(missing)
        reason = f"no usable run of {names} on 1 worker, so no common baseline; run {names} on 1 worker"
    elif most < FEWEST_REPEATS:
        repeats = f"{most} repeat{'' if most == 1 else 's'}"
        reason = f"no point has more than {repeats}, which carry no interval; run {REPEATS_NEEDED}"
    elif open_ones:
        reason = f"{open_ones[0]} is the fastest that may qualify, but {open_ones[0].short}"
    else:
        reason = f"no point qualifies; {candidates[0]} is the fastest, but {candidates[0].short}"
    return f"No recommendation: {reason}"


def _as_fast(
    best: Candidate, candidates: Sequence[Candidate], comparisons: Comparisons
) -> Iterator[Candidate]:
    """The fastest qualifying point of the other framework on as many workers, if the two do not differ."""
    for other in candidates:
        if other.standing == "qualifies" and other.framework != best.framework:
            found = _comparison(comparisons, best, other)
            if found is not None and found["outcome"] in (NO_DIFFERENCE, WITHHELD, NOT_ENOUGH):
                yield other
                return


def _comparison(comparisons: Comparisons, one: Candidate, other: Candidate) -> Mapping[Hashable, Any] | None:
    """The comparison of two points of different frameworks; none where their worker counts differ."""
    native, horovod = (one, other) if one.framework == "pytorch_native" else (other, one)
    if one.workers != other.workers:
        return None
    return comparisons.get((one.workers, native.row["knobs"], horovod.row["knobs"]))


def _sentence(
    study: Study,
    chosen: Sequence[Candidate],
    candidates: Sequence[Candidate],
    comparisons: Comparisons,
    baseline_doubt: str,
) -> str:
    criteria, names = study.criteria, " or ".join(each.series for each in chosen)
    start = f"Train with {names} on {count(chosen[0].workers)}"
    throughput = " and ".join(with_interval(each.row, "throughput") for each in chosen)
    efficiency = " and ".join(with_interval(each.row, "efficiency_common") for each in chosen)
    open_ones = [each for each in candidates if _is_open(each) and each.throughput > chosen[0].throughput]
    faster = f"; {open_ones[0]} is faster, but undecided" if open_ones else ""
    equal = _between(comparisons, chosen, candidates)
    return (
        f"{start}: {throughput} {study.unit}{equal}, efficiency {efficiency} against the best 1-worker point "
        f"(floor {criteria.efficiency_floor:g}), IoU not inferior to 1 worker "
        f"(margin {criteria.iou_margin:g})"
        f"{faster}{_doubt(chosen[0], comparisons, baseline_doubt)}"
    )


def _between(comparisons: Comparisons, chosen: Sequence[Candidate], candidates: Sequence[Candidate]) -> str:
    """How sure it is that this framework is the faster one, or why two are named."""
    best = chosen[0]
    if len(chosen) > 1:
        compared = _comparison(comparisons, best, chosen[1])
        outcome = NO_DIFFERENCE if compared is None else compared["outcome"]
        if outcome == NO_DIFFERENCE:
            return f", {NO_DIFFERENCE} between them"
        reason = f" ({compared['pairs']} repeats in common)" if compared and outcome == NOT_ENOUGH else ""
        return f", no verdict on which is faster{reason}"
    others = [each for each in candidates if each.framework != best.framework]
    found = [_comparison(comparisons, best, each) for each in others]
    known = [row for row in found if row is not None]
    if others and not known:
        return f" ({others[0].name} was not measured on {count(best.workers)})"
    few = [row["pairs"] for row in known if row["outcome"] in SUGGESTED]
    return f" (faster, as {min(few)} repeats suggest)" if few else ""


def _doubt(best: Candidate, comparisons: Comparisons, baseline_doubt: str) -> str:
    """What speaks against the runs on as many workers, and against their baseline."""
    side = 1 if best.framework == "pytorch_native" else 2
    compared = {
        str(row["doubts"]): key[0]
        for key, row in comparisons.items()
        if key[0] in (1, best.workers) and key[side] == best.row["knobs"] and row["doubts"]
    }
    doubts = [text if workers > 1 else f"on 1 worker {text}" for text, workers in compared.items()]
    doubts += [baseline_doubt] if baseline_doubt else []
    return f"; in doubt: {'; '.join(doubts)}" if doubts else ""


def _evidence(
    study: Study, chosen: Sequence[Candidate], candidates: Sequence[Candidate], comparisons: Comparisons
) -> Iterator[str]:
    best = chosen[0]
    yield from _against_the_other(study, best, candidates, comparisons)
    for each in chosen:
        yield f"{each}: {each.row['repeats']} repeats; IoU: {each.row['iou_why']}"
        yield f"{each}: {_cost(each.row)}"
    if best.workers == max(each.workers for each in candidates) > 1:
        yield f"{count(best.workers)} is the largest count measured: a larger one may be worth it"
    yield from _passed_over(study, [each for each in candidates if each.throughput > best.throughput])
    yield from _wholly_diverged(study, candidates)
    others = [each for each in candidates if each.standing == "qualifies" and each not in chosen]
    for each in others[:MOST_NAMED]:
        yield (
            f"also qualifies: {each}, {with_interval(each.row, 'throughput')} {study.unit}, "
            f"efficiency {with_interval(each.row, 'efficiency_common')}, {_cost(each.row)}"
        )


def _against_the_other(
    study: Study, best: Candidate, candidates: Sequence[Candidate], comparisons: Comparisons
) -> Iterator[str]:
    """How the other framework does on as many workers."""
    others = [each for each in candidates if each.framework != best.framework]
    found = [(each, _comparison(comparisons, best, each)) for each in others if each.workers == best.workers]
    if not found:
        other = next(name for framework, name in study.names.items() if framework != best.framework)
        yield f"{other} has no usable run on {count(best.workers)}"
    for other_point, comparison in found:
        if comparison is not None:
            ratio = f"DDP / Horovod {with_interval(comparison, 'ratio', digits=4)}"
            fails = f"; {other_point.series}: {other_point.short}" if other_point.reason else ""
            yield f"on {count(best.workers)} {comparison['outcome']}: {ratio}{fails}"


def _why_not(study: Study, candidates: Sequence[Candidate]) -> Iterator[str]:
    yield from _passed_over(study, candidates)
    yield from _wholly_diverged(study, candidates)


def _wholly_diverged(study: Study, candidates: Sequence[Candidate]) -> Iterator[str]:
    """Points that are in no table, because runs of them diverged and none can be used."""
    lost = study.left_out[
        (study.left_out["state"] == "diverged") & (study.left_out["options"] == candidates[0].row["options"])
    ]
    usable = {(each.framework, each.row["knobs"], each.workers) for each in candidates}
    points = zip(lost["framework"], lost["knobs"], lost["workers"], strict=True)
    for (framework, knobs, workers), runs in Counter(points).items():
        if (framework, knobs, workers) not in usable:
            diverged = f"{runs} run{'' if runs == 1 else 's'} diverged"
            series = study.names[framework] + (f" ({knobs})" if knobs else "")
            yield f"{series} on {count(workers)}: {diverged} and none can be used"


def _passed_over(study: Study, candidates: Sequence[Candidate]) -> Iterator[str]:
    passed = [each for each in candidates if each.standing != "qualifies"]
    for each in passed[:MOST_NAMED]:
        throughput = f"{with_interval(each.row, 'throughput')} {study.unit}"
        yield f"{each.standing}: {each}, {throughput}: {each.detail}"
    if len(passed) > MOST_NAMED:
        yield f"and {len(passed) - MOST_NAMED} more points that do not qualify"


def _cost(row: Mapping[str, Any]) -> str:
    parts = [f"{with_interval(row, 'worker_hours')} worker-hours per run"]
    if not math.isnan(row["node_hours"]):
        parts.append(f"{with_interval(row, 'node_hours')} node-hours")
    if not math.isnan(row["seconds_to_target"]):
        reached = f"IoU {row['target_iou']:g} after {with_interval(row, 'seconds_to_target')} s"
        parts.append(f"{reached} in {row['runs_to_target']} of {row['repeats']} runs")
    parts.append(f"{'in' if row['pareto'] else 'not in'} the Pareto set of {row['pareto_of']}")
    return ", ".join(parts)
