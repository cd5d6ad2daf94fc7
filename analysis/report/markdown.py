"""Write the answers, and the points as a Markdown table, for papers and proposals."""

import re
from collections.abc import Iterable, Iterator, Sequence

from analysis.findings.trust import Tile
from analysis.report.assemble import Report
from analysis.report.columns import table_of
from analysis.report.exports import played_meaning, played_short_columns, speed_columns
from analysis.report.tables import Column, number_column, point_keys
from analysis.restriction import with_restriction
from analysis.stats import coverage
from analysis.study import POINT
from analysis.text import Row, clean, count, labelled, percent, repeats_text, sentence

# Numbers of trainings whose worker-hours an application for compute time may ask for.
TRAININGS = (1, 10, 100)
MARKUP = re.compile(r"[\\`*_{}<>#|$!]")


def summary_markdown(report: Report) -> str:
    """Return the answers, a table for each set of options, a caption, the verdicts, doubts, and the notes."""
    title = f"{report.study.name}: speed-up, efficiency and {report.study.score.title}"
    parts = [f"# {escaped(title)}", *_answers(report)]
    for options, rows in report.points.groupby("options", sort=False):
        score = number_column(report.study.score.title, "iou", ".3f")
        parts += [f"## {escaped(options)}"] if options else []
        parts += [_column_table([*speed_columns(report), score], rows.to_dict("records"))]
    if len(report.points):
        parts.append(_caption(report))
    parts += [*_request(report), *_played(report)]
    parts += [f"**{escaped(verdict)}**" for verdict in report.verdicts]
    if report.doubts:
        parts += ["Not equal in this comparison:", bullets(map(sentence, report.doubts))]
    if report.notes:
        parts.append(bullets(report.notes))
    return "\n\n".join(parts) + "\n"


def bullets(lines: Iterable[str]) -> str:
    """Return these lines as a list."""
    return "\n".join(f"- {escaped(line)}" for line in lines)


def _answers(report: Report) -> Iterator[str]:
    """Yield the headline of each set of options, its tiles, and what to do next."""
    if report.compared_options:
        yield f"**{escaped(sentence(report.compared_options))}**"
    for answer in report.answers:
        yield f"**{escaped(labelled(answer.options, answer.headline))}**"
        yield "\n".join(map(_tile_line, answer.tiles))
        if answer.next_steps:
            yield f"Next:\n\n{bullets(map(sentence, answer.next_steps))}"


def _tile_line(tile: Tile) -> str:
    title, value, detail = map(escaped, (tile.title, tile.value, sentence(tile.detail)))
    light = "" if tile.light == "none" else f" ({tile.light})"
    return f"- {title}{light}: **{value}**. {detail}"


def _request(report: Report) -> Iterator[str]:
    """Yield what an application for compute time asks for, and what is expected at counts not measured."""
    advised = {(each.options, each.workers): each.framework for each in report.recommendations}
    rows = report.points.merge(report.cost, on=POINT, suffixes=("", "_of_cost")).to_dict("records")
    # Where the frameworks do not differ, each of them is recommended.
    chosen = [
        row for row in rows if advised.get((row["options"], row["workers"]), "") in (row["framework"], None)
    ]
    if chosen and not report.study.kind.unlearned:
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
        yield _column_table([*point_keys(report.study), *hours], chosen)
    if report.request_sentences:
        yield "## Requesting compute time"
        yield bullets(map(sentence, report.request_sentences))
        beyond = report.request[report.request["source"] != "measured"]
        if len(beyond):
            yield _column_table(table_of("request.csv").columns(report), beyond.to_dict("records"))


def _played(report: Report) -> Iterator[str]:
    """Yield the IoU of played and real runs at every number of workers; nothing without a played run."""
    for options, rows in report.played.points.groupby("options", sort=False):
        title = f": {options!s}" if options else ""
        yield f"## {report.study.score.heading} of played and real runs{escaped(title)}"
        yield _column_table(played_short_columns(report), rows.to_dict("records"))
    if len(report.played.points):
        yield escaped(sentence(played_meaning(report.study.score)))


def _column_table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    return markdown_table(columns, [[str(column.cell(row)) for column in columns] for row in rows])


def markdown_table(columns: Sequence[Column], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table of these cells; what would end a cell or start markup is escaped."""
    rules = ["--:" if column.kind == "number" else ":--" for column in columns]
    lines = [[escaped(column.heading) for column in columns], rules, *(map(escaped, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: object) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return MARKUP.sub(r"\\\g<0>", clean(text))


def _caption(report: Report) -> str:
    """Return what the table has; the confidence level is that of the fewest launches."""
    repeats = report.points["repeats"]
    runs = count(int(repeats.sum()), "run")
    bounded = report.points.loc[report.points["throughput_low"].notna(), "repeats"]
    intervals = "No intervals: they need 3 repeats of a point."
    if len(bounded):
        level = percent(coverage(int(bounded.min())), 0)
        intervals = f"In brackets: {level} intervals over launches (bootstrap)."
    measured = f"Medians over {runs}, {repeats_text(repeats)} per point, warm-up left out."
    measured += " Efficiency is speed-up / workers."
    return with_restriction(report.study.kind, f"{measured} {intervals}")
