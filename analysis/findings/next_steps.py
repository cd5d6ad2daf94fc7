"""What to do after an answer: the setting to change or the command to run, the most useful first."""

import math
from collections.abc import Iterator, Mapping, Sequence

from analysis.findings.candidates import CandidateSet
from analysis.findings.check import BASELINE, NO, QUIET, Check
from analysis.findings.evidence import lost_points
from analysis.findings.headline import kind_of
from analysis.findings.recommendation import Recommendation
from analysis.findings.repeats import more_repeats, repeats_for_intervals
from analysis.findings.submission import submit_command
from analysis.stats import RECOMMENDED_REPEATS
from analysis.text import listed
from unet_scaling.study.command_line import LAUNCH_HINT

# What makes a check of the fairness table hold, where the submission has an option for it.
CURES: Mapping[str, str] = {
    QUIET: "measure the disturbed launches again on a quiet machine: {command} --repeat-disturbed",
    "same nodes": "run both frameworks on the same hosts: {command} --one-allocation",
    "order interleaved in time": 'set order = "interleaved" in the study and measure all runs again',
    "one run at a time on a core": "start no second run while one trains, and measure all runs again",
    BASELINE: "measure 1 worker again beside the larger counts, on the same hosts",
}
# Where 1 worker scores no more than a constant prediction.
LEARN_FIRST = "let 1 worker learn first: look at its masks and predictions, training.learning_rate and epochs"


def next_steps(advice: Recommendation, checks: Sequence[Check]) -> Iterator[str]:
    """Yield the steps that would decide, confirm or extend this answer."""
    study = advice.candidates.study
    if not study.provenance_known:
        yield f"measure these points in a study of your own: {LAUNCH_HINT}"
        return
    command = submit_command(study)
    if any(point.row["learned"] == "no" for point in advice.candidates.candidates):
        yield LEARN_FIRST
    unmet = dict.fromkeys(check.check for check in checks if check.mark == NO)
    for name in unmet:
        if name in CURES:
            yield CURES[name].format(command=command)
    yield from _more_runs(advice, command)
    yield from _by_kind(advice)


def _more_runs(advice: Recommendation, command: str) -> Iterator[str]:
    candidates = advice.candidates
    missing = repeats_for_intervals(candidates)
    if missing:
        time = more_repeats(candidates.study, missing)
        yield f"set repeats = {RECOMMENDED_REPEATS}, then {command}: {time}, as recommended"
    elif kind_of(advice) != "stay":
        yield from _for_narrower_intervals(advice, command)
    diverged = [series for series, workers, _ in lost_points(candidates) if workers == 1]
    if diverged:
        yield f"runs on 1 worker diverged: lower training.learning_rate, then {command}"
    elif candidates.missing:
        yield f"add 1 to workers in the study, for {listed(candidates.missing)}: then {command}"


def _for_narrower_intervals(advice: Recommendation, command: str) -> list[str]:
    """Return twice the repeats, where an interval of efficiency or IoU holds the study's limit."""
    candidates = advice.candidates
    undecided = [point for point in candidates.larger if point.standing == "undecided"]
    with_interval = {point.criterion for point in undecided if not math.isnan(point.row["difference"])}
    if advice.workers is not None or not with_interval & {"efficiency", "iou"}:
        return []
    most = max(int(point.row["repeats"]) for point in candidates.candidates)
    more = more_repeats(candidates.study, most)
    return [f"set repeats = {2 * most}, then {command}: {more} would narrow the intervals"]


def _by_kind(advice: Recommendation) -> Iterator[str]:
    candidates = advice.candidates
    kind = kind_of(advice)
    if not candidates.larger:
        yield "add larger worker counts to the study"
    elif kind == "scale" and advice.workers == candidates.most_workers and not any(lost_points(candidates)):
        yield f"add larger worker counts to the study: {advice.workers} is the largest measured and qualifies"
    elif kind == "stay":
        yield from _against_what_stops(candidates)


def _against_what_stops(candidates: CandidateSet) -> Iterator[str]:
    criteria = {point.criterion for point in candidates.larger}
    if criteria & {"iou", "diverged"}:
        yield (
            "more workers take fewer and larger steps: try training.rate_scaling, training.warmup_epochs or "
            "more training.epochs, and compare again"
        )
    if "efficiency" in criteria:
        yield "read in the overhead budget (diagnosis.csv) where the efficiency went, and what to try"
