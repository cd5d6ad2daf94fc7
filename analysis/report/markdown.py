"""The points as a Markdown table, for papers and proposals."""

import re
from collections.abc import Iterable, Sequence

from analysis.report.assemble import Report
from analysis.statistics.intervals import coverage
from analysis.text import Row, clean, count, repeats_text, sentence, series_name, with_interval

TEXT, NUMBER = ":--", "--:"
MARKUP = re.compile(r"[\\`*_{}<>#|$!]")


def summary_markdown(report: Report) -> str:
    """A table per set of options, a caption that says what the numbers are, verdicts and their doubts."""
    parts = [f"# {escaped(report.study.name)}: speed-up, efficiency and IoU"]
    for options, rows in report.points.groupby("options", sort=False):
        parts += [f"## {escaped(options)}"] if options else []
        parts.append(points_table(report, rows.to_dict("records")))
    parts += [_caption(report), *(f"**{escaped(verdict)}**" for verdict in report.verdicts)]
    parts += doubt_list(report)
    parts += [f"- {escaped(note)}" for note in report.notes]
    return "\n\n".join(parts) + "\n"


def doubt_list(report: Report) -> list[str]:
    """What was not equal in the comparison, as paragraphs; none where all was."""
    if not report.doubts:
        return []
    doubts = "\n".join(f"- {escaped(sentence(doubt))}" for doubt in report.doubts)
    return [f"Not equal in this comparison:\n\n{doubts}"]


def points_table(report: Report, rows: Sequence[Row]) -> str:
    """Framework, workers, repeats, throughput, speed-up, efficiency, deviation and IoU with intervals."""
    headings = ["framework", "workers", "repeats", report.study.unit]
    headings += ["speed-up", "efficiency", "deviation", "IoU"]
    cells = [
        [
            series_name(row, report.study.names),
            str(row["workers"]),
            str(row["repeats"]),
            with_interval(row, "throughput", "~4"),
            with_interval(row, "speedup", ".2f"),
            with_interval(row, "efficiency", ".1%"),
            with_interval(row, "deviation", ".1%"),
            with_interval(row, "iou", ".3f"),
        ]
        for row in rows
    ]
    return table(headings, [TEXT] + [NUMBER] * 7, cells)


def table(headings: Iterable[str], rules: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; what would end a cell or start markup is escaped."""
    lines = [_line(map(escaped, headings)), _line(rules), *(_line(map(escaped, row)) for row in rows)]
    return "\n".join(lines)


def escaped(text: object) -> str:
    """A text that Markdown shows as it is, on one line."""
    return MARKUP.sub(r"\\\g<0>", clean(text))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _caption(report: Report) -> str:
    repeats = report.points["repeats"]
    runs = count(int(repeats.sum()), "run")
    measured = f"Medians over {runs}, {repeats_text(repeats)} per point; epochs flagged warm-up are left out."
    meaning = "Efficiency is speed-up / workers, deviation 1 - efficiency."
    with_bounds = report.points.loc[report.points["throughput_low"].notna(), "repeats"]
    if with_bounds.empty:
        return f"{measured} {meaning} No intervals: they need 3 repeats of a point."
    worth = f"{100 * coverage(int(with_bounds.min())):.0f} %"
    return f"{measured} {meaning} In brackets: {worth} intervals over launches (bootstrap)."
