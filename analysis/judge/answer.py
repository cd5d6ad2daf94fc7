"""The answer of a study: for each set of options a headline, four tiles, verdicts, and what to do next.

Nothing is decided here but lights: decide.py has the decisions, and analysis/templates the words.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from analysis.judge.alike import seconds_beside_training
from analysis.judge.decide import (
    SCORE_LOST,
    Candidate,
    Kind,
    Recommendation,
    best_of,
    repeats_for_intervals,
    request_repeats,
    slower_framework,
)
from analysis.judge.score_causes import cause_of
from analysis.judge.trust import Light, Tile, Trust, runs_to_come
from analysis.numbers.check import NO, Check, PointPair
from analysis.numbers.contrast import (
    NOT_ENOUGH,
    PAIR,
    SUGGESTED,
    Equality,
    medians_disagree,
    pair_of,
)
from analysis.read.options import is_knob
from analysis.study import (
    COMPARED,
    NAMES,
    NOT_PROVEN_EQUAL,
    POINT,
    RECOMMENDED_REPEATS,
    Score,
    Study,
    StudyKind,
)
from analysis.text import Row, after, capitalised, count, device_of, lines
from unet_scaling import PROJECT
from unet_scaling.base.texts import CALLED, LAUNCH_HINT
from unet_scaling.format.disturbance import MOST_DISTURBED
from unet_scaling.study.options import FEWEST_JUDGED_STEPS, Criteria

COST_TITLE = "Time and cost"
# A score so many margins below the median of its point is named.
FALLEN_MARGINS = 10
# Of a headline: as many as a reader takes in before the tiles.
MOST_WORDS = 25
# Where 1 worker scores no more than a constant prediction.
LEARN_FIRST = "let 1 worker learn first: look at its masks and predictions, training.learning_rate and epochs"


@dataclass(frozen=True)
class Answer:
    """What the study says of the runs that have these options; `tiles`: speed, IoU, time and cost, trust.

    `headline` is a claim, with what warns of it if there is room; `remarks` say what else restricts it.
    """

    options: str
    kind: Kind
    headline: str
    remarks: tuple[str, ...]
    tiles: tuple[Tile, ...]
    next_steps: tuple[str, ...]

    @property
    def said(self) -> str:
        """The headline and the remarks in one line."""
        return "; ".join((self.headline, *self.remarks))


def answers_of(
    recommendations: Sequence[Recommendation],
    trust: Trust,
    causes: Mapping[str, object],
    slower: Mapping[str, str],
) -> list[Answer]:
    """Return one answer for each set of options: the best set first, then the most decided.

    `causes` has by options the Diagnosis of what most efficiency is lost by, `slower` that of `slower_arm`.
    """
    best = best_of(recommendations)
    kinds = get_args(Kind)
    ordered = sorted(recommendations, key=lambda advice: (advice is not best, kinds.index(advice.kind)))
    return [_answer(advice, trust, causes.get(advice.options), slower[advice.options]) for advice in ordered]


def compared_options(recommendations: Sequence[Recommendation]) -> str:
    """Return one line over the answers of a study with several sets of options; empty for one set."""
    if len(recommendations) < 2:
        return ""
    study = recommendations[0].candidates.study
    best = best_of(recommendations)
    (line,) = lines(
        "options",
        sets=len(recommendations),
        differing=[axis.partition(".")[2] for axis in study.axes if not is_knob(axis)],
        kinds=sorted({advice.kind for advice in recommendations}),
        best=best,
        study=study,
        points=recommendations[0].candidates,
        device=device_of(study.headers),
    )
    return line


def _answer(advice: Recommendation, trust: Trust, cause: object, slower: str) -> Answer:
    study = trust.study
    context: dict[str, object] = {
        "advice": advice, "points": advice.candidates, "study": study, "device": device_of(study.headers),
        "cause": cause, "slower": slower, "score_cause": cause_of(study.subject, advice.subject),
    }  # fmt: skip
    to_come = runs_to_come(study, advice.options)
    is_unfinished = to_come > 0 and advice.kind == "undecided"
    claim, *remarks = _headline(advice, context | {"to_come": to_come, "is_unfinished": is_unfinished})
    # An unfair comparison names what speaks against it, and claims nothing; nor does a study that goes on.
    if advice.kind != "unfair" and not is_unfinished:
        warnings, _, further = trust.qualifiers("; ".join((claim, *remarks)), advice.options)
        claim, rest = _with_warnings(claim, warnings, MOST_WORDS - len(study.kind.restricted.split()))
        remarks = [*rest, *remarks, *further]
    subject = advice.subject
    best = advice.chosen[0] if advice.chosen else subject
    tiles = (
        _tile("speed", "Speed", subject, _speed_light(advice, subject), context),
        _tile("iou", study.score.heading, subject, _iou_light(subject), context),
        _tile("cost", COST_TITLE, best, _cost_light(study.criteria, best), context),
        trust.tile(advice.options),
    )
    steps = _next_steps(advice, trust.checks, context, is_incomplete=to_come > 0)
    if is_unfinished:
        steps = steps[:1]
    return Answer(advice.options, advice.kind, claim, tuple(remarks), tiles, tuple(steps))


def _with_warnings(claim: str, warnings: Sequence[str], most_words: int) -> tuple[str, list[str]]:
    """Return the claim with as many warnings as make no more words, and those that are left as a remark."""
    for number in range(len(warnings), 0, -1):
        longer = f"{claim}; caution: {', '.join(warnings[:number])}"
        if len(longer.split()) <= most_words:
            return longer, [f"caution also: {', '.join(warnings[number:])}"] if number < len(warnings) else []
    return claim, [f"caution: {', '.join(warnings)}"] if warnings else []


def _tile(name: str, title: str, point: Candidate, light: Light, context: dict[str, Any]) -> Tile:
    fallen = _fallen_scores(context["study"], point) if name == "iou" else None
    beside = seconds_beside_training(context["study"], point.row) if name == "cost" else {}
    value, detail, *reasons = lines("tiles", tile=name, point=point, fallen=fallen, beside=beside, **context)
    return Tile(title, value, detail, light, tuple(reasons))


def _fallen_scores(study: Study, point: Candidate) -> list[float]:
    """Return the scores of a point's launches that lie far below their median, the lowest first.

    A median does not tell of them, and an interval of it does not either: 1 of 6 may not have learned.
    """
    runs = study.subject.runs
    own = runs[(runs[POINT] == [point.row[name] for name in POINT]).all(axis="columns")]
    scores = own["iou"].dropna().sort_values()
    fallen = scores[scores < scores.median() - FALLEN_MARGINS * study.criteria.iou_margin]
    return [float(score) for score in fallen]


def _speed_light(advice: Recommendation, point: Candidate) -> Light:
    floor = advice.candidates.study.criteria.efficiency_floor
    low = point.row["efficiency_common_low"]
    if math.isnan(low) or point.workers == 1:
        return "unknown"
    if point.row["efficiency_common_high"] < floor:
        return "bad"
    return "caution" if advice.doubts or point.is_superlinear or low < floor else "good"


def _iou_light(point: Candidate) -> Light:
    row = point.row
    if point.criterion in ("other_iou", "not_learned") or row["diverged"]:
        return "bad"
    if row["non_inferior"] in ("baseline", "not judged") or math.isnan(row["difference"]):
        return "bad" if row["learned"] == "no" and not row["steps"] < FEWEST_JUDGED_STEPS else "unknown"
    lights: dict[str, Light] = {"yes": "good", **dict.fromkeys(SCORE_LOST, "bad")}
    return lights.get(row["non_inferior"], "caution")


def _cost_light(criteria: Criteria, best: Candidate) -> Light:
    if math.isnan(best.row["training_seconds"]):
        return "unknown"
    if criteria.target_iou is None:
        return "none"
    return "good" if best.row["runs_to_target"] == best.row["repeats"] else "caution"


def _headline(advice: Recommendation, context: dict[str, object]) -> list[str]:
    """Return the claim, then what restricts it."""
    points = advice.candidates
    study = points.study
    equal = Equality.of_ratios(study)
    device = device_of(study.headers)
    best = advice.subject
    others = points.others(best)
    compared = [(other, points.comparison(best, other)) for other in others]
    slower = [(other, row) for other, row in compared if row and slower_framework(row) == other.framework]
    faster = [each for each in points.larger if each.row["throughput"] > best.row["throughput"]]
    serious = ("diverged", "iou", "other_iou")
    passed_over = (
        each
        for each in faster
        if each.workers > best.workers and (each.standing == "undecided" or each.criterion in serious)
    )
    lost = [(series, workers) for series, workers, _ in points.lost if workers > (advice.workers or 0)]
    return lines(
        "headline",
        nothing_learned=_nothing_learned(advice, context),
        beside=[pair for pair in compared if pair not in slower or equal.holds(pair[1])],
        suggested=[row["pairs"] for _, row in slower if row["outcome"] in SUGGESTED],
        unmeasured=_unmeasured(advice, device) if not others else "",
        passed_over=next(passed_over, None),
        asks_for_1=_asks_for(study.asked, "workers", 1),
        asks_for_more=study.asked is None or study.asked["workers"].max() > 1,
        against=advice.against,
        all_runs=sum(
            int(table["options"].isin(["", advice.options]).sum()) for table in (study.runs, study.left_out)
        ),
        lost=[f"{count(workers, device)} with {series}" for series, workers in lost[:2]],
        **context,
    )


def _nothing_learned(advice: Recommendation, context: dict[str, object]) -> list[str]:
    """Return that 1 worker learned nothing, of each series or of all alike."""
    alone = [point for point in advice.candidates.candidates if point.workers == 1]
    found = {point.series: lines("not_learned", row=point.row, **context) for point in alone}
    texts = {" ".join(text) for text in found.values()}
    if len(texts) == 1:
        return [capitalised(text) for text in texts if text]
    return [f"{series}: {text[0]}" for series, text in found.items() if text]


def _unmeasured(advice: Recommendation, device: str) -> str:
    """Return the other framework, and where it has no usable run, where the study asks for it."""
    points = advice.candidates
    best = advice.subject
    names = points.study.names.items()
    framework, other = next((each for each in names if each[0] != best.framework), ("", ""))
    if not other or not _asks_for(points.study.asked, "framework", framework):
        return ""
    is_elsewhere = any(point.framework != best.framework for point in points.candidates)
    return f"{other} has no usable run" + (f" on {count(best.workers, device)}" if is_elsewhere else "")


def _asks_for(asked: pd.DataFrame | None, column: str, value: object) -> bool:
    """Return whether the study file asks for such runs; where that is not known, it does."""
    return asked is None or value in set(asked[column])


def _next_steps(
    advice: Recommendation, checks: Sequence[Check], context: dict[str, object], *, is_incomplete: bool
) -> list[str]:
    points = advice.candidates
    study = points.study
    missing = repeats_for_intervals(points)
    # Twice the repeats help where an interval of efficiency or IoU holds the study's limit.
    undecided = [point for point in points.larger if point.standing == "undecided"]
    bounded = {point.criterion for point in undecided if not math.isnan(point.row["difference"])}
    would_decide = advice.workers is None and bounded & {"efficiency", "iou"}
    more = missing or (points.most_repeats if would_decide else 0)
    steps = lines(
        "next",
        plan=next_commands(study, more),
        is_incomplete=is_incomplete,
        asks_for_1=_asks_for(study.asked, "workers", 1),
        asks_for_more=study.asked is not None and study.asked["workers"].max() > 1,
        unmet=[check.check for check in checks if check.mark == NO],
        missing=missing,
        time=request_repeats(study.runs, study.startups, study.evaluations, more) if more else "",
        LAUNCH_HINT=LAUNCH_HINT,
        LEARN_FIRST=LEARN_FIRST,
        **context,
    )
    return list(dict.fromkeys(steps))


def as_restricted(answers: Sequence[Answer], kind: StudyKind, score: Score) -> list[Answer]:
    """Return the answers with what restricts the runs before each headline, and without what they lack."""
    words = kind.restricted
    lacking = kind.lacking(score.heading, COST_TITLE)
    without = {title: Tile(title, kind.unknown, kind.unlearned, "unknown") for title in lacking}
    return [
        replace(
            answer,
            headline=after(words, answer.headline),
            tiles=tuple(without.get(tile.title, tile) for tile in answer.tiles),
        )
        for answer in answers
    ]


def script_answers(study: Study, points: pd.DataFrame) -> list[Answer]:
    """Return for each arm, whose options name its script, how fast it was, and that nothing is concluded.

    `points` are those of `points.summarise`.
    """
    answers = []
    for options, table in points.groupby("options", sort=False):
        rows: Sequence[Row] = table.sort_values("workers").to_dict("records")
        headline, value, detail, trusted, step = lines("script", study=study, rows=rows)
        unknown = (Tile(title, "", "", "unknown") for title in (study.score.heading, COST_TITLE))
        speed = Tile("Speed", value, detail, "unknown")
        trust = Tile("Trust", NOT_PROVEN_EQUAL, trusted, "caution")
        answers.append(Answer(str(options), "script", headline, (), (speed, *unknown, trust), (step,)))
    return answers


@dataclass(frozen=True)
class Verdict:
    """A sentence about the runs that have these options; `knobs` name the two compared series.

    `outcome` is that of the comparison behind it, "" where there is none.
    """

    options: str
    knobs: str
    sentence: str
    outcome: str = ""
    pair: PointPair | None = None

    def __str__(self) -> str:
        compared = "; ".join(part for part in (self.options, self.knobs) if part)
        return f"[{compared}] {self.sentence}" if compared else self.sentence


def verdicts(study: Study, comparisons: pd.DataFrame) -> Iterator[Verdict]:
    """Yield one verdict for each set of options, and for each pair of knob settings within it.

    It is about the largest worker count that both have, the last of `pair`; `comparisons` (see contrast.py)
    has them all. On further frameworks `wrapper_verdicts` has the verdicts.
    """
    series = PAIR[:-1]
    largest = comparisons.sort_values("workers", kind="stable").groupby(series, sort=False).tail(1)
    decided = {tuple(row[name] for name in series): row for row in largest.to_dict("records")}
    for label, runs in study.runs.groupby("options", sort=False):
        options = str(label)
        native, horovod = (runs.loc[runs["framework"] == name, "knobs"].unique() for name in COMPARED)
        if not len(horovod) and study.further_frameworks:
            continue
        missing = COMPARED[bool(len(native))]
        # A study of one framework asks for no comparison.
        is_wanted = study.asked is None or missing in set(study.asked["framework"])
        if not (len(native) and len(horovod)) and set(COMPARED) <= study.names.keys() and is_wanted:
            left_out = study.left_out[study.left_out["framework"] == missing].to_dict("records")
            known = {"missing": study.names[missing], "left_out": left_out}
            yield Verdict(options, "", lines("verdict", study=study, row=None, **known)[0])
        for knobs in product(native, horovod):
            compared = " against ".join(knob for knob in knobs if knob)
            row = decided.get((options, *knobs))
            if row is None:
                text = "no verdict: the frameworks have no worker count in common"
                yield Verdict(options, compared, text)
                continue
            disagree = row["outcome"] != NOT_ENOUGH and medians_disagree(row)
            (text,) = lines("verdict", study=study, row=row, disagree=disagree)
            yield Verdict(options, compared, text, row["outcome"], pair_of([row[name] for name in PAIR]))


def wrapper_verdicts(score: Score, table: pd.DataFrame) -> Iterator[Verdict]:
    """Yield one verdict for each series compared with native DDP, at the most workers with enough repeats.

    `table` is `contrast.each_against_native`; without rows there is none.
    """
    decided = table[table["outcome"] != NOT_ENOUGH].sort_values("workers", kind="stable")
    series = ["framework", "options", "native_knobs", "knobs"]
    for row in decided.groupby(series, sort=False).tail(1).to_dict("records"):
        name = "leaving Horovod" if row["framework"] == COMPARED[1] else NAMES[row["framework"]]
        knobs = "; ".join(filter(None, (name, row["native_knobs"], row["knobs"])))
        (sentence,) = lines("wrapper", row=row, score=score)
        yield Verdict(row["options"], knobs, sentence, row["outcome"])


NO_CLUSTER_FILE = "YOUR_CLUSTER.toml"
# The learning rate to try after a training diverged, as a multiple of the one that it had.
LOWER_RATE = 0.1
# The epochs to try where fewer steps are why a score falls.
LONGER = 2


def next_commands(study: Study, more: int = 1) -> dict[str, str]:
    """Return the ways on from the runs that a report has read; none of logs without headers.

    `undisturbed` names the runs that have had all launches that are made unasked; `grown` does without
    --more-repeats where runs diverged, as it asks for a complete study. `for_quality` is no command.
    """
    headers = study.subject.headers.values()
    if not headers:
        return {}
    runs, asked = study.subject.runs, study.asked
    command, again = _launch(study), _launch(study, is_new=True)
    disturbed = set(runs.loc[runs["disturbed"] != "", "run"])
    often = set() if asked is None else set(asked.loc[asked["replaced"] >= MOST_DISTURBED, "run"])
    forced = shlex.join(f"--force={run}" for run in sorted(disturbed & often))
    lost = "diverged" in set(study.all_left_out["state"])
    total = (runs if asked is None else asked)["repeat"].max() + more
    few = f" --set repeats={RECOMMENDED_REPEATS}" if runs["repeat"].max() < RECOMMENDED_REPEATS else ""
    trained = [header.config.training for header in headers]
    rate = LOWER_RATE * min(each.learning_rate for each in trained)
    tries = [] if len({each.rate_scaling for each in trained}) > 1 else ["another training.rate_scaling"]
    tries += [] if any(each.warmup_epochs for each in trained) else ["training.warmup_epochs"]
    workers = ",".join(map(str, sorted({1, *runs["workers"]})))
    return {
        "command": command,
        "again": f"{again}{few}",
        "longer": f"{again}{few} --set training.epochs={LONGER * max(each.epochs for each in trained)}",
        "slower_rate": f"{again} --set training.learning_rate={rate:g}",
        "undisturbed": f"{command} --repeat-disturbed {forced}",
        "grown": f"{command} --set repeats={total}" if lost else f"{command} --more-repeats {more}",
        "for_quality": " or ".join(filter(None, (", ".join(tries), "more training.epochs"))),
        "with_one": f"{command} --set 'workers=[{workers}]'",
    }


def _launch(study: Study, *, is_new: bool = False) -> str:
    file = study_file_name(study)
    own = file.removesuffix(".toml")
    folder = (study.folder or PROJECT / "logs" / own).resolve()
    copy = _from_here((study.output or folder / "report") / file)
    words = [CALLED, "submit", copy, "--cluster", NO_CLUSTER_FILE]
    if not is_of_slurm(study):
        words = [CALLED, "run", copy]
    if folder.parent != PROJECT / "logs":
        words += ["--logs", _from_here(folder.parent)]
    if is_new or folder.name != own:
        words += ["--name", f"{folder.name}_again" if is_new else folder.name]
    return shlex.join(words)


def _from_here(path: Path) -> str:
    """Return a path that leads there from where the user stands."""
    path, here = path.resolve(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def study_file_name(study: Study) -> str:
    """Return the name of the study's file, from which the study has its name."""
    return f"{next(header.config.study for header in study.subject.headers.values())}.toml"


def is_of_slurm(study: Study) -> bool:
    """Return whether jobs of Slurm trained these runs."""
    return any("SLURM_JOB_ID" in header.job for header in study.subject.headers.values())
