"""The section of the page on played runs."""

from collections.abc import Iterator

from analysis.played import kinds_of
from analysis.report.assemble import Report
from analysis.report.view import Section
from analysis.text import count, labelled, listed, sentence

PLAYED_LEAD = (
    "A played run trains exactly as so many workers, on fewer: what it learns is what they would learn, and "
    "its seconds are no speed. A number of workers keeps the {score} where the whole interval of its "
    "difference to 1 worker, paired by seed, lies above minus the margin, and that of every smaller number "
    "too."
)
PLAN_REMARK = (
    "Time to the target is epochs to it, of played and real runs, times the seconds of an epoch of real "
    "runs: measured on as many workers, or predicted"
)
_PLAYED_RUNS_LEAD = "One launch each, without times: they are of no real number of workers."
_ANCHOR = "played"


def played_section(report: Report) -> Section:
    """Return the section without its tables and figures."""
    score = report.study.score
    margins = listed(f"{margin:.2g}" for margin in sorted(report.played.points["margin"].unique()))
    found = [labelled(options, text) for options, text in report.played.sentences.items()]
    conclusion = report.played.compared_options or next(
        iter(found), f"no played run has {score.with_article}"
    )
    lead = f"{PLAYED_LEAD.format(score=score.title)} The margin is {margins}."
    remarks = tuple(map(sentence, (*found, *report.played.notes, *_of_plan(report))))
    title = f"{score.heading} by number of workers, played"
    return Section(
        _ANCHOR, title, sentence(_with_kinds(report, conclusion)), lead, is_open=True, remarks=remarks
    )


def played_runs_section(report: Report) -> Section:
    """Return the section of the single runs without its table."""
    runs = 0 if report.study.played is None else len(report.study.played.runs)
    return Section("played-runs", "Every played run", f"{count(runs, 'played run')}.", _PLAYED_RUNS_LEAD)


def _with_kinds(report: Report, conclusion: str) -> str:
    kinds = kinds_of(report.played.kept)
    return f"{conclusion} ({kinds} runs)" if report.played.kept else conclusion


def _of_plan(report: Report) -> Iterator[str]:
    plan = report.played.plan
    if plan["seconds_to_target"].notna().any():
        yield PLAN_REMARK
    yield from dict.fromkeys(reason for why in plan["why"] if why for reason in why.split("; "))
