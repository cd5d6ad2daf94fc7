"""What to train with, as values: how every point stands, which one to choose, and the kind of answer.

A point qualifies where the interval of its efficiency, against the common best 1-worker point, lies above the
study's floor, its IoU is not inferior to 1 worker, and none of its runs diverged. Where no IoU can be judged
(numbers/score_evidence.py) points qualify by speed alone, which is said. Of those that qualify the one of
largest throughput is chosen. A point that evidence speaks against is excluded; one that evidence is missing
for is undecided. 1 worker always qualifies against itself: "stay" is the answer only where every larger count
is excluded, since missing evidence is no reason to train on 1 worker. It names no framework: there is nothing
to average on 1 worker. A framework is named alone only where the comparison at that count calls the others
slower, or suggests it, or where a loss of IoU speaks against them.

And whether a study needs more repeats, and how long they take. The submission asks for it by
`python -m analysis.judge.decide logs/STUDY`.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from analysis.numbers import contrast
from analysis.numbers.check import PointPair
from analysis.numbers.points import slowed_on_one
from analysis.read.load import load_study
from analysis.study import COMPARED, FEWEST_REPEATS, POINT, RECOMMENDED_REPEATS, Names, Study
from analysis.text import Row, count
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import UserError, run_program
from unet_scaling.base.texts import duration
from unet_scaling.format.record_lines import STARTUP_COLUMNS
from unet_scaling.format.run_state import Exclusion
from unet_scaling.study.config import Framework
from unet_scaling.study.options import FEWEST_JUDGED_STEPS, Criteria
from unet_scaling.study.repeats import Precision
from unet_scaling.study.study_file import recorded_study

Standing = Literal["qualifies", "excluded", "undecided"]
# What a point does not meet, or is not shown to; "other_iou": the other framework has a better IoU there.
Criterion = Literal[
    "", "diverged", "iou", "other_iou", "efficiency", "repeats", "no_baseline", "slow_baseline",
    "not_learned", "not_judged",
]  # fmt: skip
# scale: train on more workers; stay: on 1; undecided: evidence is missing, or other programs disturbed it;
# speed: of emulated runs, or of a table without a score, which are fast enough and have no IoU;
# unfair: the frameworks, or 1 worker and more, were not treated alike; played: of played runs, which have an
# IoU and no speed (analysis/played/quality.py); script: of a script, which nothing is compared with;
# maps: of runs that tell of saliency maps only (analysis/saliency/findings.py).
Kind = Literal["scale", "stay", "speed", "undecided", "unfair", "played", "script", "maps"]
# Answers that speak against a point: of few seeds as well, as a suggested speed does.
SCORE_LOST = ("no", "suggests no")
# Before a doubt about the frameworks at 1 worker, where that is the baseline of a larger count.
_ON_ONE = "on 1 worker "
# More than linear; what is below 1.005 is shown as 1.00.
LINEAR_EFFICIENCY = 1.005

# Of one set of options: rows of `contrast.compare` by workers, knobs of native DDP, framework compared with
# it, and knobs of that.
Comparisons = Mapping[tuple[int, str, Framework, str], Row]


@dataclass(frozen=True)
class Candidate:
    """A point with its row of all tables, how it stands, and the criterion that decides it.

    `series` is the framework, with its knobs where they vary, `floor` that of its efficiency; `better` is the
    row of the IoU between frameworks in which another one is better by more than the margin, if there is one.
    """

    row: Row
    framework: Framework
    workers: int
    series: str
    standing: Standing
    criterion: Criterion
    floor: float
    better: Row | None

    @property
    def is_superlinear(self) -> bool:
        """Whether N workers are shown to do more than N times the work of one."""
        return bool(self.row["efficiency_common_low"] > LINEAR_EFFICIENCY)


@dataclass(frozen=True)
class CandidateSet:
    """All candidates of one set of options, the largest throughput first.

    `missing` names the frameworks without a point on 1 worker; `slow` is the row of the most efficiency
    where that is more than linear and its `slowed` shows that 1 worker was slowed; `lost` has series,
    workers and diverged runs of the points of which no run can be used.
    """

    study: Study
    candidates: Sequence[Candidate]
    comparisons: Comparisons
    missing: Sequence[str]
    slow: Row | None
    lost: Sequence[tuple[str, int, int]]

    @property
    def larger(self) -> list[Candidate]:
        """Those of more than 1 worker."""
        return [candidate for candidate in self.candidates if candidate.workers > 1]

    @property
    def largest(self) -> list[Candidate]:
        """The point of each series on its most workers, by the names of the series."""
        found = {point.series: point for point in sorted(self.candidates, key=lambda point: point.workers)}
        return [found[series] for series in sorted(found)]

    @property
    def most_repeats(self) -> int:
        """Repeats of the point that has the most."""
        return max(int(candidate.row["repeats"]) for candidate in self.candidates)

    def others(self, best: Candidate) -> list[Candidate]:
        """Return the points of other frameworks on as many workers."""
        same = [candidate for candidate in self.candidates if candidate.workers == best.workers]
        return [candidate for candidate in same if candidate.framework != best.framework]

    def alone(self, point: Candidate) -> Candidate | None:
        """Return the point of the same series on 1 worker."""
        same = (one for one in self.candidates if one.workers == 1 and one.series == point.series)
        return next(same, None)

    def comparison(self, one: Candidate, other: Candidate) -> Row | None:
        """Return the comparison of two frameworks' points; None where none is native, or not as large."""
        native, wrapped = (one, other) if one.framework == COMPARED[0] else (other, one)
        if one.workers != other.workers or native.framework != COMPARED[0]:
            return None
        key = one.workers, native.row["knobs"], wrapped.framework, wrapped.row["knobs"]
        return self.comparisons.get(key)

    @property
    def compared(self) -> list[Row]:
        """The comparisons at the largest worker count of both; of several frameworks, the compared pair."""
        every = self.comparisons.values()
        rows = [row for row in every if row["framework"] == COMPARED[1]] or list(every)
        most = max((row["workers"] for row in rows), default=0)
        return [row for row in rows if row["workers"] == most]

    def is_doubted(self, point: Candidate) -> bool:
        """Return whether the speed of a point against 1 worker may be wrong."""
        rows = [row for row in self.comparisons.values() if row["workers"] in (1, point.workers)]
        unknown = math.isnan(point.row["speedup_common_low"])
        return bool(self.slow or unknown or any(row["doubts"] for row in rows))


