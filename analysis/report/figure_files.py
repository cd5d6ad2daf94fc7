"""The figures of a report: as files, as parts of its page, and why some are not drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from analysis.figures.catalogue import FIGURES
from analysis.figures.frame import Inputs
from analysis.figures.svg import picture
from analysis.processes import parallel_map
from analysis.report.assemble import Report
from analysis.report.view import Drawing
from analysis.restriction import not_learned
from analysis.score import Score
from analysis.text import clean, resolved, sentence

# The anchor of the first screen, above the sections.
MAIN = "main"
# Of figures and tables on what a training gives.
LEARNED_SECTIONS = ("iou", "loss", "cost")
SALIENCY_SECTION = "saliency"
ONLY_PLAYED = "every run is played, so that no time or speed is measured"
ONLY_MAPS = "no run has an epoch after the warm-up, so that no speed of training is measured"


@dataclass(frozen=True)
class FigureFile:
    """A drawn figure: its section, the contents of its files, the SVG of its panels, and its texts."""

    section: str
    svg: bytes
    png: bytes
    panels: tuple[str, ...]
    caption: str
    alternative: str


@dataclass(frozen=True)
class MissingFigure:
    """A figure that cannot be drawn, and why."""

    section: str
    title: str
    reason: str


@dataclass(frozen=True)
class FigureFiles:
    """The figures of a report by the names of their modules, in reading order, and the study's score."""

    drawn: Mapping[str, FigureFile]
    missing: Mapping[str, MissingFigure]
    score: Score = Score()  # noqa: RUF009  (frozen)

    def in_section(self, anchor: str) -> tuple[Drawing, ...]:
        """Return the figures of a section of the page."""
        return tuple(
            Drawing(self.score.key(name), figure.panels, clean(figure.caption))
            for name, figure in self.drawn.items()
            if figure.section == anchor
        )

    def missing_in_section(self, anchor: str) -> tuple[str, ...]:
        """Return a line on each figure of a section that is not drawn."""
        return tuple(
            f"Not drawn: {figure.title}. {sentence(figure.reason)}"
            for figure in self.missing.values()
            if figure.section == anchor
        )


def draw_figures(report: Report) -> FigureFiles:
    """Draw every figure that the tables of the study allow."""
    inputs = inputs_of(report)
    missing = {
        name: MissingFigure(figure.section, figure.title.format(score=report.study.score.title), reason)
        for name, figure in FIGURES.items()
        if (reason := _why_missing(inputs, name))
    }
    names = [name for name in FIGURES if name not in missing]
    files = parallel_map(partial(_figure_file, inputs), names)
    return FigureFiles(dict(zip(names, files, strict=True)), missing, report.study.score)


def _why_missing(inputs: Inputs, name: str) -> str | None:
    """Return why a figure is not drawn: of played runs only the IoU is, of restricted studies the speed."""
    if inputs.study.runs.empty and FIGURES[name].section != SALIENCY_SECTION:
        if inputs.study.played is None:
            return ONLY_MAPS
        if name != "quality":
            return ONLY_PLAYED
    if FIGURES[name].section in LEARNED_SECTIONS and (reason := not_learned(inputs.study)):
        return reason
    return FIGURES[name].missing(inputs)


def inputs_of(report: Report) -> Inputs:
    """Return what the figures of a report are drawn from."""
    return Inputs(
        study=report.study,
        points=resolved(report.points),
        comparisons=resolved(report.comparisons),
        iou=report.iou,
        cost=resolved(report.cost),
        predictions=resolved(report.predictions),
        overhead=report.overhead,
        played=report.played.points,
        scores=report.scores,
        saliency=report.saliency,
    )


def _figure_file(inputs: Inputs, name: str) -> FigureFile:
    figure = FIGURES[name]
    alternative = figure.alternative(inputs)
    drawn = picture(figure.panels(inputs), alternative, f"figure-{inputs.study.score.key(name)}")
    return FigureFile(
        section=section_of(inputs, name),
        svg=drawn.svg,
        png=drawn.png,
        panels=drawn.panels,
        caption=figure.caption(inputs),
        alternative=alternative,
    )


def section_of(inputs: Inputs, name: str) -> str:
    """Return where a figure stands: speed-up and IoU first; of several sets of options, their ratios.

    Of played runs only, it is the figure of their IoU.
    """
    if inputs.study.runs.empty:
        return MAIN if name == "quality" else FIGURES[name].section
    several = len(inputs.options) > 1 and FIGURES["ratio"].missing(inputs) is None
    return MAIN if name == ("ratio" if several else "scaling") else FIGURES[name].section
