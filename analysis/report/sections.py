"""The sections of the page that give the evidence, in reading order."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from analysis.findings.cost import CLOCK
from analysis.forecast import score_notes
from analysis.report import conclusions
from analysis.report.assemble import Report
from analysis.report.columns import grids, shared_reasons
from analysis.report.figure_files import FigureFiles
from analysis.report.played_section import played_runs_section, played_section
from analysis.report.saliency_section import saliency_section
from analysis.report.view import Section
from analysis.text import clean, count, listed, sentence

# More remarks or runs left out than this are folded, or left to the tables: nobody reads on.
MOST_REMARKS = 12
POINTS_LEAD = (
    "A point is one framework at one worker count. Numbers are medians over its repeats, with the interval "
    "over launches in brackets. Efficiency is speed-up divided by workers; deviation is what is missing to 1."
)
FRAMEWORKS_LEAD = (
    "Lightning Fabric and Accelerate wrap DDP: where they train the same weights, which the table says, what "
    "they take longer is what the wrapper costs per step. All these comparisons are corrected for each other."
)
OVERHEAD_LEAD = (
    "Data wait (with host to device), compute (forward and backward), wire, imbalance, optimizer and rest "
    "sum to 1 - efficiency, in shares of the workers' time; a negative part takes less than on 1 worker. "
    "Work is equal by construction: every worker has as many {samples} in a step, and dropped {samples} are "
    "not counted."
)
LOSS_LEAD = (
    "More workers mean larger batches and fewer steps. Over epochs the curves show what that costs in "
    "learning, over seconds what is left of the speed-up."
)
COST_LEAD = (
    f"Clock: {CLOCK}. The Pareto set holds the points that no other beats in both time and worker-hours."
)
PREDICTION_LEAD = (
    "A model of the step time, fitted on the smaller worker counts only. The error at the larger ones, which "
    "the fit has not seen, says how far an extrapolation may be trusted."
)
REQUEST_LEAD = (
    "Efficiency against 1 worker of the same series, and what one training costs, at the counts measured and "
    "at some up to twice the largest, with intervals of what would be measured there. Terms are those of the "
    "sum that is fitted: where the time really goes, the overhead budget tells."
)
RUNS_LEAD = "One launch each. The folder of a run holds its record, configuration and log."
FAIRNESS_LEAD = (
    "Runs that differ in what must agree are refused and listed below. This is what the records say of the "
    "runs that are used."
)


def sections(report: Report, figures: FigureFiles) -> Iterator[Section]:
    """Return the evidence in reading order."""
    for make in _makers(report):
        yield _with_evidence(make(report), report, figures)
    if len(report.study.all_left_out):
        yield _with_evidence(_left_out(report), report, figures)
    if report.notes:
        yield _notes(report)


def _makers(report: Report) -> tuple[Callable[[Report], Section], ...]:
    """Return what makes the sections; a study of played runs only, or of maps, has no speed of training.

    Emulated runs have nothing else, and of scripts nothing is concluded.
    """
    maps = () if report.saliency.is_empty else (saliency_section,)
    if report.study.runs.empty:
        played = report.study.played is not None
        first, last = ((played_section,), (played_runs_section,)) if played else ((), ())
        return (*first, *maps, _fairness, *last)
    if report.study.is_of_scripts:
        return (_points, _overhead, _fairness, _runs)
    wrappers = (_frameworks,) if len(report.wrappers) else ()
    if report.study.is_emulated:
        return (_points, _against, *wrappers, _overhead, _request, _prediction, _fairness, _runs)
    first = (_points, _against, *wrappers, _iou)
    others = (*maps, _overhead, _cost, _loss, _request, _prediction, _fairness, _runs)
    if report.study.played is None:
        return (*first, *others)
    return (*first, played_section, *others, played_runs_section)


def _with_evidence(section: Section, report: Report, figures: FigureFiles) -> Section:
    """Return a section with the figures and tables that name its anchor as theirs."""
    return replace(
        section,
        anchor=report.study.score.key(section.anchor),
        conclusion=clean(section.conclusion),
        drawings=figures.in_section(section.anchor),
        grids=grids(report, section.anchor),
        absent=figures.missing_in_section(section.anchor),
    )


def _points(report: Report) -> Section:
    return Section(
        "points", "Speed of every point", conclusions.speed_conclusion(report), POINTS_LEAD, is_open=True
    )


def _against(report: Report) -> Section:
    native, horovod = report.study.compared_names
    title = f"{native[:1].upper()}{native[1:]} against {horovod}"
    lead = (
        f"The ratio of throughputs, paired by repeat: above 1 {native} is faster. The difference is "
        "significant where the whole interval lies on one side of 1."
    )
    return Section("against", title, conclusions.comparison_conclusion(report), lead, is_open=True)


def _frameworks(report: Report) -> Section:
    title = "Every framework against native DDP"
    conclusion = conclusions.frameworks_conclusion(report)
    return Section("frameworks", title, conclusion, FRAMEWORKS_LEAD, is_open=True)


def _overhead(report: Report) -> Section:
    notes = report.budget_notes[:MOST_REMARKS] if len(report.overhead.budget) else []
    return Section(
        "budget",
        "Where the lost efficiency went",
        conclusions.overhead_conclusion(report),
        OVERHEAD_LEAD.format(samples=report.study.score.samples),
        is_open=bool(report.diagnoses),
        remarks=tuple(map(sentence, notes)),
    )


def _iou(report: Report) -> Section:
    margins = listed(f"{margin:.2g}" for margin in sorted(report.iou["margin"].unique()))
    lead = (
        f"Computed on: {clean(report.study.iou_scope)}{_test_images(report)}. A point is not inferior where "
        "the whole interval of its difference to 1 worker, paired by seed, lies above minus the margin "
        f"({margins}), and inferior where it lies below."
    )
    shared = "; ".join(shared_reasons(report))
    remarks = (sentence(f"behind every difference: {shared}"),) if shared else ()
    title = report.study.score.heading
    return Section("iou", title, conclusions.iou_conclusion(report), lead, is_open=True, remarks=remarks)


def _test_images(report: Report) -> str:
    images = sorted(report.study.runs["test_images"].dropna().unique())
    return (
        f" ({', '.join(f'{number:,.0f}' for number in images)} {report.study.score.samples})"
        if images
        else ""
    )


def _loss(report: Report) -> Section:
    return Section("loss", "Training loss", conclusions.loss_conclusion(report), LOSS_LEAD)


def _cost(report: Report) -> Section:
    sets = [f"Pareto set of {clean(kind)}." for kind in report.cost["pareto_of"].drop_duplicates() if kind]
    remarks = (*map(sentence, report.targets), *sets)
    return Section("cost", "Time and cost", conclusions.cost_conclusion(report), COST_LEAD, remarks=remarks)


def _request(report: Report) -> Section:
    said = tuple(map(sentence, report.request_sentences[:MOST_REMARKS]))
    conclusion = next(iter(said), "No speed was measured.")
    return Section("request", "Before you ask for nodes", conclusion, REQUEST_LEAD, remarks=said[1:])


def _prediction(report: Report) -> Section:
    conclusion = conclusions.prediction_conclusion(report)
    filed = list(score_notes(report.scores))
    notes = map(sentence, [*filed, *report.extrapolation.notes][:MOST_REMARKS])
    remarks = tuple(note for note in notes if note != conclusion)
    return Section("prediction", "Prediction", conclusion, PREDICTION_LEAD, remarks=remarks)


def _fairness(report: Report) -> Section:
    title = "How fair is this comparison?"
    conclusion = conclusions.fairness_conclusion(report)
    return Section("fairness", title, conclusion, FAIRNESS_LEAD, is_open=bool(report.doubts))


def _runs(report: Report) -> Section:
    return Section("runs", "Every run", conclusions.runs_conclusion(report), RUNS_LEAD)


def _left_out(report: Report) -> Section:
    runs = len(report.study.all_left_out)
    lead = "No number of this report uses these runs."
    conclusion = conclusions.left_out_conclusion(report)
    return Section(
        "left-out", f"Left out: {count(runs, 'run')}", conclusion, lead, is_open=runs <= MOST_REMARKS
    )


def _notes(report: Report) -> Section:
    notes = tuple(map(sentence, report.notes))
    lead = "What to know before you use a number of this page."
    return Section("notes", "Notes", conclusions.notes_conclusion(notes), lead, remarks=notes)
