"""What to train with: for each set of options, one framework and worker count, or why none can be named.

A point qualifies where the interval of its efficiency, against the common best 1-worker point, lies above the
study's floor, its IoU is not inferior to 1 worker, and none of its runs diverged. Of those the one of largest
throughput is named. A point that evidence speaks against is excluded; one that evidence is missing for is
undecided. 1 worker always qualifies against itself: "do not scale out" is the answer only where every larger
count is excluded, since missing evidence is no reason to train on 1 worker. It names no framework: there is
nothing to average on 1 worker. A framework is named alone only where the comparison at that count calls the
others slower, or suggests it, or where a loss of IoU speaks against them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.findings.candidates import Candidate, CandidateSet, Comparisons, candidate_set
from analysis.findings.evidence import disqualifications, evidence
from analysis.findings.standing import REPEATS_NEEDED
from analysis.findings.verdict import slower_framework
from analysis.stats import FEWEST_REPEATS
from analysis.study import COMPARED, POINT, Study
from analysis.text import Row, count
from unet_scaling.study.config import Framework


@dataclass(frozen=True)
class Recommendation:
    """What to train with, of the runs that have these options, and the evidence for it.

    `workers` is None where nothing can be recommended; `framework` also where none is shown to be faster, and
    on 1 worker. `chosen` are the points named, `unsettled` those of other frameworks on as many workers that
    do not qualify, but are not shown to be slower either; `doubts` what speaks against the comparison of
    the frameworks, and `lacking` why nothing is recommended.
    """

    options: str
    framework: Framework | None
    workers: int | None
    why: tuple[str, ...]
    candidates: CandidateSet
    chosen: tuple[Candidate, ...] = ()
    unsettled: tuple[Candidate, ...] = ()
    doubts: tuple[str, ...] = ()
    lacking: str = ""


def recommend(
    study: Study,
    points: pd.DataFrame,
    comparisons: pd.DataFrame,
    iou: pd.DataFrame,
    between: pd.DataFrame,
    cost: pd.DataFrame,
    baseline_doubt: str = "",
) -> list[Recommendation]:
    """Return one recommendation for each set of options, in the order of the points.

    `points` are those of `speedup.summarise`, `iou` of `quality.iou_table`, `cost` of `cost.cost_table`;
    `comparisons` of `comparison.compare` and `between` of `quality.iou_between_frameworks`, both with the
    framework compared (`wrapper_comparison.with_framework`). `baseline_doubt` says what speaks against the
    runs on 1 worker as the baseline of the others.
    """
    quality = _further(points, iou.rename(columns={"why": "iou_why"}))
    table = points.merge(quality, on=POINT).merge(_further(points, cost), on=POINT)
    compared = _by_options(comparisons)
    return [
        _recommendation(
            str(options), candidate_set(study, group, between, compared.get(options, {})), baseline_doubt
        )
        for options, group in table.groupby("options", sort=False)
    ]


def _by_options(comparisons: pd.DataFrame) -> Mapping[object, Comparisons]:
    rows: dict[object, dict[tuple[int, str, Framework, str], Row]] = {}
    for row in comparisons.to_dict("records"):
        key = row["workers"], row["native_knobs"], row.get("framework", COMPARED[1]), row["horovod_knobs"]
        rows.setdefault(row["options"], {})[key] = row
    return rows


def _further(points: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of a table of points that `points` has not, and those that name a point."""
    return table[[*POINT, *(name for name in table.columns if name not in points.columns)]]


def _recommendation(options: str, candidates: CandidateSet, baseline_doubt: str) -> Recommendation:
    best = candidates.best
    if best is None or best.workers == 1:
        return _no_larger_count(options, candidates, baseline_doubt)
    alike = [other for other in candidates.others(best) if _is_as_good(best, other, candidates)]
    chosen = (best, *(other for other in alike if other.standing == "qualifies"))
    unsettled = tuple(other for other in alike if other.standing != "qualifies")
    return Recommendation(
        options,
        framework=None if alike else best.framework,
        workers=best.workers,
        why=tuple(evidence(chosen, candidates)),
        candidates=candidates,
        chosen=chosen,
        unsettled=unsettled,
        doubts=_doubts(best, candidates.comparisons, baseline_doubt),
    )


def _is_as_good(best: Candidate, other: Candidate, candidates: CandidateSet) -> bool:
    """Return whether a point on as many workers is neither shown to be slower, nor worse by its IoU."""
    is_worse = other.standing == "excluded" and other.criterion != "efficiency"
    if other.workers != best.workers or is_worse or other.criterion == "not_learned":
        return False
    row = candidates.comparison(best, other)
    return row is None or slower_framework(row) != other.framework


def _no_larger_count(options: str, candidates: CandidateSet, baseline_doubt: str) -> Recommendation:
    best = candidates.best
    larger = candidates.larger
    why = tuple(disqualifications(candidates))
    if best and larger and all(point.standing == "excluded" for point in larger):
        # A doubt about the baseline concerns this answer where an efficiency is the reason.
        by_speed = any(point.criterion == "efficiency" for point in larger)
        against = (baseline_doubt,) if baseline_doubt and by_speed else ()
        return Recommendation(options, None, 1, why, candidates, (best,), doubts=against)
    doubts = _doubts((larger or candidates.candidates)[0], candidates.comparisons, "")
    lacking = _lacking(candidates) or _not_qualifying(candidates)
    return Recommendation(options, None, None, why, candidates, doubts=doubts, lacking=lacking)


def _lacking(candidates: CandidateSet) -> str:
    """Return what the study as a whole lacks; empty where it has all that a recommendation needs."""
    most = max(int(point.row["repeats"]) for point in candidates.candidates)
    if not candidates.study.provenance_known:
        return f"these logs hold one run per point and no provenance; run a study of {REPEATS_NEEDED}"
    if not candidates.larger:
        return "only 1 worker was measured; add larger worker counts to the study"
    if candidates.missing:
        names = " and ".join(candidates.missing)
        return f"no usable run of {names} on 1 worker, so no common baseline; run {names} on 1 worker"
    if most < FEWEST_REPEATS:
        return (
            f"no point has more than {count(most, 'repeat')}, which carry no interval; run {REPEATS_NEEDED}"
        )
    return ""


def _not_qualifying(candidates: CandidateSet) -> str:
    undecided = [point for point in candidates.larger if point.standing == "undecided"]
    if undecided:
        return f"{undecided[0]} may qualify, but {undecided[0].short}"
    first = candidates.candidates[0]
    return f"no point qualifies; {first}: {first.short}"


def _doubts(best: Candidate, comparisons: Comparisons, baseline_doubt: str) -> tuple[str, ...]:
    """Return what speaks against the runs on as many workers, and against their baseline."""
    compared = {
        str(row["doubts"]): key[0]
        for key, row in comparisons.items()
        if key[0] in (1, best.workers) and _is_about(best, key) and row["doubts"]
    }
    doubts = [text if workers > 1 else f"on 1 worker {text}" for text, workers in compared.items()]
    return (*doubts, *([baseline_doubt] if baseline_doubt else []))


def _is_about(best: Candidate, key: tuple[int, str, Framework, str]) -> bool:
    _, native_knobs, framework, knobs = key
    if best.framework == "pytorch_native":
        return bool(native_knobs == best.row["knobs"])
    return bool((framework, knobs) == (best.framework, best.row["knobs"]))
