"""Everything that a report says of a study, before any of it is written or printed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import pandas as pd

from analysis.causes.budget import budget_notes, budget_table, difference_table, network_table
from analysis.causes.diagnosis import Diagnosis, diagnose, main_causes, slower_arm
from analysis.judge.answer import (
    Answer,
    Verdict,
    answers_of,
    as_restricted,
    compared_options,
    script_answers,
    verdicts,
    wrapper_verdicts,
)
from analysis.judge.baseline import ONE_WORKER, check_one_worker
from analysis.judge.checks import disturbed_notes, fairness_checks, fairness_table
from analysis.judge.decide import Recommendation, recommend, width_notes
from analysis.judge.gpus import gpu_table
from analysis.judge.trust import Trust, TrustOfLogs, outlier_notes, steadiness_notes
from analysis.numbers.check import NO, Check
from analysis.numbers.contrast import BASELINE, compare, each_against_native, select_compared_pair, withhold
from analysis.numbers.iou import iou_between_frameworks, iou_table, task_scores
from analysis.numbers.points import cost_table, interval_notes, summarise, target_of, unequal_work
from analysis.study import COMPARED, POINT, Study
from analysis.text import after, labelled, lines, restriction_notes, series_name
from unet_scaling.base.errors import optional_module, required_module
from unet_scaling.base.parallel import parallel_map

# Capabilities that a checkout may lack: of each, what the report asks it.
PLAYED_RUNS = optional_module("analysis.played.quality")
SPEED_PREDICTION = optional_module("analysis.predict.speed")
FORECAST = optional_module("analysis.predict.forecast")
SALIENCY = optional_module("analysis.saliency.findings")
STRATEGIES = optional_module("analysis.strategies.comparison")
NO_ROWS = pd.DataFrame(columns=POINT)
# What a capability finds that is not there.
NOTHING = SimpleNamespace(
    is_empty=True, points=NO_ROWS, plan=NO_ROWS, runs=NO_ROWS, faithful=NO_ROWS, curves=NO_ROWS,
    best_options=[], notes=[], sentences={}, warnings=[],
)  # fmt: skip
# From here on, starting processes takes less time than they save.
MANY_RUNS = 500


@dataclass(frozen=True)
class StudyFindings:
    """What decides the answer of a study: its points, the comparisons of frameworks, and what speaks against.

    `arms` and `arms_iou` compare every framework with native DDP. Each table is documented where it is made.
    """

    study: Study
    points: pd.DataFrame
    iou: pd.DataFrame
    cost: pd.DataFrame
    checks: list[Check]
    arms: pd.DataFrame
    arms_iou: pd.DataFrame

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """Return those of native DDP and Horovod."""
        return select_compared_pair(self.arms)

    @cached_property
    def iou_between(self) -> pd.DataFrame:
        """Return the difference of IoU of native DDP and Horovod."""
        return select_compared_pair(self.arms_iou)

    @cached_property
    def fairness(self) -> pd.DataFrame:
        """Return the table of the checks."""
        return fairness_table(self.checks)

    @cached_property
    def wrappers(self) -> pd.DataFrame:
        """Return what each framework costs a step, where a study has more than the compared pair."""
        return each_against_native(self.study, self.arms, self.arms_iou)

    @cached_property
    def doubts(self) -> list[str]:
        """Return what stands beside every verdict and recommendation: checks that are not met."""
        unmet = [check for check in self.checks if check.mark == NO or check.one_sided]
        return [f"{check.title}: {check.mark}: {check.fact}" for check in unmet]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Return which framework is faster, one sentence for each pair of series; none of scripts."""
        if not self.study.kind.compares:
            return []
        found = [*verdicts(self.study, self.comparisons), *wrapper_verdicts(self.study.score, self.wrappers)]
        words = self.study.kind.restricted
        said = []
        for verdict in found:
            sentence = verdict.sentence
            if verdict.outcome:
                sentence = self.trust.qualified(sentence, verdict.options, verdict.pair)
            said.append(replace(verdict, sentence=after(words, sentence)))
        return said

    @cached_property
    def trust(self) -> Trust:
        """Return what tells how far to trust the study."""
        trust = Trust if self.study.provenance_known else TrustOfLogs
        return trust(self.study, self.checks)

    @cached_property
    def recommendations(self) -> list[Recommendation]:
        """Return what to train with on how many workers, one for each set of options; none of scripts."""
        if not self.study.kind.compares:
            return []
        doubted = any(check.check == BASELINE and check.mark == NO for check in self.checks)
        doubt = f"the fairness table says no to: {BASELINE}" if doubted else ""
        tables = (self.points, self.arms, self.iou, self.arms_iou, self.cost)
        return recommend(self.study, *tables, doubt)

    def doubted(self, claim: str, options: str | None = None) -> str:
        """Return a sentence with a number as every output has it: beside it stands what is unfair.

        `options` are those that it is about; of None any may be.
        """
        doubts = [
            lines("unfair", advice=advice)[0]
            for advice in self.recommendations
            if advice.kind == "unfair" and options in (None, advice.options)
        ]
        return f"{claim}; caution: {doubts[0]}" if doubts else claim


