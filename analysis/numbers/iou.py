"""IoU on more workers: against 1 worker of the same framework, and native DDP against every other framework.

Both are questions about differences of IoU paired by repeat: the launches of a repeat share seed, initial
weights and test images. A point is not inferior where the whole interval of the difference lies above
-margin, and inferior where it lies below -margin; two frameworks are equal within the margin where it lies
inside (-margin, margin). A difference that is "not significant" answers neither, so everything else is
"not shown" (the interval form of a non-inferiority test and of two one-sided tests of equivalence:
Schuirmann 1987, J. Pharmacokinet. Biopharm. 15, 657). As for speed, an interval is the wider of Student's t
and the bootstrap, corrected by Holm for the points that are compared, and fewer than 5 seeds only suggest
an answer. What cannot be judged (score_evidence.py) is asked neither, and the margin is at most a share of
what was learned beyond a constant prediction.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.numbers import stats
from analysis.numbers.contrast import KEY
from analysis.numbers.direction import direction_note, score_direction
from analysis.numbers.score_evidence import (
    ScoreEvidence,
    UnjudgedReason,
    named,
    sampling_error,
    trained_of,
    why_not_judged,
)
from analysis.study import (
    COMPARED,
    FEWEST_REPEATS,
    NAMES,
    NAN,
    POINT,
    RECOMMENDED_REPEATS,
    Array,
    Score,
    Study,
    bounded,
)
from analysis.text import bracketed, count, lines
from unet_scaling.study.config import Framework
from unet_scaling.study.options import FEWEST_JUDGED_STEPS, FEWEST_TEST_SAMPLES

MarginAnswer = Literal["yes", "no", "suggests yes", "suggests no", "not shown", "not judged"]
COUNTS = ["true_positive", "false_positive", "false_negative", "true_negative"]
# A constant prediction is to training what the placebo is to a drug: no margin may give away more than this
# share of what was gained over it. A score that is 0.1 above the constant keeps the usual margin of 0.01.
MARGIN_SHARE = 0.1
# Whether a loss is below a margin is a question of one side: so often at most one of all answers is wrong.
ONE_SIDED_SIGNIFICANCE = 0.05
_IOU_COLUMNS = [
    *POINT, "seeds", "test_images", *bounded("iou", "difference"), "pairs", "diverged",
    "constant_iou", "learned", "margin", "non_inferior", "why", "steps", "iou_running", "statistics",
    "epochs_needed", "not_judged",
]  # fmt: skip
_BETWEEN_COLUMNS = [*KEY, "pairs", *bounded("difference"), "margin", "equal_within_margin", "why"]
TASK_SCORE_COLUMNS = [*POINT, "score", "judged", "seeds", *bounded("value")]


@dataclass(frozen=True)
class PointSeeds:
    """The IoU of each seed of one point, how many images it is of, and how many of its runs diverged.

    `constant` is the score of the best constant prediction; NaN where it is not known.
    """

    options: str
    framework: str
    knobs: str
    workers: int
    ious: Mapping[int, float]
    test_images: float
    diverged: int
    constant: float = NAN
    kind: Literal["real", "played"] = "real"
    trained: ScoreEvidence = ScoreEvidence()  # noqa: RUF009  (frozen)

    @property
    def series(self) -> tuple[str, str, str]:
        """Options, framework and knobs."""
        return self.options, self.framework, self.knobs

    @property
    def values(self) -> Array:
        """IoU of its runs."""
        return np.array(list(self.ious.values()), dtype=np.float64)

    @property
    def score(self) -> float:
        """Median of these; NaN of none."""
        return float(np.median(self.values)) if self.ious else NAN


@dataclass(frozen=True)
class Learning:
    """What was learned: a score, its lower bound, and that of the best constant prediction; NaN: not known.

    `least` is the margin of the study: a gain that it calls negligible is none.
    """

    least: float
    score: float = NAN
    low: float = NAN
    constant: float = NAN

    @property
    def learned(self) -> Literal["yes", "no", "not known"]:
        """Whether the score, with its interval, lies above that of a constant prediction by the margin."""
        low = self.score if math.isnan(self.low) else self.low
        if math.isnan(low) or math.isnan(self.constant):
            return "not known"
        return "yes" if low > self.constant + self.least else "no"

    @property
    def margin(self) -> float:
        """The margin of the study, or MARGIN_SHARE of what was learned where that is less."""
        gain = self.score - self.constant
        return min(self.least, MARGIN_SHARE * gain) if self.learned == "yes" else self.least


@dataclass(frozen=True)
class MarginTest:
    """Answer of the differences (of `differences_of`) to a question with the margin of what was learned.

    `diverged` counts the diverged runs of each owner; `reasons` are why nothing is judged.
    """

    difference: Mapping[str, float]
    answer: MarginAnswer
    learning: Learning
    diverged: Mapping[str, int]
    reasons: tuple[UnjudgedReason, ...] = ()

    @property
    def shown(self) -> MarginAnswer:
        """The answer; diverged runs have no IoU, so the others alone cannot show that nothing is lost."""
        if self.reasons:
            return "not judged"
        diverged = self.answer.endswith("yes") and any(self.diverged.values())
        return "not shown" if diverged else self.answer


def answer_of(difference: Mapping[str, float], *, yes: bool, no: bool) -> MarginAnswer:
    """Return what a difference answers; of 3 or 4 seeds, what they suggest."""
    is_few = difference["pairs"] < RECOMMENDED_REPEATS
    if yes:
        return "suggests yes" if is_few else "yes"
    if no:
        return "suggests no" if is_few else "no"
    return "not shown"


def iou_table(study: Study) -> pd.DataFrame:
    """Return one row per point, in the order of the study's runs; what is not known is NaN.

    IoU and differences are shares from 0 to 1, medians over seeds with their intervals: that of IoU at 95 %
    (the confidence that few seeds allow stands in `why`), that of a difference as the answer needs it. A
    point's diverged run forbids a "yes".
    """
    points = seeds_of(study)
    of_one = {point.series: point for point in points if point.workers == 1}
    baselines = [of_one.get(point.series) for point in points]
    rows = []
    for point, baseline, (cells, test) in zip(
        points, baselines, judged_points(study, points, baselines), strict=True
    ):
        shown = "baseline" if point.workers == 1 else test.shown
        why = reasons_at(study, point, baseline, test, "run this series on 1 worker")
        rows.append(cells | {"non_inferior": shown, "why": "; ".join(why)})
    return pd.DataFrame(rows, columns=_IOU_COLUMNS)


def judged_points(
    study: Study, points: Sequence[PointSeeds], baselines: Sequence[PointSeeds | None]
) -> Iterator[tuple[dict[str, object], MarginTest]]:
    """Yield the cells of each point, and whether it is not inferior to 1 worker of its series."""
    pairs = _known_pairs(study.provenance_known, [
        (point, baseline) if baseline and point.workers != 1 else None
        for point, baseline in zip(points, baselines, strict=True)
    ])  # fmt: skip
    learnings = learning_of(baselines, study.criteria.iou_margin)
    reasons = _reasons(study, pairs, learnings)
    differences = differences_of(pairs, [-each.margin for each in learnings], reasons)
    intervals = stats.median_intervals([point.values for point in points], stats.SHARE)
    for place, (point, difference, learning) in enumerate(zip(points, differences, learnings, strict=True)):
        cells = {
            **{name: getattr(point, name) for name in (*POINT, "test_images", "diverged")},
            **difference,
            "seeds": len(point.ious),
            "iou": point.score,
            "iou_low": intervals[place][0],
            "iou_high": intervals[place][1],
            "constant_iou": point.constant,
            "learned": learning.learned,
            "margin": learning.margin,
            "steps": point.trained.steps,
            "iou_running": point.trained.running,
            "statistics": point.trained.statistics,
        }
        yes = difference["difference_low"] > -learning.margin
        answer = answer_of(difference, yes=yes, no=difference["difference_high"] < -learning.margin)
        test = MarginTest(difference, answer, learning, {"this point": point.diverged}, reasons[place])
        needed = point.trained.epochs_needed if "steps" in test.reasons else NAN
        why_not = _why_not(study, point, baselines[place], test)
        yield cells | {"epochs_needed": needed, "not_judged": why_not}, test


def _known_pairs(
    provenance_known: bool, pairs: Sequence[tuple[PointSeeds, PointSeeds] | None]
) -> list[tuple[PointSeeds, PointSeeds] | None]:
    """Return the pairs whose scores may be compared; None where nothing tells the test images."""
    return list(pairs) if provenance_known else [None] * len(pairs)


def _reasons(
    study: Study, pairs: Sequence[tuple[PointSeeds, PointSeeds] | None], learnings: Sequence[Learning]
) -> list[tuple[UnjudgedReason, ...]]:
    """Return why each pair is not judged; that of runs which learn nothing has no answer anyway."""
    if study.kind.unlearned:
        return [()] * len(pairs)
    if score_direction(study) == "lower":
        return [("direction",) if pair else () for pair in pairs]
    return [
        why_not_judged(*pair, learning.learned, learning.margin) if pair else ()
        for pair, learning in zip(pairs, learnings, strict=True)
    ]


def _why_not(study: Study, point: PointSeeds, other: PointSeeds | None, test: MarginTest) -> str:
    """Return in words why a point is not judged against another, and what it needs; empty where it is."""
    if not test.reasons or other is None:
        return ""
    shorter = min(point.trained, other.trained, key=lambda each: each.steps)
    facts = {"steps": FEWEST_JUDGED_STEPS, "samples": FEWEST_TEST_SAMPLES}
    note = direction_note(study) if "direction" in test.reasons else ""
    error = sampling_error(point.trained, other.trained)
    context = {"shorter": shorter, "error": error, "fewest": facts, "score": study.score, "direction": note}
    say = partial(lines, "not_judged", point=point, other=other, **context)
    return "; ".join(text for reason in named(test.reasons) for text in say(reason=reason))


def reasons_at(
    study: Study, point: PointSeeds, baseline: PointSeeds | None, test: MarginTest, cure: str
) -> Iterator[str]:
    """Yield what stands behind the answer for a point; `cure` is what to do without a baseline."""
    if point.workers == 1:
        yield "what the others are compared with"
    elif baseline is None and study.provenance_known:
        yield f"no run on 1 worker to compare with: {cure}"
    elif baseline and point.ious:
        yield from _evidence(study, point, baseline, test)
    yield from _evaluated(study.iou_scope, study.score, point, test)


def iou_between_frameworks(study: Study) -> pd.DataFrame:
    """Return one row per framework, options, knobs and worker count that native DDP has too.

    The difference is IoU of native DDP minus that of the other framework, with the margin of the study.
    """
    points = seeds_of(study)
    native = [point for point in points if point.framework == COMPARED[0]]
    pairs = [
        (point, other)
        for framework in dict.fromkeys(point.framework for point in points)
        for point in native
        for other in points
        if other.framework == framework != COMPARED[0]
        and (other.options, other.workers) == (point.options, point.workers)
    ]
    better = [max(pair, key=lambda point: point.score) for pair in pairs]
    learning = learning_of(better, study.criteria.iou_margin)
    known = _known_pairs(study.provenance_known, pairs)
    # Equal to the last digit in each seed, after however few steps: the frameworks train the same.
    reasons = [
        () if {*found} <= {"steps", "rising"} and one.ious == two.ious and each.learned != "no" else found
        for found, (one, two), each in zip(_reasons(study, known, learning), pairs, learning, strict=True)
    ]
    # The side of the margin that a difference may be beyond, or within, is the one that it is nearer to.
    nearer = [each.margin if one.score > two.score else -each.margin
              for (one, two), each in zip(pairs, learning, strict=True)]  # fmt: skip
    differences = differences_of(known, nearer, reasons)
    rows = []
    for (point, other), difference, learned, found in zip(pairs, differences, learning, reasons, strict=True):
        low, high = difference["difference_low"], difference["difference_high"]
        margin = learned.margin
        inside = -margin < low and high < margin
        answer = answer_of(difference, yes=inside, no=low > margin or high < -margin)
        framework: Framework = other.framework  # type: ignore[assignment]
        diverged = {NAMES[COMPARED[0]]: point.diverged, NAMES[framework]: other.diverged}
        test = MarginTest(difference, answer, learned, diverged, found)
        evidence = _evidence(study, point, other, test)
        rows.append({
            **difference,
            "options": point.options,
            "native_knobs": point.knobs,
            "other_knobs": other.knobs,
            "workers": point.workers,
            "framework": framework,
            "margin": margin,
            "equal_within_margin": test.shown,
            "why": "; ".join([*evidence, *_evaluated(study.iou_scope, study.score, point, test)]),
        })  # fmt: skip
    return pd.DataFrame(rows, columns=_BETWEEN_COLUMNS)


def learning_of(points: Sequence[PointSeeds | None], least: float) -> list[Learning]:
    """Return what was learned at each point; nothing is known of None."""
    intervals = stats.median_intervals(
        [np.array([]) if point is None else point.values for point in points], stats.SHARE
    )
    return [
        Learning(least, point.score, low, point.constant) if point and point.ious else Learning(least)
        for point, (low, _) in zip(points, intervals, strict=True)
    ]


def seeds_of(study: Study) -> list[PointSeeds]:
    """Return every point with the IoU of its seeds, in the order of the study's runs.

    A seed is one repeat; logs that do not tell it have that of the repeat.
    """
    lost = study.left_out[study.left_out["state"] == "diverged"]
    diverged = {point: set(runs["repeat"]) for point, runs in lost.groupby(POINT)}
    # What the best constant prediction scores, NaN where no count tells: the IoU of "all foreground" is the
    # share of foreground. The counts of a task of its own do not say which answer is the most frequent.
    last = study.evaluations.drop_duplicates("run", keep="last").set_index("run")[COUNTS].astype(float)
    constants = (last["true_positive"] + last["false_negative"]) / last.sum(axis="columns", skipna=False)
    runs = study.runs.assign(constant=study.runs["run"].map(constants).astype(float))
    runs["seed"] = runs["seed"].fillna(runs["repeat"]).astype(int)
    trained = trained_of(study.evaluations, study.runs, study.image_ious)
    points = []
    groups: dict[Any, pd.DataFrame] = dict(iter(runs.groupby(POINT, sort=False)))
    for key, own in groups.items():
        options, framework, knobs, workers = key
        ious = dict(zip(own["seed"].tolist(), own["iou"].astype(float).tolist(), strict=True))
        images = float(own["test_images"].iloc[-1])
        without_iou = len(diverged.get(key, set()) - set(own["repeat"]))
        constant = float(own["constant"].median())
        point = (str(options), str(framework), str(knobs), int(workers))
        points.append(PointSeeds(*point, ious, images, without_iou, constant, trained=trained[key]))
    return points


def differences_of(
    pairs: Sequence[tuple[PointSeeds, PointSeeds] | None],
    limits: Sequence[float],
    reasons: Sequence[Collection[UnjudgedReason]],
) -> list[dict[str, float]]:
    """Return IoU of the first point of each pair minus that of the second, in the seeds that both have.

    An interval excludes its limit only where that holds for all pairs that are judged, those without a
    reason, together; played and real runs are two families.
    """
    samples = []
    for pair in pairs:
        first, second = (pair[0].ious, pair[1].ious) if pair else ({}, {})
        common = [first[seed] - second[seed] for seed in first if seed in second]
        samples.append(np.array(common, dtype=np.float64))
    tests = pd.DataFrame(stats.contrasts_of(samples), columns=list(stats.CONTRAST_COLUMNS))
    limit = np.asarray(limits, dtype=np.float64)
    from_limit = {name: tests[name] - limit for name in ("low", "high", "centre")}
    kinds = [pair[0].kind if pair and not each else "" for pair, each in zip(pairs, reasons, strict=True)]
    tests = tests.assign(**from_limit, family=kinds)
    found = stats.corrected(tests, ["family"], 2 * ONE_SIDED_SIGNIFICANCE)
    low, high = (np.clip(found[end] + limit, -1.0, 1.0) for end in ("low", "high"))
    return [
        {"pairs": int(pairs), "difference": middle, "difference_low": first, "difference_high": last,
         "comparisons": together}
        for pairs, middle, first, last, together in zip(
            tests["fewest"], tests["median"], low, high, found["comparisons"], strict=True)
    ]  # fmt: skip


def _evidence(study: Study, point: PointSeeds, other: PointSeeds, test: MarginTest) -> Iterator[str]:
    """Yield what the runs show of a difference; nothing of unknown test images."""
    if not study.provenance_known:
        return
    difference, learning = test.difference, test.learning
    pairs = int(difference["pairs"])
    if pairs < FEWEST_REPEATS:
        have = f"{count(pairs, 'repeat')} in common"
        yield f"{have}: at least {FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
    elif math.isnan(difference["difference"]):
        yield f"the {study.score.title} of a run is not known: its counts give none"
    else:
        margin = f"{learning.margin:g}"
        if learning.margin != learning.least:
            gain = learning.score - learning.constant
            margin = f"{learning.margin:.2g} ({MARGIN_SHARE:.0%} of what was learned, {gain:.2g})"
        ends = bracketed(difference["difference_low"], difference["difference_high"], "+.4f")
        yield f"difference {difference['difference']:+.4f} {ends}, margin {margin}"
    why_not = _why_not(study, point, other, test)
    yield from lines("iou_evidence", test=test, point=point, other=other, study=study, why_not=why_not)


def _evaluated(iou_scope: str, score: Score, point: PointSeeds, test: MarginTest) -> Iterator[str]:
    """Yield on how many images the IoU was computed, if any was, and how many runs diverged, and of what."""
    images = point.test_images
    known = f"{images:.0f} test {score.samples}, {iou_scope}"
    if point.ious:
        yield "test images unknown" if math.isnan(images) else known
    for owner, runs in test.diverged.items():
        if runs:
            yield f"{count(runs, 'run')} of {owner} diverged, so no {score.title} for that seed"


def task_scores(study: Study) -> pd.DataFrame:
    """Return one row per point and score, of the last evaluation, for a task of several: TASK_SCORE_COLUMNS.

    `value` is the median over the runs, with its interval; NaN where a run has none. Only the first score is
    judged.
    """
    scores = study.scores.assign(run=study.scores["run"].astype(str))
    last = scores[scores["epochs"] == scores.groupby("run")["epochs"].transform("max")]
    runs = study.runs[["run", "repeat", *POINT]].merge(last[["run", "score", "value"]], on="run")
    if runs.empty:
        return pd.DataFrame(columns=TASK_SCORE_COLUMNS)
    launches = stats.launches_of(runs, [*POINT, "score"])
    table = runs.groupby(launches.point)[[*POINT, "score"]].first()
    table["judged"] = table["score"] == study.score.name
    table["seeds"] = launches.sizes
    values = runs["value"].to_numpy(dtype=np.float64)
    of_share, of_any = (launches.bounded(values, possible) for possible in (stats.SHARE, stats.ANY))
    stats.add_bounded(table, "value", np.where(table["judged"], of_share, of_any))
    return table[TASK_SCORE_COLUMNS].reset_index(drop=True)