@dataclass(frozen=True)
class Recommendation:
    """What to train with, of the runs that have these options.

    `workers` is None where nothing can be recommended; `framework` also where none is shown to be faster, and
    on 1 worker. `chosen` are the points named, `unsettled` those of other frameworks on as many workers that
    do not qualify, but are not shown to be slower either; `doubts` what speaks against the comparison of
    the frameworks.
    """

    options: str
    framework: Framework | None
    workers: int | None
    candidates: CandidateSet
    chosen: tuple[Candidate, ...] = ()
    unsettled: tuple[Candidate, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """The kind of the answer: scale, stay, undecided, unfair or speed."""
        if (self.doubts and not self.is_only_disturbed) or self.impossible:
            return "unfair"
        if self.workers is None or self.is_only_disturbed:
            is_speed_alone = self.candidates.study.kind.unlearned and self.subject.criterion == "iou"
            return "speed" if is_speed_alone and not self.is_only_disturbed else "undecided"
        return "stay" if self.workers == 1 else "scale"

    @property
    def is_only_disturbed(self) -> bool:
        """Whether all that speaks against a comparison is a machine that was not quiet."""
        of_load = (_not_met(contrast.QUIET), *contrast.TOOK.values())
        return bool(self.doubts) and all(
            reason.removeprefix(_ON_ONE).startswith(of_load) for reason in self.against
        )

    @property
    def against(self) -> list[str]:
        """What speaks against a comparison, one reason each: of the fairness table, each check."""
        reasons = []
        for doubt in self.doubts:
            where = _ON_ONE * doubt.startswith(_ON_ONE)
            for fact in doubt.removeprefix(where).split("; "):
                _, of_table, checks = fact.partition(contrast.TABLE_SAYS_NO)
                facts = map(_not_met, checks.split(", ")) if of_table else [fact]
                reasons += [f"{where}{each}" for each in facts]
        return list(dict.fromkeys(reasons))

    @property
    def impossible(self) -> bool:
        """Whether a point cannot be judged since the runs on 1 worker were too slow."""
        return any(point.criterion == "slow_baseline" for point in self.candidates.larger)

    @property
    def subject(self) -> Candidate:
        """The point that tiles are about: the one chosen, or the fastest on more than 1 worker.

        Where nothing is recommended it is the fastest that may still qualify, which the headline names.
        """
        if self.workers != 1 and self.chosen:
            return self.chosen[0]
        larger = self.candidates.larger
        undecided = [point for point in larger if point.standing == "undecided" and self.workers is None]
        return (undecided or larger or self.candidates.candidates)[0]


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

    `points` are those of `points.summarise`, `iou` of `iou.iou_table`, `cost` of `points.cost_table`,
    `comparisons` of `contrast.compare` and `between` of `iou.iou_between_frameworks`. `baseline_doubt` says
    what speaks against the runs on 1 worker as the baseline of the others.
    """
    table = points
    for more in (iou.rename(columns={"why": "iou_why"}), cost):
        table = table.merge(more[[*POINT, *more.columns.difference(points.columns, sort=False)]], on=POINT)
    compared: dict[object, dict[tuple[int, str, Framework, str], Row]] = {}
    for row in comparisons.to_dict("records"):
        key = row["workers"], row["native_knobs"], row["framework"], row["other_knobs"]
        compared.setdefault(row["options"], {})[key] = row
    return [
        _recommendation(
            str(options), _candidates(study, group, between, compared.get(options, {})), baseline_doubt
        )
        for options, group in table.groupby("options", sort=False)
    ]


def slower_framework(row: Row) -> Framework | None:
    """Return the framework that a comparison calls slower, or suggests to be; None where it says neither."""
    if row["outcome"] not in (*contrast.FASTER, *contrast.SUGGESTED):
        return None
    framework: Framework = row["framework"] if row["ratio_low"] > 1 else COMPARED[0]
    return framework


def least_efficiency(workers: int, criteria: Criteria) -> float:
    """Return the floor of efficiency at so many workers: the study's, and never less than the speed of 1."""
    return max(criteria.efficiency_floor, 1 / workers) if workers > 1 else criteria.efficiency_floor


def _candidates(
    study: Study, points: pd.DataFrame, between: pd.DataFrame, comparisons: Comparisons
) -> CandidateSet:
    rows: Sequence[Row] = points.sort_values("throughput", ascending=False, kind="stable").to_dict("records")
    with_one = {row["framework"] for row in rows if row["workers"] == 1}
    used = {row["framework"] for row in rows}
    missing = [name for framework, name in study.names.items() if framework in used - with_one]
    worst = max(points.to_dict("records"), key=lambda row: np.nan_to_num(row["efficiency_common_low"]))
    is_superlinear = worst["efficiency_common_low"] > LINEAR_EFFICIENCY
    slowed = slowed_on_one(study, worst) if is_superlinear else ""
    slow = worst | {"slowed": slowed} if slowed else None
    # By speed alone none is preferred to one whose score is known.
    has_judged = any(not row["not_judged"] and not math.isnan(row["difference"]) for row in rows)
    judged = partial(_judged, study, between, has_baseline=not missing, has_judged=has_judged, slow=slow)
    candidates = [judged(row) for row in rows]
    return CandidateSet(
        study, candidates, comparisons, missing, slow, _lost(study.left_out, study.names, rows)
    )


def _judged(
    study: Study, between: pd.DataFrame, row: Row, *, has_baseline: bool, has_judged: bool, slow: Row | None
) -> Candidate:
    """Return how a point stands and why; evidence against it goes before missing evidence."""
    floor = least_efficiency(int(row["workers"]), study.criteria)
    low, high = row["efficiency_common_low"], row["efficiency_common_high"]
    better = _better(row, between)
    is_several = row["workers"] > 1
    # So few steps teach little on 1 worker, too.
    is_short = row["steps"] < FEWEST_JUDGED_STEPS
    rules: Sequence[tuple[bool, Standing, Criterion]] = (
        (bool(row["diverged"]), "excluded", "diverged"),
        (row["non_inferior"] in SCORE_LOST, "excluded", "iou"),
        (high < floor, "excluded", "efficiency"),
        (better is not None, "excluded", "other_iou"),
        (row["learned"] == "no" and is_several and not is_short, "undecided", "not_learned"),
        (row["repeats"] < FEWEST_REPEATS, "undecided", "repeats"),
        (not has_baseline, "undecided", "no_baseline"),
        (math.isnan(low), "undecided", "repeats"),
        (slow is not None and is_several, "undecided", "slow_baseline"),
        (low < floor, "undecided", "efficiency"),
        (row["non_inferior"] == "not shown", "undecided", "iou"),
        (bool(row["not_judged"]) and has_judged, "undecided", "not_judged"),
        (True, "qualifies", ""),
    )
    standing, criterion = next((standing, criterion) for applies, standing, criterion in rules if applies)
    series = study.names[row["framework"]] + (f" ({row['knobs']})" if row["knobs"] else "")
    point = (row, row["framework"], int(row["workers"]), series)
    return Candidate(*point, standing, criterion, floor, better)


def _better(row: Row, between: pd.DataFrame) -> Row | None:
    """Return the comparison in which a framework has a better IoU at this point, by more than the margin.

    `difference`, with its bounds, is that of this point to the other, and `framework` the other.
    """
    is_native = row["framework"] == COMPARED[0]
    own = between["options"].eq(row["options"]) & between["workers"].eq(row["workers"])
    own &= between["native_knobs" if is_native else "other_knobs"].eq(row["knobs"])
    own &= is_native | between["framework"].eq(row["framework"])
    sign = 1 if is_native else -1
    matching: pd.DataFrame = between[own]
    for found in matching.to_dict("records"):
        low, high = sorted(sign * found[name] for name in ("difference_low", "difference_high"))
        if high < -found["margin"] and found["equal_within_margin"] in SCORE_LOST:
            found["framework"] = found["framework"] if is_native else COMPARED[0]
            found["difference"] *= sign
            found["difference_low"], found["difference_high"] = low, high
            return found
    return None


def _lost(left_out: pd.DataFrame, names: Names, rows: Sequence[Row]) -> list[tuple[str, int, int]]:
    lost = left_out[(left_out["state"] == "diverged") & (left_out["options"] == rows[0]["options"])]
    usable = {(row["framework"], row["knobs"], row["workers"]) for row in rows}
    runs = Counter(zip(lost["framework"], lost["knobs"], lost["workers"], strict=True))
    return [
        (names[framework] + (f" ({knobs})" if knobs else ""), workers, number)
        for (framework, knobs, workers), number in runs.items()
        if (framework, knobs, workers) not in usable
    ]


def _recommendation(options: str, candidates: CandidateSet, baseline_doubt: str) -> Recommendation:
    best = next((point for point in candidates.candidates if point.standing == "qualifies"), None)
    larger = candidates.larger
    if best and best.workers > 1:
        alike = [other for other in candidates.others(best) if _is_as_good(best, other, candidates)]
        return Recommendation(
            options,
            None if alike else best.framework,
            best.workers,
            candidates,
            (best, *(other for other in alike if other.standing == "qualifies")),
            tuple(other for other in alike if other.standing != "qualifies"),
            _doubts(best, candidates.comparisons, baseline_doubt),
        )
    if best and larger and all(point.standing == "excluded" for point in larger):
        # A doubt about the baseline concerns this answer where an efficiency is the reason.
        by_speed = any(point.criterion == "efficiency" for point in larger)
        against = (baseline_doubt,) if baseline_doubt and by_speed else ()
        return Recommendation(options, None, 1, candidates, (best,), doubts=against)
    doubts = _doubts((larger or candidates.candidates)[0], candidates.comparisons, "")
    return Recommendation(options, None, None, candidates, doubts=doubts)


def _is_as_good(best: Candidate, other: Candidate, candidates: CandidateSet) -> bool:
    """Return whether a point on as many workers is neither shown to be slower, nor worse by its IoU."""
    is_worse = other.standing == "excluded" and other.criterion != "efficiency"
    if is_worse or other.criterion == "not_learned":
        return False
    row = candidates.comparison(best, other)
    return row is None or slower_framework(row) != other.framework


def _doubts(best: Candidate, comparisons: Comparisons, baseline_doubt: str) -> tuple[str, ...]:
    """Return what speaks against the runs on as many workers, and against their baseline."""
    found = {}
    for (workers, native_knobs, framework, knobs), row in comparisons.items():
        of_other = (framework, knobs) == (best.framework, best.row["knobs"])
        is_about = native_knobs == best.row["knobs"] if best.framework == COMPARED[0] else of_other
        if workers in (1, best.workers) and is_about and row["doubts"]:
            found[str(row["doubts"])] = workers
    doubts = [text if workers > 1 else f"{_ON_ONE}{text}" for text, workers in found.items()]
    return (*doubts, *filter(None, [baseline_doubt]))


def _not_met(check: str) -> str:
    return f'"{check}" is not met'


def best_of(recommendations: Sequence[Recommendation]) -> Recommendation | None:
    """Return the set whose point is faster than that of every other, by whole intervals, at no lower IoU."""
    if not all(advice.chosen for advice in recommendations):
        return None
    for advice in recommendations:
        others = [other.chosen[0].row for other in recommendations if other is not advice]
        if all(_beats(advice.chosen[0].row, other) for other in others):
            return advice
    return None


def _beats(row: Row, other: Row) -> bool:
    faster = row["throughput_low"] > other["throughput_high"]
    margin = min(row["margin"], other["margin"])
    is_judged = not (row["not_judged"] or other["not_judged"]) and row["learned"] != "no"
    return bool(faster and is_judged and row["iou_low"] > other["iou_high"] - margin)


@dataclass(frozen=True)
class RepeatDecision:
    """Whether one more repeat of each point is to follow, and why."""

    goes_on: bool
    sentence: str


def decide_repeats(study: Study, comparisons: pd.DataFrame, until: Precision) -> RepeatDecision:
    """Return whether a study whose runs are all complete gets one more repeat."""
    half_width, pair = widest(comparisons)
    newest = int(max([*study.runs["repeat"], *study.left_out["repeat"]]))
    after = f"after {count(newest, 'repeat')}"
    if math.isnan(half_width):
        why = f"{after}, no interval"
        pairs = contrast.paired_runs(study.runs)
        repeats = []
        if pair:
            repeats = pairs.loc[(pairs[contrast.KEY] == list(pair)).all(axis="columns"), "repeat"].tolist()
        if pair:
            compared = f"{len(repeats)} of its repeats can be compared, {FEWEST_REPEATS} are needed"
            why += f" {contrast.point_name(pair)}: {compared}"
        # The next repeat can be compared where the newest one can.
        if newest not in repeats:
            lost = "the newest can not, so more would not help: the report lists which runs it leaves out"
            return RepeatDecision(False, f"{why}; {lost}")
    else:
        where = f" ({contrast.point_name(pair)})" if pair else ""
        why = f"{after}, the widest interval of the ratio is ± {100 * half_width:.1f} %{where}"
        if half_width <= until.half_width:
            return RepeatDecision(False, f"{why}, narrow enough: no more are needed")
        why += f", more than ± {100 * until.half_width:g} %"
    if newest >= until.most:
        return RepeatDecision(
            False, f"{why}; {until.most} repeats are the most that the study allows: it ends here"
        )
    return RepeatDecision(True, f"{why}: one more is needed")


def widest(comparisons: pd.DataFrame) -> tuple[float, PointPair | None]:
    """Return half the width of the widest interval over its ratio, and of which pair.

    NaN where one is not known, which is wider than any other.
    """
    if comparisons.empty:
        return math.nan, None
    widths = half_widths(comparisons).to_numpy(dtype=np.float64)
    row = int(np.nan_to_num(widths, nan=np.inf).argmax())
    return float(widths[row]), contrast.pair_of(list(comparisons[contrast.PAIR].iloc[row]))


def half_widths(comparisons: pd.DataFrame) -> "pd.Series[float]":
    """Return half the width of each interval over its ratio; NaN where there is no interval."""
    return (comparisons["ratio_high"] - comparisons["ratio_low"]) / (2 * comparisons["ratio"])


def width_notes(study: Study, comparisons: pd.DataFrame) -> Iterator[str]:
    """Yield why a study that adds repeats by itself ended, or that it has not yet."""
    if study.until is None or study.runs.empty:
        return
    asked = f"repeats = {str(study.until)!r}"
    unfinished = sum(~study.left_out["state"].isin(get_args(Exclusion)))
    if unfinished:
        yield f"{asked}: not decided, as {count(unfinished, 'run')} of the study did not complete"
    else:
        yield f"{asked}: {decide_repeats(study, comparisons, study.until).sentence}"


def repeats_for_intervals(candidates: CandidateSet) -> int:
    """Return how many repeats the point with the fewest has less than recommended; never below 0."""
    fewest = min(int(point.row["repeats"]) for point in candidates.candidates)
    return max(0, RECOMMENDED_REPEATS - fewest)


def request_repeats(
    runs: pd.DataFrame, startups: pd.DataFrame, evaluations: pd.DataFrame, number: int
) -> str:
    """Return "3 more repeats (about 2 min)": of every point, one after the other, as those recorded took.

    A run lasts from its launch to its end: the start of its slowest worker, training and evaluations.
    """
    starts = startups[list(STARTUP_COLUMNS)].sum(axis="columns").groupby(startups["run"]).max()
    evaluating = evaluations.groupby("run")["seconds"].sum()
    seconds = runs["training_seconds"]
    for beside in (evaluating, starts):
        seconds = seconds + runs["run"].map(beside).astype(float).fillna(0.0)
    of_points = seconds.groupby([runs[name] for name in POINT]).median()
    needed = number * float(of_points.sum(skipna=False))
    if math.isnan(needed):
        return count(number, "more repeat")
    about = "about" if runs["run"].isin(startups["run"]).all() else "at least"
    return f"{count(number, 'more repeat')} ({about} {duration(needed)})"


PROGRAM = """Whether a study needs more repeats.

Prints one JSON object for the submission: goes_on (whether one more repeat of each point is to follow, by the
words of `repeats = "until ..."`), and a sentence that says why.
"""


def main() -> None:
    parser = CommandLine("python -m analysis.judge.decide", PROGRAM)
    parser.add_argument("study", type=Path, metavar="logs/STUDY", help="folder of a study's runs")
    folder: Path = parser.parse_args().study
    recorded = recorded_study(folder)
    if recorded is None or recorded.until is None:
        raise UserError(f'{folder}: repeats: found a number; only "until 3 %" asks for a width')
    study = load_study(folder)
    # Those of the report: corrected for all comparisons of the study, with further frameworks too.
    comparisons = contrast.select_compared_pair(contrast.compare(study))
    print(json.dumps(asdict(decide_repeats(study, comparisons, recorded.until))))


if __name__ == "__main__":
    run_program(main)
