"""Write the points as a LaTeX table, for papers."""

import re
from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.report.assemble import Report
from analysis.report.played_columns import played_meaning, played_short_columns
from analysis.report.view import Column, framework_column, integer_column, number_column
from analysis.restriction import restriction_words, with_restriction
from analysis.text import UNKNOWN, Row, clean, repeats_text, sentence

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # After the end of a row they would start an optional argument.
    "[": "{[}",
    "]": "{]}",
    # After the end of a row it would be a part of that command.
    "*": "{*}",
    # BibTeX counts braces, also behind a backslash.
    "{": r"\textbraceleft{}",
    "}": r"\textbraceright{}",
    UNKNOWN: "--",
} | {character: f"\\{character}" for character in "&%$#_"}
_TO_ESCAPE = re.compile("|".join(map(re.escape, _SPECIAL)))


def latex_escaped(text: object) -> str:
    """Return a text that LaTeX prints as it is, on one line."""
    return _TO_ESCAPE.sub(lambda found: _SPECIAL[found[0]], clean(text))


def summary_latex(report: Report) -> str:
    """Return a table of all points with their intervals, to be included in a document with booktabs."""
    columns = _columns(report)
    places = "".join("r" if column.kind == "number" else "l" for column in columns)
    lines = [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{latex_escaped(_caption(report))}}}",
        f"  \\label{{tab:{_label(report.study.name)}}}",
        f"  \\begin{{tabular}}{{{places}}}",
        r"    \toprule",
        _line(latex_escaped(column.heading) for column in columns),
        *_rows(_points(report), columns),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _columns(report: Report) -> Sequence[Column]:
    """Return speed and IoU; of a study of played runs only, which have no speed, the IoU."""
    if report.points.empty:
        return played_short_columns(report)
    return [
        framework_column(report.study.names),
        integer_column("workers", "workers"),
        integer_column("repeats", "repeats"),
        number_column("speed-up", "speedup", ".2f"),
        number_column("efficiency", "efficiency", ".1%"),
        number_column(report.study.score.title, "iou", ".3f"),
    ]


def _caption(report: Report) -> str:
    score = report.study.score
    if report.points.empty:
        meaning = sentence(played_meaning(score))
        return f"{sentence(report.study.name)} {meaning} {score.heading}: {report.study.iou_scope}."
    repeats = repeats_text(report.points["repeats"])
    medians = (
        f"Medians over the runs of a point, {repeats} each; {score.title}: "
        f"{report.study.iou_scope}. Speed-up is over 1 worker, efficiency is speed-up / workers; in "
        "brackets: intervals over runs."
    )
    return f"{sentence(report.study.name)} {with_restriction(restriction_words(report.study), medians)}"


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "points"


def _points(report: Report) -> pd.DataFrame:
    return report.played.points if report.points.empty else report.points


def _rows(table: pd.DataFrame, columns: Sequence[Column]) -> Iterator[str]:
    """Yield the rows of each set of options below a rule and, where options vary, their name."""
    for options, points in table.groupby("options", sort=False):
        yield r"    \midrule"
        if options:
            yield f"    \\multicolumn{{{len(columns)}}}{{l}}{{{latex_escaped(options)}}} \\\\"
        rows: Sequence[Row] = points.to_dict("records")
        yield from (_line(latex_escaped(column.cell(row)) for column in columns) for row in rows)


def _line(cells: Iterator[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"
