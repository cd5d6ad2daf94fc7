"""What to train with: for each set of options, one framework and worker count, or why none can be named.

A point qualifies where the interval of its efficiency, against the common best 1-worker point, lies above the
study's floor, its IoU is not inferior to 1 worker, and none of its runs diverged. Of those the one of largest
throughput is named. A point that evidence speaks against is excluded; one that evidence is missing for is
undecided. 1 worker always qualifies against itself: "do not scale out" is the answer only where every larger
count is excluded, since missing evidence is no reason to train on 1 worker. It names no framework: there is
nothing to average on 1 worker. A doubt about the comparison of the frameworks stands in the sentence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.findings.candidates import Candidate, CandidateSet, Comparisons, candidate_set
from analysis.findings.comparison import NO_DIFFERENCE, NOT_ENOUGH, SUGGESTED, WITHHELD
from analysis.findings.evidence import MOST_POINTS_NAMED, disqualifications, evidence
from analysis.findings.standing import REPEATS_NEEDED
from analysis.statistics.intervals import FEWEST_REPEATS
from analysis.study import COMPARED, POINT, Study
from analysis.text import Row, count
from unet_scaling.study.config import Framework


@dataclass(frozen=True)
class Recommendation:
    """One sentence about the runs that have these options, and the evidence for it.

    `workers` is None where nothing can be recommended; `framework` also where the two do not differ, and on
    1 worker. `chosen` are the points named, `doubts` what speaks against the comparison behind the sentence,
    and `lacking` why nothing is recommended.
    """

    options: str
    sentence: str
    framework: Framework | None
    workers: int | None
    why: tuple[str, ...]
    candidates: CandidateSet
    chosen: tuple[Candidate, ...] = ()
    doubts: tuple[str, ...] = ()
    lacking: str = ""

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
    """Return one recommendation for each set of options, in the order of the points.

    `points` are those of `speedup.summarise`, `comparisons` of `comparison.compare` (with further
    frameworks: of `wrapper_comparison.with_framework`), `iou` of
    `quality.iou_table`, `between` of `quality.iou_between_frameworks`, `cost` of `cost.cost_table`, all of
    this study. `baseline_doubt` says what speaks against the runs on 1 worker as the baseline of the others.
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
    equal = _as_fast(best, candidates)
    chosen = (best, equal) if equal else (best,)
    doubts = _doubts(best, candidates.comparisons, baseline_doubt)
    sentence = _sentence(chosen, candidates) + _in_doubt(doubts)
    framework = None if equal else best.framework
    why = tuple(evidence(chosen, candidates))
    return Recommendation(options, sentence, framework, best.workers, why, candidates, chosen, doubts)


def _no_larger_count(options: str, candidates: CandidateSet, baseline_doubt: str) -> Recommendation:
    best = candidates.best
    larger = candidates.larger
    if best and larger and all(point.standing == "excluded" for point in larger):
        return _one_worker(options, candidates, best, baseline_doubt)
    doubts = _doubts((larger or candidates.candidates)[0], candidates.comparisons, "")
    lacking = _lacking(candidates) or _not_qualifying(candidates)
    why = tuple(disqualifications(candidates))
    return Recommendation(
        options, f"No recommendation: {lacking}", None, None, why, candidates, doubts=doubts, lacking=lacking
    )


def _one_worker(
    options: str, candidates: CandidateSet, best: Candidate, baseline_doubt: str
) -> Recommendation:
    """Return not to scale out; a doubt about the baseline concerns it where an efficiency is the reason."""
    by_speed = any(point.criterion == "efficiency" for point in candidates.larger)
    doubts = (baseline_doubt,) if baseline_doubt and by_speed else ()
    sentence = _do_not_scale_out(candidates) + _in_doubt(doubts)
    why = tuple(disqualifications(candidates))
    return Recommendation(options, sentence, None, 1, why, candidates, (best,), doubts)


def _do_not_scale_out(candidates: CandidateSet) -> str:
    """Return that 1 worker is best, and what speaks against the fastest larger points."""
    criteria = candidates.study.criteria
    larger = candidates.larger
    against = "; ".join(f"{point}: {point.short}" for point in larger[:MOST_POINTS_NAMED])
    more = f"; and {len(larger) - MOST_POINTS_NAMED} more points" if len(larger) > MOST_POINTS_NAMED else ""
    return (
        f"Do not scale out, train on 1 worker: no larger worker count keeps both an efficiency of "
        f"{criteria.efficiency_floor:g} and {candidates.study.score.with_article} not inferior to 1 worker "
        f"(margin {criteria.iou_margin:g}): {against}{more}"
    )


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
        return f"{undecided[0]} is the fastest that may qualify, but {undecided[0].short}"
    fastest = candidates.candidates[0]
    return f"no point qualifies; {fastest} is the fastest, but {fastest.short}"


def _as_fast(best: Candidate, candidates: CandidateSet) -> Candidate | None:
    """Return the fastest qualifying point of the other framework on as many workers that is not slower."""
    for other in candidates.others(best):
        row = candidates.comparison(best, other)
        if other.standing == "qualifies" and row and row["outcome"] in (NO_DIFFERENCE, WITHHELD, NOT_ENOUGH):
            return other
    return None


def _sentence(chosen: Sequence[Candidate], candidates: CandidateSet) -> str:
    study = candidates.study
    best = chosen[0]
    names = " or ".join(point.series for point in chosen)
    throughput, efficiency = (_of_each(chosen, column) for column in ("throughput", "efficiency_common"))
    equal = _no_faster_one(chosen, candidates) if len(chosen) > 1 else _faster_one(best, candidates)
    return (
        f"Train with {names} on {count(best.workers, 'worker')}: {throughput} {study.unit}{equal}, "
        f"efficiency {efficiency} against the best 1-worker point "
        f"(floor {study.criteria.efficiency_floor:g}), {study.score.title} not inferior to 1 worker "
        f"(margin {study.criteria.iou_margin:g}){_faster_undecided(best, candidates)}"
    )


def _of_each(chosen: Sequence[Candidate], column: str) -> str:
    return " and ".join(point.shown(column) for point in chosen)


def _faster_undecided(best: Candidate, candidates: CandidateSet) -> str:
    for point in candidates.candidates:
        if point.standing == "undecided" and point.throughput > best.throughput:
            return f"; {point} is faster, but undecided"
    return ""


def _no_faster_one(chosen: Sequence[Candidate], candidates: CandidateSet) -> str:
    """Return why two frameworks are named."""
    row = candidates.comparison(*chosen)
    if row is None or row["outcome"] == NO_DIFFERENCE:
        return f", {NO_DIFFERENCE} between them"
    reason = f" ({row['pairs']} repeats in common)" if row["outcome"] == NOT_ENOUGH else ""
    return f", no verdict on which is faster{reason}"


def _faster_one(best: Candidate, candidates: CandidateSet) -> str:
    """Return how sure it is that this framework is the faster one."""
    others = candidates.others(best)
    compared = [row for other in others if (row := candidates.comparison(best, other))]
    if others and not compared:
        return f" ({others[0].name} was not measured on {count(best.workers, 'worker')})"
    few = [row["pairs"] for row in compared if row["outcome"] in SUGGESTED]
    return f" (faster, as {min(few)} repeats suggest)" if few else ""


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


def _in_doubt(doubts: Sequence[str]) -> str:
    return f"; in doubt: {'; '.join(doubts)}" if doubts else ""
