"""All that a report says of a study, before anything of it is written or printed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import pandas as pd

from analysis.budget.diagnosis import Diagnosis, diagnose
from analysis.budget.network_floor import network_table
from analysis.budget.overhead import Overhead
from analysis.budget.tables import budget_notes, budget_table, difference_table
from analysis.findings.check import BASELINE, NO, Check
from analysis.findings.comparison import compare, withhold
from analysis.findings.cost import cost_table, target_of
from analysis.findings.disturbed import disturbed_notes
from analysis.findings.fairness_table import COLUMNS as FAIRNESS_COLUMNS
from analysis.findings.fairness_table import fairness_checks
from analysis.findings.quality import iou_between_frameworks, iou_table
from analysis.findings.recommendation import Recommendation, recommend
from analysis.findings.speedup import interval_notes, summarise, unequal_work
from analysis.findings.steadiness import outlier_notes, steadiness_notes
from analysis.findings.verdict import Verdict, verdicts
from analysis.prediction.outlook import outlook
from analysis.processes import parallel_map
from analysis.study import Study
from analysis.text import series_name

MANY_RUNS = 500


@dataclass(frozen=True)
class Report:
    """The tables and sentences of a study; each table is documented where it is made.

    `target` says in words which IoU the time to it is of; `prediction_notes` are kept apart from `notes`
    because they belong beside the predictions, `budget_notes` beside the loss budget, and `doubts`, what
    the fairness table says no to, beside every verdict and recommendation.
    """

    study: Study
    points: pd.DataFrame
    comparisons: pd.DataFrame
    verdicts: list[Verdict]
    iou: pd.DataFrame
    iou_between: pd.DataFrame
    cost: pd.DataFrame
    target: str
    predictions: pd.DataFrame
    fits: pd.DataFrame
    prediction_notes: list[str]
    recommendations: list[Recommendation]
    overhead: Overhead
    budget_notes: list[str]
    diagnoses: list[Diagnosis]
    fairness: pd.DataFrame
    doubts: list[str]
    notes: list[str]


def make_report(study: Study) -> Report:
    """Compare the runs of a study. Pure: nothing is read or written."""
    # What each of these makes depends on no other; a large study keeps several processors busy.
    makers = (summarise, compare, iou_table, cost_table, iou_between_frameworks)
    chunk = 1 if len(study.runs) >= MANY_RUNS else len(makers)
    points, compared, iou, cost, iou_between = parallel_map(partial(_made, study), makers, chunk=chunk)
    checks = fairness_checks(study)
    comparisons = withhold(compared, checks)
    ahead = outlook(study)
    overhead = Overhead(budget_table(study), difference_table(study), network_table(study))
    return Report(
        study=study,
        points=points,
        comparisons=comparisons,
        verdicts=verdicts(study, comparisons),
        iou=iou,
        iou_between=iou_between,
        cost=cost,
        target=_target(study),
        predictions=ahead.predictions,
        fits=ahead.fits,
        prediction_notes=list(ahead.notes),
        recommendations=recommend(
            study, points, comparisons, iou, iou_between, cost, _baseline_doubt(checks)
        ),
        overhead=overhead,
        budget_notes=list(budget_notes(study, overhead.budget)),
        diagnoses=diagnose(study, overhead.budget, overhead.network),
        fairness=pd.DataFrame([asdict(check) for check in checks], columns=FAIRNESS_COLUMNS),
        doubts=[
            f"{check.check}: {check.mark}: {check.fact}"
            for check in checks
            if check.mark == NO or check.one_sided
        ],
        notes=list(_notes(study, points)),
    )


def _baseline_doubt(checks: Sequence[Check]) -> str:
    """What speaks against the runs on 1 worker as a baseline; the fact stands beside the verdict."""
    doubted = any(check.check == BASELINE and check.mark == NO for check in checks)
    return f"the fairness table says no to: {BASELINE}" if doubted else ""


def _made(study: Study, make: Callable[[Study], pd.DataFrame]) -> pd.DataFrame:
    return make(study)


def _notes(study: Study, points: pd.DataFrame) -> Iterator[str]:
    missing = points.loc[points["unknown"] != "", ["framework", "options", "knobs", "unknown"]]
    for row in missing.drop_duplicates().to_dict("records"):
        prefix = f"{row['options']}: " if row["options"] else ""
        yield f"{prefix}{series_name(row, study.names)}: {row['unknown']}"
    yield from unequal_work(study)
    yield from interval_notes(points)
    yield from steadiness_notes(study)
    yield from disturbed_notes(study)
    yield from outlier_notes(study)
    yield from study.notes


def _target(study: Study) -> str:
    target = target_of(study)
    if pd.isna(target.iou):
        return f"time to an IoU: {target.source}"
    return f"time to an IoU of {target.iou:g} ({target.source}): {target.meaning}"