@dataclass(frozen=True)
class Report(StudyFindings):
    """All tables and sentences of a study.

    `scores` are predictions of files, `task_scores` those of a task that has several, and `request` has
    speed, efficiency and cost of the counts measured and of some beyond.
    """

    predictions: pd.DataFrame
    prediction_notes: list[str]
    budget: pd.DataFrame
    differences: pd.DataFrame
    network: pd.DataFrame
    played: Any
    scores: pd.DataFrame
    task_scores: pd.DataFrame
    gpus: pd.DataFrame
    request: pd.DataFrame
    saliency: Any

    @cached_property
    def request_sentences(self) -> list[str]:
        """Return what to know before asking for nodes; nothing of scripts."""
        if not self.study.kind.compares or not SPEED_PREDICTION:
            return []
        words = self.study.kind.restricted
        return [
            labelled(options, after(words, self.doubted(text, options)))
            for options, text in SPEED_PREDICTION.request_sentences(self.study, self.request)
        ]

    @cached_property
    def score_notes(self) -> list[str]:
        """Return how good the predictions were that were written before their runs."""
        return [*FORECAST.score_notes(self.scores)] if len(self.scores) else []

    @cached_property
    def strategies(self) -> pd.DataFrame:
        """Return what strategies of exchange gain and cost; no row of scripts."""
        return STRATEGIES.strategy_table(self.study, self.budget) if STRATEGIES else NO_ROWS

    @property
    def strategy_claims(self) -> pd.DataFrame:
        """Return the same for a drawing; where there are strategies."""
        claims: pd.DataFrame = STRATEGIES.with_claims(self.strategies)
        return claims

    @cached_property
    def strategy_sentence(self) -> str:
        """Return what each strategy gains and costs; empty where there is none."""
        return STRATEGIES.strategy_sentence(self.study.score, self.strategies) if len(self.strategies) else ""

    @cached_property
    def slower(self) -> dict[str, str]:
        """Return by options which framework is slower with the most workers, why, and what cures it."""
        return {advice.options: slower_arm(advice, self.diagnoses) for advice in self.recommendations}

    @cached_property
    def answers(self) -> list[Answer]:
        """Return the answer of each set of options in a line and four tiles, the most decided first."""
        if not self.study.kind.compares:
            answers = script_answers(self.study, self.points)
        else:
            causes = main_causes(self.diagnoses, self.budget)
            found = answers_of(self.recommendations, self.trust, causes, self.slower)
            answers = PLAYED_RUNS.with_played(found, self.played) if PLAYED_RUNS else found
        if self.study.subject is self.study.maps_only:
            answers = [SALIENCY.maps_answer(self.saliency)]
        return as_restricted(answers, self.study.kind, self.study.score)

    @property
    def compared_options(self) -> str:
        """Return the line over the answers of several sets of options; empty for one set."""
        told = [self.strategy_sentence]
        if not told[0] or set(self.study.axes) != set(STRATEGIES.strategy_axes(self.study.axes)):
            told.append(compared_options(self.recommendations))
        line = "; ".join(filter(None, told))
        return self.doubted(line) if line else ""

    @cached_property
    def diagnoses(self) -> list[Diagnosis]:
        """Return why efficiency was lost, most at stake first; of scripts no option is known to change."""
        if not self.study.kind.compares:
            return []
        return diagnose(self.study, self.budget, self.network)

    @cached_property
    def budget_notes(self) -> list[str]:
        """Return what to know beside the overhead budget."""
        return list(budget_notes(self.study, self.budget))

    @cached_property
    def notes(self) -> list[str]:
        """Return what to know before any number is used."""
        shared = _notes(self.study, self.points, self.trust.steadiness)
        width = width_notes(self.study, self.comparisons)
        return [
            *restriction_notes(self.study.headers, self.study.scripts),
            *shared,
            *width,
            *self.played.notes,
        ]

    @property
    def targets(self) -> list[str]:
        """Return which score the time to it is of, for each set of options where these differ."""
        time = f"time to {self.study.score.with_article}"
        texts = {}
        for options in self.cost["options"].unique():
            target = target_of(self.study, options)
            known = f"{time} of {target.iou:g} ({target.source}): {target.meaning}"
            texts[options] = f"{time}: none, {target.source}" if pd.isna(target.iou) else known
        if len(set(texts.values())) == 1:
            texts = {"": next(iter(texts.values()))}
        return [labelled(options, text) for options, text in texts.items()]


