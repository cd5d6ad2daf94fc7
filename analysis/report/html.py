"""Write the page: one HTML file that needs nothing else, no script and no network."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from analysis.findings.answer import Answer
from analysis.findings.decide import Kind
from analysis.findings.trust import Light, Tile
from analysis.report.assemble import Report
from analysis.report.conclusions import comparison_conclusion
from analysis.report.figure_files import MAIN, FigureFiles
from analysis.report.links import RunLinks
from analysis.report.page_columns import short_arms
from analysis.report.provenance import origin_line, origins
from analysis.report.reproduction import reproduction
from analysis.report.sections import sections
from analysis.report.tables import TABLES
from analysis.report.templates import rendered
from analysis.restriction import restriction_notes
from analysis.study import POINT, Study
from analysis.text import clean, count, repeats_text, sentence

TEMPLATE = "report.html.jinja"
# Of a tile that is not good; with more, the figures would leave the first screen.
MOST_REASONS = 2
# Colour is never alone: each kind of answer and each light has its word, and the template its shape.
KIND_WORDS: dict[Kind, str] = {
    "scale": "Scale out",
    "stay": "Stay on 1 worker",
    "undecided": "Undecided",
    "unfair": "No fair comparison",
    "played": "{score} only: played",
    "script": "Recorded in a script: not compared",
    "maps": "Saliency maps only",
}
LIGHT_WORDS: dict[Light, str] = {
    "good": "good",
    "caution": "caution",
    "bad": "bad",
    "unknown": "not known",
}


@dataclass(frozen=True)
class ShownTile:
    """A tile of an answer as the page shows it: clean texts, and the word of its light.

    What speaks against the answer is shown, as far as there is room; the other reasons are folded.
    """

    title: str
    value: str
    detail: str
    light: Light
    word: str
    shown: tuple[str, ...]
    folded: tuple[str, ...]

    @property
    def folded_line(self) -> str:
        """Return how many reasons are folded."""
        return count(len(self.folded), "more reason" if self.shown else "reason")


@dataclass(frozen=True)
class ShownAnswer:
    """An answer as the page shows it; `evidence` are the verdicts of its options."""

    options: str
    kind: Kind
    word: str
    headline: str
    tiles: tuple[ShownTile, ...]
    next_steps: tuple[str, ...]
    evidence: tuple[str, ...]


def page(report: Report, figures: FigureFiles, links: RunLinks | None = None) -> str:
    """Return the report as HTML. The template escapes every text; figures are the project's own SVG.

    `links` are those of `links.run_links`; without them no run is linked.
    """
    study = report.study
    shown = list(sections(report, figures))
    return rendered(
        TEMPLATE,
        study=clean(study.name),
        frameworks=study.names,
        arms=" or ".join(study.names.values()),
        has_wrappers=bool(study.wrappers),
        has_gallery=any(section.gallery for section in shown),
        measured=_measured(report),
        short_arms=short_arms(report, " or "),
        comparison=comparison_conclusion(report) if len(report.comparisons) else "",
        **_answers(report),
        main_figures=figures.in_section(MAIN),
        not_drawn=figures.missing_in_section(MAIN),
        sections=shown,
        run_links=links or {},
        origins=origins(study.subject),
        origin_line=origin_line(study.subject),
        reproduction=reproduction(study.subject),
        files=[table.name(report) for table in TABLES if table.is_made(report)],
    )


def _answers(report: Report) -> dict[str, object]:
    """Return the answers, most decided first, and what speaks against them."""
    first, *more = [_shown_answer(report, answer) for answer in report.answers]
    return {
        "answer": first,
        "compared_options": sentence(report.compared_options) if report.compared_options else "",
        "more_answers": more,
        "more_answers_line": count(len(more), "more answer"),
        "doubts": list(map(sentence, report.doubts)),
        "caveats": list(map(sentence, _caveats(report.study))),
    }


def _caveats(study: Study) -> Iterable[str]:
    """Return what logs in the older layout, and emulated runs, cannot say."""
    return restriction_notes(study) if study.provenance_known else study.notes


def _shown_answer(report: Report, answer: Answer) -> ShownAnswer:
    return ShownAnswer(
        options=clean(answer.options),
        kind=answer.kind,
        word=KIND_WORDS[answer.kind].format(score=report.study.score.heading),
        headline=_capital(answer.headline),
        tiles=tuple(map(_shown_tile, answer.tiles)),
        next_steps=tuple(map(sentence, answer.next_steps)),
        evidence=tuple(_evidence(report, answer.options)),
    )


def _shown_tile(tile: Tile) -> ShownTile:
    reasons = tuple(map(sentence, tile.reasons))
    most = 0 if tile.light == "good" else MOST_REASONS
    return ShownTile(
        title=clean(tile.title),
        value=clean(tile.value),
        detail=sentence(tile.detail) if tile.detail else "",
        light=tile.light,
        word=LIGHT_WORDS[tile.light],
        shown=reasons[:most],
        folded=reasons[most:],
    )


def _evidence(report: Report, options: str) -> Iterable[str]:
    """Yield the verdicts for these options."""
    for verdict in report.verdicts:
        if verdict.options == options:
            yield sentence(f"[{verdict.knobs}] {verdict.sentence}" if verdict.knobs else verdict.sentence)


def _capital(text: str) -> str:
    text = clean(text)
    return text[:1].upper() + text[1:]


def _measured(report: Report) -> str:
    """Return frameworks, worker counts and repeats in a line, of real and of played runs, and of maps."""
    study = report.study
    parts = [_runs_line(study, report.points["repeats"])] if len(study.runs) else []
    if study.played is not None and len(study.played.runs):
        sizes = study.played.runs.groupby(POINT).size()
        parts.append(f"played: {_runs_line(study.played, sizes)}")
    if study.maps_only is not None:
        sizes = study.maps_only.runs.groupby(POINT).size()
        parts.append(f"saliency maps only: {_runs_line(study.maps_only, sizes)}")
    return "; ".join(parts)


def _runs_line(study: Study, repeats: "pd.Series[int]") -> str:
    runs = study.runs
    workers = sorted(runs["workers"].unique())
    used = set(runs["framework"])
    names = " and ".join(name for framework, name in study.names.items() if framework in used)
    counts = ", ".join(map(str, workers)) + (" worker" if workers == [1] else " workers")
    return f"{names} on {counts}, {count(len(runs), 'run')}, {repeats_text(repeats)} per point"
