"""The headline of a recommendation: one line, numbers first, that claims no more than its evidence."""

from collections.abc import Iterator
from typing import Literal

from analysis.findings.candidates import Candidate, CandidateSet
from analysis.findings.check import QUIET
from analysis.findings.comparison import NO_DIFFERENCE, SUGGESTED, TABLE_SAYS_NO
from analysis.findings.device_words import DeviceWords
from analysis.findings.differences import not_learned_words
from analysis.findings.doubts import OTHERS_TOOK
from analysis.findings.evidence import lost_points
from analysis.findings.phrases import (
    as_fast,
    compared_clause,
    is_doubted,
    measured_so_far,
    point_words,
    signed,
    why_not,
)
from analysis.findings.recommendation import Recommendation
from analysis.findings.repeats import more_repeats, repeats_for_intervals
from analysis.findings.verdict import claim_of, slower_framework
from analysis.stats import FEWEST_REPEATS
from analysis.study import Study
from analysis.text import capitalised, count, listed, number

# scale: train on more workers; stay: on 1; undecided: evidence is missing, or other programs disturbed it;
# unfair: the frameworks, or 1 worker and more, were not treated alike; played: of played runs, which have an
# IoU and no speed (analysis/played_answer.py); script: of a script, which nothing is compared with;
# maps: of runs that tell of saliency maps only (analysis/saliency.py).
Kind = Literal["scale", "stay", "undecided", "unfair", "played", "script", "maps"]


def kind_of(advice: Recommendation) -> Kind:
    """Return what a recommendation comes to."""
    only_disturbed = _only_disturbed(advice)
    if (advice.doubts and not only_disturbed) or _impossible(advice):
        return "unfair"
    if advice.workers is None or only_disturbed:
        return "undecided"
    return "stay" if advice.workers == 1 else "scale"


def _only_disturbed(advice: Recommendation) -> bool:
    """Return whether all that speaks against a comparison is a machine that was not quiet."""
    facts = [fact for doubt in advice.doubts for fact in doubt.removeprefix("on 1 worker ").split("; ")]
    return bool(facts) and all(
        fact == TABLE_SAYS_NO + QUIET or fact.startswith(OTHERS_TOOK) for fact in facts
    )


def headline(advice: Recommendation, words: DeviceWords) -> str:
    """Return the line that a reader can act on; that nothing was learned goes before all else."""
    makers = {"scale": _scale, "stay": _stay, "undecided": _undecided, "unfair": _unfair}
    kind = kind_of(advice)
    parts = [makers[kind](advice, words), *_lost(advice, words)]
    nothing = _not_learned(advice)
    return "; ".join([*parts, *nothing] if kind == "scale" else [*nothing, *parts])


def _not_learned(advice: Recommendation) -> list[str]:
    """Return that 1 worker learned nothing, of each series or of all alike."""
    candidates = advice.candidates
    title = candidates.study.score.title
    alone = [point for point in candidates.candidates if point.workers == 1]
    found = {point.series: not_learned_words(point.row, title) for point in alone}
    texts = list(dict.fromkeys(found.values()))
    if len(texts) == 1:
        return [capitalised(text) for text in texts if text]
    return [f"{series}: {text}" for series, text in found.items() if text]


def _lost(advice: Recommendation, words: DeviceWords) -> Iterator[str]:
    """Yield the counts that have no number at all, as their runs diverged, and matter to the answer."""
    lost = [(series, workers) for series, workers, _ in lost_points(advice.candidates)]
    larger = [point for point in lost if point[1] > (advice.workers or 0)]
    if larger:
        yield f"every run diverged on {listed(f'{words.of(n)} with {series}' for series, n in larger[:2])}"


def _impossible(advice: Recommendation) -> Candidate | None:
    """Return a point that cannot be judged since the runs on 1 worker were too slow, if there is one."""
    larger = advice.candidates.larger
    return next((point for point in larger if point.criterion == "slow_baseline"), None)


def _scale(advice: Recommendation, words: DeviceWords) -> str:
    chosen = advice.chosen
    names = " or ".join(point.series for point in chosen)
    speeds = [f"{number(point.row['speedup_common'], '~2')}x" for point in chosen]
    title = advice.candidates.study.score.title
    ious = [f"{title} {signed(point.row['difference'])}" for point in chosen]
    costs = [f"{words.cost(point.row)} a training" for point in chosen]
    numbers = ", ".join(listed(dict.fromkeys(texts)) for texts in (speeds, ious, costs))
    workers = words.of(chosen[0].workers)
    action = (
        f"Use {workers}: {numbers} with {names}"
        if advice.unsettled
        else f"Use {names} on {workers}: {numbers}"
    )
    return "; ".join([action, *_beside(advice, words), *_passed_over(advice, words)])


