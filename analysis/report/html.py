"""The page: one HTML file that needs nothing else, no script and no network."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.findings.verdict import Verdict
from analysis.report.assemble import Report
from analysis.report.figure_files import MAIN, FigureFiles
from analysis.report.provenance import origins
from analysis.report.reproduction import reproduction
from analysis.report.sections import sections
from analysis.text import clean, count, repeats_text, sentence

MOST_ANSWERS = 3
TEMPLATE = "report.html.jinja"


def page(report: Report, figures: FigureFiles) -> str:
    """The report as HTML. Every text is escaped by the template but the figures, which the project draws."""
    return (
        _templates()
        .get_template(TEMPLATE)
        .render(
            study=clean(report.study.name),
            frameworks=report.study.names,
            arms=" or ".join(report.study.names.values()),
            measured=_measured(report),
            verdicts=[_labelled(verdict) for verdict in report.verdicts],
            recommendations=[
                {
                    "options": clean(advice.options),
                    "sentence": sentence(advice.sentence),
                    "why": [sentence(why) for why in advice.why],
                }
                for advice in report.recommendations
            ],
            most_answers=MOST_ANSWERS,
            doubts=[sentence(doubt) for doubt in report.doubts],
            caveats=[] if report.study.provenance_known else [sentence(note) for note in report.study.notes],
            main_figures=figures.in_section(MAIN),
            not_drawn=figures.missing_in_section(MAIN),
            sections=list(sections(report, figures)),
            origins=origins(report.study),
            reproduction=reproduction(report.study),
        )
    )


def _measured(report: Report) -> str:
    """What was measured, in a line."""
    runs = report.study.runs
    workers = ", ".join(str(each) for each in sorted(runs["workers"].unique()))
    names = " and ".join(
        name for framework, name in report.study.names.items() if (runs["framework"] == framework).any()
    )
    repeats = repeats_text(report.points["repeats"])
    return f"{names} on {workers} workers, {count(len(runs), 'run')}, {repeats} per point"


def _labelled(verdict: Verdict) -> dict[str, str]:
    compared = "; ".join(part for part in (verdict.options, verdict.knobs) if part)
    return {"options": clean(compared), "sentence": sentence(verdict.sentence)}


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["drawn"] = Markup
    return environment
