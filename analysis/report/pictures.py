"""The figures of a report as files and for its page, and the reasons for those that cannot be drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from analysis.figures.album import drawable, figure, not_drawn
from analysis.figures.series import Inputs
from analysis.figures.svg import inline_svg, picture
from analysis.figures.words import caption
from analysis.processes import parallel_map
from analysis.report.assemble import Report


@dataclass(frozen=True)
class Picture:
    """One figure: the files' contents, the SVG to stand inside a page, and its texts."""

    svg: bytes
    png: bytes
    inline: str
    caption: str
    alternative: str


@dataclass(frozen=True)
class Pictures:
    """The figures by name, in reading order, and why others are not drawn."""

    drawn: Mapping[str, Picture]
    absent: Mapping[str, str]


def draw(report: Report) -> Pictures:
    """Draw every figure that the study can carry."""
    inputs = inputs_of(report)
    names = drawable(inputs)
    drawn = parallel_map(partial(_picture, inputs), names)
    return Pictures(dict(zip(names, drawn, strict=True)), not_drawn(inputs))


def inputs_of(report: Report) -> Inputs:
    """What the figures are drawn from."""
    return Inputs(
        report.study,
        report.points,
        report.comparisons,
        report.iou,
        report.cost,
        report.predictions,
        report.verdicts,
        report.overhead,
    )


def _picture(inputs: Inputs, name: str) -> Picture:
    drawn = figure(name, inputs)
    return Picture(
        svg=picture(drawn, "svg"),
        png=picture(drawn, "png"),
        inline=inline_svg(drawn, f"figure-{name}"),
        caption=caption(name, inputs),
        alternative=str(drawn.get_label()),
    )