def study_findings(study: Study) -> StudyFindings:
    """Return what decides the answer of a study. Pure: nothing is read or written."""
    # None of these depends on another: a large study keeps several processors busy.
    makers = (summarise, compare, iou_table, cost_table, iou_between_frameworks)
    chunk = 1 if len(study.runs) >= MANY_RUNS else len(makers)
    points, compared, iou, cost, between = parallel_map(partial(_made, study), makers, chunk=chunk)
    checks = fairness_checks(study)
    for framework in (COMPARED[1], *study.further_frameworks):
        rows = compared[compared["framework"] == framework]
        if len(rows):
            other = None if framework == COMPARED[1] else framework
            checks.append(replace(check_one_worker(rows), check=ONE_WORKER, framework=other))
    return StudyFindings(study, points, iou, cost, checks, withhold(compared, checks), between)


def make_report(study: Study) -> Report:
    """Return the report of a study. Pure: nothing is read or written."""
    _require_capability(study)
    judged = study_findings(study)
    predictions, prediction_notes = SPEED_PREDICTION.extrapolate(study) if SPEED_PREDICTION else (NO_ROWS, [])
    return Report(
        **{field.name: getattr(judged, field.name) for field in fields(StudyFindings)},
        predictions=predictions,
        prediction_notes=prediction_notes,
        budget=budget_table(study),
        differences=difference_table(study, judged.comparisons),
        network=network_table(study),
        played=PLAYED_RUNS.played_quality(study, judged.points) if PLAYED_RUNS else NOTHING,
        scores=FORECAST.score_table(study) if FORECAST else NO_ROWS,
        task_scores=task_scores(study.subject),
        gpus=gpu_table(study),
        request=SPEED_PREDICTION.request_table(study, judged.points) if SPEED_PREDICTION else NO_ROWS,
        saliency=SALIENCY.saliency_findings(study) if SALIENCY else NOTHING,
    )


def _require_capability(study: Study) -> None:
    """Raise UserError where all that a study has is of a capability that this checkout lacks."""
    for part, module in (
        (study.played, "analysis.played.quality"),
        (study.maps_only, "analysis.saliency.findings"),
    ):
        if part is study.subject:
            required_module(module, f"a report of {study.name}")


def _made(study: Study, make: Callable[[Study], pd.DataFrame]) -> pd.DataFrame:
    return make(study)


def _notes(study: Study, points: pd.DataFrame, steadiness: pd.DataFrame) -> Iterator[str]:
    missing = points.loc[points["unknown"] != "", ["framework", "options", "knobs", "unknown"]]
    for row in missing.drop_duplicates().to_dict("records"):
        prefix = f"{row['options']}: " if row["options"] else ""
        yield f"{prefix}{series_name(row, study.names)}: {row['unknown']}"
    yield from unequal_work(study)
    yield from interval_notes(points)
    yield from steadiness_notes(steadiness)
    yield from disturbed_notes(study)
    yield from outlier_notes(study)
    yield from study.notes
