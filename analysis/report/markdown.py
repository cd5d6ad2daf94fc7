"""Write the answers, and the points as a Markdown table, for papers and proposals."""

import re
from collections.abc import Iterable, Iterator, Sequence

from analysis.findings.decide import Recommendation
from analysis.findings.trust import Tile
from analysis.report.assemble import Report
from analysis.report.exports import of_request, played_meaning, played_short_columns, speed_columns
from analysis.report.tables import point_keys
from analysis.report.view import Column, number_column
from analysis.restriction import restriction_words, with_restriction
from analysis.stats import coverage
from analysis.study import POINT
from analysis.text import Row, clean, count, labelled, percent, repeats_text, sentence

TEXT = ":--"
_NUMBER = "--:"
# Numbers of trainings whose worker-hours an application for compute time may ask for.
TRAININGS = (1, 10, 100)
MARKUP = re.compile(r"[\\`*_{}<>#|$!]")


def summary_markdown(report: Report) -> str:
    """Return the answers, a table for each set of options, a caption, the verdicts, doubts, and the notes."""
    parts = [
        f"# {escaped(report.study.name)}: speed-up, efficiency and {report.study.score.title}",
        *answer_parts(report),
        *_points_tables(report),
        *([_caption(report)] if len(report.points) else []),
        *_request_parts(report),
        *played_parts(report),
        *(f"**{escaped(verdict)}**" for verdict in report.verdicts),
        *doubt_list(report),
        *(f"- {escaped(note)}" for note in report.notes),
    ]
    return "\n\n".join(parts) + "\n"


def answer_parts(report: Report) -> Iterator[str]:
    """Yield the headline of each set of options, its tiles, and what to do next."""
    if report.compared_options:
        yield f"**{escaped(sentence(report.compared_options))}**"
    for answer in report.answers:
        yield f"**{escaped(labelled(answer.options, answer.headline))}**"
        yield "\n".join(_tile_line(tile) for tile in answer.tiles)
        if answer.next_steps:
            steps = "\n".join(f"- {escaped(sentence(step))}" for step in answer.next_steps)
            yield f"Next:\n\n{steps}"


def _tile_line(tile: Tile) -> str:
    title, value, detail = map(escaped, (tile.title, tile.value, sentence(tile.detail)))
    return f"- {title} ({tile.light}): **{value}**. {detail}"


def _points_tables(report: Report) -> Iterator[str]:
    for options, rows in report.points.groupby("options", sort=False):
        if options:
            yield f"## {escaped(options)}"
        yield points_table(report, rows.to_dict("records"))


def _request_parts(report: Report) -> Iterator[str]:
    """Yield what an application for compute time asks for, and what is expected at other counts."""
    rows = report.points.merge(report.cost, on=POINT, suffixes=("", "_of_cost")).to_dict("records")
    chosen = [row for row in rows if any(_is_advised(row, advice) for advice in report.recommendations)]
    if chosen and not report.study.is_emulated:
        hours = [
            number_column(
                f"worker-hours, {count(number, 'training')}",
                "worker_hours",
                "~3",
                scale=1 / number,
                bounded=False,
            )
            for number in TRAININGS
        ]
        yield "What to ask for (trainings that you plan, times the worker-hours of one):"
        yield column_table([*point_keys(report), *hours], chosen)
    if report.request_sentences:
        yield "## Before you ask for nodes"
        yield "\n".join(f"- {escaped(sentence(text))}" for text in report.request_sentences)
        yield column_table(of_request(report), report.request.to_dict("records"))


def _is_advised(row: Row, advice: Recommendation) -> bool:
    """Return whether a point is recommended: where the frameworks do not differ, that of either."""
    point = (advice.options, advice.workers)
    return (row["options"], row["workers"]) == point and advice.framework in (row["framework"], None)


def played_parts(report: Report) -> Iterator[str]:
    """Yield the IoU of played and real runs at every number of workers; nothing without a played run."""
    for options, rows in report.played.points.groupby("options", sort=False):
        title = f": {options!s}" if options else ""
        yield f"## {report.study.score.heading} of played and real runs{escaped(title)}"
        yield column_table(played_short_columns(report), rows.to_dict("records"))
    if len(report.played.points):
        yield escaped(sentence(played_meaning(report.study.score)))


def doubt_list(report: Report) -> list[str]:
    """Return what was not equal in the comparison as a paragraph; none where all was."""
    if not report.doubts:
        return []
    doubts = "\n".join(f"- {escaped(sentence(doubt))}" for doubt in report.doubts)
    return [f"Not equal in this comparison:\n\n{doubts}"]


def points_table(report: Report, rows: Sequence[Row]) -> str:
    """Return speed and IoU of these points, with their intervals."""
    return column_table([*speed_columns(report), number_column(report.study.score.title, "iou", ".3f")], rows)


def column_table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Return a Markdown table of these columns."""
    rules = [_NUMBER if column.kind == "number" else TEXT for column in columns]
    cells = [[str(column.cell(row)) for column in columns] for row in rows]
    return table([column.heading for column in columns], rules, cells)


def table(headings: Iterable[str], rules: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; what would end a cell or start markup is escaped."""
    lines = [_line(map(escaped, headings)), _line(rules), *(_line(map(escaped, row)) for row in rows)]
    return "\n".join(lines)


def escaped(text: object) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return MARKUP.sub(r"\\\g<0>", clean(text))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _caption(report: Report) -> str:
    repeats = report.points["repeats"]
    runs = count(int(repeats.sum()), "run")
    measured = f"Medians over {runs}, {repeats_text(repeats)} per point; epochs flagged warm-up are left out."
    meaning = "Efficiency is speed-up / workers, deviation 1 - efficiency."
    return with_restriction(restriction_words(report.study), f"{measured} {meaning} {_interval_line(report)}")


def _interval_line(report: Report) -> str:
    """Return which intervals the table has; its confidence level is that of the fewest launches."""
    with_bounds = report.points.loc[report.points["throughput_low"].notna(), "repeats"]
    if with_bounds.empty:
        return "No intervals: they need 3 repeats of a point."
    level = percent(coverage(int(with_bounds.min())), 0)
    return f"In brackets: {level} intervals over launches (bootstrap)."
