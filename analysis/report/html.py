"""Write the page: one HTML file that needs nothing else, no script and no network."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from analysis.figures.svg import DrawnFigure
from analysis.findings.decide import Kind
from analysis.report.assemble import Report
from analysis.report.columns import TABLES
from analysis.report.provenance import origin_line, origins, reproduction
from analysis.report.sections import sections, which_framework
from analysis.report.tables import words_of
from analysis.restriction import restriction_notes
from analysis.stats import CONFIDENCE, FEWEST_REPEATS, coverage
from analysis.study import POINT, Study
from analysis.text import clean, count, percent, repeats_text
from analysis.words import page

# The anchor of the first screen, above the sections.
MAIN = "main"
# Colour is never alone: each kind of answer and each light has its word, and the template its shape.
KIND_WORDS: dict[Kind, str] = {
    "scale": "Scale out",
    "stay": "Stay on 1 worker",
    "speed": "Speed only",
    "undecided": "Undecided",
    "unfair": "No fair comparison",
    "played": "{score} only: played, trained as so many workers on fewer",
    "script": "Recorded in a script: not compared",
    "maps": "Saliency maps only",
}


def report_page(
    report: Report,
    figures: Callable[[str], Sequence[DrawnFigure]],
    links: Mapping[str, str],
) -> str:
    """Return the report as HTML. The template escapes every text; figures are the project's own SVG.

    `figures` returns those of a section; `links` has the folder of each run that is linked, by its name.
    """
    study = report.study
    # What logs in the older layout, and emulated runs, cannot say.
    caveats = restriction_notes(study) if study.provenance_known else study.notes
    return page(
        "report",
        study=clean(study.name),
        frameworks=study.names,
        arms=" or ".join(study.names.values()),
        measured=_measured(report),
        comparison=which_framework(report, report.answers[0]),
        words=words_of(study),
        kind_words={kind: word.format(score=study.score.heading) for kind, word in KIND_WORDS.items()},
        answers=report.answers,
        compared_options=report.compared_options,
        doubts=report.doubts,
        caveats=caveats,
        main_figures=figures(MAIN),
        sections=list(sections(report, figures)),
        run_links=links,
        origins=origins(study.subject),
        origin_line=origin_line(study.subject),
        reproduction=reproduction(study.subject),
        files=[table.name(report) for table in TABLES if table.is_made(report)],
    )


def _measured(report: Report) -> str:
    """Return frameworks, worker counts and repeats in a line, of real and of played runs, and of maps."""
    study = report.study
    parts = [_runs_line(study, report.points["repeats"])] if len(study.runs) else []
    for label, part in (("played", study.played), ("saliency maps only", study.maps_only)):
        if part is not None and len(part.runs):
            parts.append(f"{label}: {_runs_line(part, part.runs.groupby(POINT).size())}")
    lost = len(study.all_left_out)
    return "; ".join([*parts, f"{count(lost, 'run')} left out"] if lost else parts)


def _runs_line(study: Study, repeats: "pd.Series[int]") -> str:
    runs = study.runs
    workers = sorted(runs["workers"].unique())
    used = set(runs["framework"])
    names = " and ".join(name for framework, name in study.names.items() if framework in used)
    counts = ", ".join(map(str, workers)) + (" worker" if workers == [1] else " workers")
    line = f"{names} on {counts}, {count(len(runs), 'run')}, {repeats_text(repeats)} per point"
    level = coverage(int(repeats.min()))
    if repeats.min() < FEWEST_REPEATS or level >= CONFIDENCE:
        return line
    return f"{line}, {percent(level, 0)} intervals"
