"""Write the page of a comparison of two studies: one HTML file that needs no script and no network."""

from collections.abc import Iterator, Sequence

from analysis.compare.assemble import StudyComparison
from analysis.compare.grids import facts_grid, nothing_differs, only_lines, points_grid, points_title
from analysis.compare.headline import SpeedChange, speed_change, study_headline
from analysis.compare.iou import A_HIGHER, B_HIGHER
from analysis.compare.throughput import A_FASTER, B_FASTER
from analysis.figures.catalogue import MOST_FOREST_ROWS, study_forests
from analysis.figures.svg import DrawnFigure, picture
from analysis.findings.trust import Light
from analysis.report.templates import rendered
from analysis.report.view import Drawing
from analysis.restriction import with_restriction
from analysis.study import COMPARED, NAMES
from analysis.text import clean, count, listed, sentence

# The name of the figure's files, and of the page.
STEM = "compare"
FILES = ("compare.csv", "compare_facts.csv", "compare.md")
# What stands below the headline; the table has them all.
MOST_CHANGES = 3
# Colour is never alone: each change has its word, and each light its shape.
CHANGES: dict[SpeedChange, tuple[Light, str]] = {
    "faster": ("good", "B is faster"),
    "slower": ("bad", "B is slower"),
    "mixed": ("caution", "B is faster and slower"),
    "equal": ("unknown", "No difference shown"),
    "unclear": ("unknown", "Not decided"),
}


def comparison_page(comparison: StudyComparison) -> str:
    """Return the comparison as HTML: the answer, what differs, a forest plot, and the tables behind them."""
    return rendered(
        "compare.html.jinja",
        title=clean(f"{comparison.b.title} against {comparison.a.title}"),
        frameworks=NAMES,
        has_wrappers=not comparison.points["framework"].isin(COMPARED).all(),
        has_gallery=False,
        run_links={},
        files=FILES,
        drawings=_drawings(comparison),
        notes=list(map(sentence, comparison.notes)),
        **_answer(comparison),
        **_evidence(comparison),
    )


def forest_files(comparison: StudyComparison) -> dict[str, bytes]:
    """Return the figure as SVG and as PNG, by file name; nothing without a common point."""
    if comparison.points.empty:
        return {}
    drawn = _drawn(comparison)
    return {f"{STEM}.svg": drawn.svg, f"{STEM}.png": drawn.png}


def _answer(comparison: StudyComparison) -> dict[str, object]:
    change = speed_change(comparison)
    light, word = CHANGES[change]
    if change == "faster" and A_HIGHER in set(comparison.points["iou_outcome"]):
        light = "caution"
        word = f"B is faster, its {comparison.score.title} lower"
    return {
        "light": light,
        "word": word,
        "headline": sentence(study_headline(comparison)).removesuffix("."),
        "launches": _launches(comparison),
        "changes": list(_changes(comparison)),
    }


def _launches(comparison: StudyComparison) -> str:
    sides = (comparison.a, comparison.b)
    launches = [f"{count(len(side.study.runs), 'launch')} in {side.letter}" for side in sides]
    return f"{listed(launches)}, {count(len(comparison.points), 'point')} in both"


def _changes(comparison: StudyComparison) -> Iterator[str]:
    """Yield the first facts that differ with both values, and how many more there are."""
    differing = comparison.differing
    for fact in differing[:MOST_CHANGES]:
        yield clean(f"{fact.name}: {' → '.join(fact.texts)}")
    if len(differing) > MOST_CHANGES:
        yield f"{count(len(differing) - MOST_CHANGES, 'more fact')}, below"
    if not differing:
        yield nothing_differs(comparison)


def _evidence(comparison: StudyComparison) -> dict[str, object]:
    only = only_lines(comparison)
    differing = comparison.differing
    answers = list(map(sentence, comparison.headlines))
    return {
        "points": points_grid(comparison),
        "points_title": points_title(comparison.score),
        "points_line": sentence(f"{count(len(comparison.points), 'point')} in both studies"),
        "answers": answers,
        "answers_line": sentence(count(len(answers), "sentence")),
        "facts": facts_grid(comparison),
        "differs_line": sentence(count(len(differing), "fact")) if differing else nothing_differs(comparison),
        "same": sentence(f"the same in both: {comparison.same}") if comparison.same else "",
        "only": list(map(sentence, only)),
        "only_line": sentence(count(len(comparison.only), "point")),
    }


def _drawings(comparison: StudyComparison) -> Sequence[Drawing]:
    if comparison.points.empty:
        return ()
    return (Drawing(STEM, _drawn(comparison).panels, _caption(comparison)),)


def _drawn(comparison: StudyComparison) -> DrawnFigure:
    points = comparison.points.assign(
        claimed=comparison.points["outcome"].isin((A_FASTER, B_FASTER)),
        iou_claimed=comparison.points["iou_outcome"].isin((A_HIGHER, B_HIGHER)),
    )
    charts = study_forests(points, comparison.score)
    panels = [panel for chart in charts for panel in chart.panels()]
    return picture(panels, charts[0].alternative(), f"figure-{STEM}")


def _caption(comparison: StudyComparison) -> str:
    points = len(comparison.points)
    cut = f" The first {MOST_FOREST_ROWS} of {points} points; all are in compare.csv."
    sides = f"Right of the line B is faster, or its {comparison.score.title} higher; left of it A"
    caption = (
        f"{sides}. In the colour of its framework: the interval, corrected for all points, excludes "
        "equality; grey: nothing is claimed."
        f"{cut if points > MOST_FOREST_ROWS else ''}"
    )
    return with_restriction(comparison.emulated, caption)
