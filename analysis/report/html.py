"""Write the page: one HTML file that needs nothing else, no script and no network."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.findings.recommendation import Recommendation
from analysis.findings.verdict import Verdict
from analysis.report.assemble import Report
from analysis.report.figure_files import MAIN, FigureFiles
from analysis.report.provenance import origins
from analysis.report.reproduction import reproduction
from analysis.report.sections import sections
from analysis.report.tables import TABLES
from analysis.text import clean, count, repeats_text, sentence

# More verdicts or recommendations are folded, so that the first screen holds the main figures.
MOST_ANSWERS = 3
TEMPLATE = "report.html.jinja"


def page(report: Report, figures: FigureFiles) -> str:
    """Return the report as HTML. The template escapes every text; figures are the project's own SVG."""
    study = report.study
    return (
        _templates()
        .get_template(TEMPLATE)
        .render(
            study=clean(study.name),
            frameworks=study.names,
            arms=" or ".join(study.names.values()),
            measured=_measured(report),
            **_answers(report),
            main_figures=figures.in_section(MAIN),
            not_drawn=figures.missing_in_section(MAIN),
            sections=list(sections(report, figures)),
            origins=origins(study),
            reproduction=reproduction(study),
            files=[table.file for table in TABLES],
        )
    )


def _answers(report: Report) -> dict[str, object]:
    """Return verdicts and recommendations, and what speaks against them."""
    study = report.study
    return {
        "verdicts": list(map(_verdict, report.verdicts)),
        "recommendations": list(map(_recommendation, report.recommendations)),
        "most_answers": MOST_ANSWERS,
        "doubts": list(map(sentence, report.doubts)),
        "caveats": [] if study.provenance_known else list(map(sentence, study.notes)),
    }


def _verdict(verdict: Verdict) -> dict[str, str]:
    compared = "; ".join(part for part in (verdict.options, verdict.knobs) if part)
    return {"options": clean(compared), "sentence": sentence(verdict.sentence)}


def _recommendation(advice: Recommendation) -> dict[str, object]:
    return {
        "options": clean(advice.options),
        "sentence": sentence(advice.sentence),
        "why": list(map(sentence, advice.why)),
    }


def _measured(report: Report) -> str:
    """Return frameworks, worker counts and repeats in a line."""
    runs = report.study.runs
    workers = ", ".join(map(str, sorted(runs["workers"].unique())))
    used = set(runs["framework"])
    names = " and ".join(name for framework, name in report.study.names.items() if framework in used)
    repeats = repeats_text(report.points["repeats"])
    return f"{names} on {workers} workers, {count(len(runs), 'run')}, {repeats} per point"


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