def _beside(advice: Recommendation, words: DeviceWords) -> Iterator[str]:
    """Yield what is known of the other frameworks on as many workers: the claim of each comparison."""
    candidates = advice.candidates
    best = advice.chosen[0]
    others = [point for point in candidates.others(best) if point.workers == best.workers]
    if not others:
        yield from _not_measured(best, candidates, words)
    suggested = []
    for other in others:
        row = candidates.comparison(best, other)
        claim = claim_of(row) if row else f"no comparison with {other.series}"
        if row and slower_framework(row) == other.framework:
            suggested += [row["pairs"]] if row["outcome"] in SUGGESTED else []
        elif other in advice.chosen:
            yield NO_DIFFERENCE if row and row["outcome"] == NO_DIFFERENCE else claim
        else:
            yield f"{claim}, but {other.series}: {why_not(other, candidates)}"
    if suggested:
        yield f"{count(min(suggested), 'repeat')} suggest that it is the faster framework"


def _not_measured(best: Candidate, candidates: CandidateSet, words: DeviceWords) -> Iterator[str]:
    """Yield that the other framework has no usable run here, where the study asks for it."""
    names = candidates.study.names.items()
    framework, other = next(each for each in names if each[0] != best.framework)
    if _asks_for(candidates.study, "framework", framework):
        where = f" on {words.of(best.workers)}" if candidates.others(best) else ""
        yield f"{other} has no usable run{where}"


def _asks_for(study: Study, column: str, value: object) -> bool:
    """Return whether the study file asks for such runs; where that is not known, it does."""
    return study.asked is None or value in set(study.asked[column])


def _passed_over(advice: Recommendation, words: DeviceWords) -> Iterator[str]:
    """Yield the point of most throughput on more workers that does not qualify, unless for its efficiency."""
    best = advice.chosen[0]
    for point in advice.candidates.candidates:
        if point.workers <= best.workers or point.throughput <= best.throughput:
            continue
        if point.standing == "undecided" or point.criterion in ("diverged", "iou", "other_iou"):
            yield f"not {point_words(point, words)}: {why_not(point, advice.candidates)}"
            return


def _stay(advice: Recommendation, words: DeviceWords) -> str:
    candidates = advice.candidates
    fastest = candidates.larger[0]
    alike = len({(point.workers, point.criterion) for point in candidates.larger}) == 1
    subject = words.of(fastest.workers) if alike else point_words(fastest, words)
    reason = why_not(fastest, candidates)
    if is_doubted(fastest, candidates):
        return f"Do not scale out: on {subject} {reason}"
    link = "and" if fastest.criterion == "efficiency" else "but"
    return f"Do not scale out: {subject} {as_fast(fastest)}, {link} {reason}"


def _undecided(advice: Recommendation, words: DeviceWords) -> str:
    candidates = advice.candidates
    study = candidates.study
    if not study.provenance_known:
        so_far = measured_so_far(candidates, words)
        return f"Undecided: one run per point and no provenance; the logs show {so_far}"
    most = max(int(point.row["repeats"]) for point in candidates.candidates)
    if most < FEWEST_REPEATS:
        more = more_repeats(study, repeats_for_intervals(candidates))
        few = f"{count(most, 'repeat')} per point {'carries' if most == 1 else 'carry'} no interval"
        disturbed = f", {QUIET}: no" if _only_disturbed(advice) else ""
        so_far = f"so far {measured_so_far(candidates, words)}{disturbed}"
        return f"Undecided: {few}; {so_far}; {more} would give one"
    if _only_disturbed(advice):
        return f"Undecided: {QUIET}: no; so far {measured_so_far(candidates, words)}"
    return _undecided_with_intervals(advice, words)


def _undecided_with_intervals(advice: Recommendation, words: DeviceWords) -> str:
    candidates = advice.candidates
    compared = compared_clause(candidates, words)
    if candidates.larger and not candidates.missing:
        nothing_learned = any(point.criterion == "not_learned" for point in candidates.larger)
        open_question = (
            f"speed alone: {measured_so_far(candidates, words)}" if nothing_learned else advice.lacking
        )
        return "; ".join(filter(None, [f"Undecided: {open_question}", compared]))
    if compared and not _asks_for(candidates.study, "workers", 1):
        return capitalised(compared)
    one = words.of(1)
    lacking = (
        f"no usable run of {listed(candidates.missing)} on {one}"
        if candidates.missing
        else f"only {one} was measured"
    )
    open_question = f"whether to scale out is undecided: {lacking}"
    return f"{capitalised(compared)}; {open_question}" if compared else f"Undecided: {lacking}"


def _unfair(advice: Recommendation, words: DeviceWords) -> str:
    impossible = _impossible(advice)
    if impossible and not advice.doubts:
        return f"No fair baseline: {impossible.reason}"
    first, *more = advice.doubts
    rest = f" (and {count(len(more), 'more reason')})" if more else ""
    measured = measured_so_far(advice.candidates, words)
    return f"No fair comparison, as {first}{rest}; measured {measured}"
