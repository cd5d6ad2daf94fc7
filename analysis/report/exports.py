"""The files of a report for other programs and for papers: JSON, LaTeX and BibTeX."""

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata

import numpy as np
import pandas as pd

from analysis.report.assemble import Report
from analysis.report.columns import table_of
from analysis.report.provenance import origins
from analysis.report.tables import Column, integer_column, number_column, point_keys, text_column
from analysis.restriction import with_restriction
from analysis.score import Score
from analysis.study import Study
from analysis.text import UNKNOWN, clean, repeats_text, sentence
from unet_scaling.interpreter import CODE_FOLDER, IS_CLONE

# Counted up when a key is removed, renamed or changes its meaning; new keys may come at any time.
SCHEMA_VERSION = 2
# More than any measurement has, and the same on every processor: as in the CSV files.
_SIGNIFICANT_DIGITS = 10
_LISTED = {
    "points": "summary.csv", "comparisons": "comparison.csv", "iou": "iou.csv", "played": "played.csv",
    "plan": "plan.csv", "task_scores": "task_scores.csv",
}  # fmt: skip
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # After the end of a row they would start an optional argument, or be a part of that command.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    # BibTeX counts braces, also behind a backslash.
    "{": r"\textbraceleft{}",
    "}": r"\textbraceright{}",
    UNKNOWN: "--",
} | {character: f"\\{character}" for character in "&%$#_"}
_TO_ESCAPE = re.compile("|".join(map(re.escape, _SPECIAL)))
# The one place that says how the software and the study it starts from are cited.
CITATION_NAME = "CITATION.cff"
_FIELD = re.compile(r'^ *(?:- )?([a-z-]+): *"?(.+?)"?$', re.MULTILINE)


def export_files(report: Report) -> dict[str, bytes]:
    """Return the contents of summary.json, summary.tex and citation.bib, by file name."""
    return {
        "summary.json": summary_json(report).encode(),
        "summary.tex": summary_latex(report).encode(),
        "citation.bib": citation_bibtex(report.study.subject).encode(),
    }


def speed_columns(report: Report) -> list[Column]:
    """Return the columns of every table of points on a terminal and in papers."""
    columns = table_of("summary.csv").columns(report)
    return columns[: [column.heading for column in columns].index("efficiency") + 1]


def played_short_columns(report: Report) -> list[Column]:
    """Return the columns on played runs that a terminal or a paper has room for."""
    return [
        *point_keys(report.study),
        text_column("runs", "kind"),
        integer_column("seeds", "seeds"),
        number_column(report.study.score.title, "iou", ".3f"),
        number_column("difference to 1 worker", "difference", "+.3f"),
        text_column("verdict", "verdict"),
        text_column("highest here", "best", "mark"),
    ]


def played_meaning(score: Score) -> str:
    """Return what the numbers of a table of played runs are."""
    return (
        f"played: one worker trained exactly as so many, so its {score.title} is theirs and its seconds are "
        "no speed; medians and intervals are over seeds"
    )


def summary_json(report: Report) -> str:
    """Return the answers, verdicts, recommendations, points, checks and provenance of a report as JSON.

    What is not known is null, never NaN, 0 or -1.
    """
    study = report.study
    key = study.score.key
    headlines = {answer.options: answer.headline for answer in report.answers}
    recommendations = [
        {name: getattr(advice, name) for name in ("options", "framework", "workers")}
        | {"sentence": headlines[advice.options]}
        for advice in report.recommendations
    ]
    content: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "study": study.name,
        "throughput_unit": study.unit,
        key("iou_scope"): study.iou_scope,
        "frameworks": study.names,
        "criteria": {key(name): value for name, value in study.criteria.model_dump().items()},
        "left_out": study.all_left_out[["run", "state", "reason"]].to_dict("records"),
        "provenance": origins(study.subject),
        "answers": [dataclasses.asdict(answer) for answer in report.answers],
        "recommendations": recommendations,
        # Of the key of a comparison, options, knobs of both and workers: a verdict with one is on Horovod.
        "verdicts": [
            dataclasses.asdict(verdict) | {"pair": verdict.pair and verdict.pair[:4]}
            for verdict in report.verdicts
        ],
        **{key(name): _rows(report, file) for name, file in _LISTED.items()},
    }
    maps = report.saliency
    if not maps.is_empty:
        content["saliency"] = {
            "points": _rows(report, "saliency.csv"),
            "faithfulness": _rows(report, "saliency_faithfulness.csv"),
            "sentences": maps.sentences,
            "warnings": maps.warnings,
        }
    content["checks"] = report.fairness.to_dict("records")
    content |= {"doubts": report.doubts, "notes": report.notes}
    return json.dumps(_plain(content), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _rows(report: Report, file: str) -> object:
    """Return the rows of a table with the documented columns of its file."""
    table = table_of(file)
    written = table.written(report)
    return table.make(report)[[*written]].rename(columns=written).to_dict("records")


def _plain(value: object) -> object:
    """Return a value as JSON has it: clean texts, numbers of ten digits, null for what is not known."""
    if isinstance(value, Mapping):
        return {clean(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or plain is pd.NA:
        return None
    if isinstance(plain, float):
        return float(f"{plain:.{_SIGNIFICANT_DIGITS}g}") if math.isfinite(plain) else None
    assert isinstance(plain, bool | int), plain
    return plain


def latex_escaped(text: object) -> str:
    """Return a text that LaTeX prints as it is, on one line."""
    return _TO_ESCAPE.sub(lambda found: _SPECIAL[found[0]], clean(text))


def summary_latex(report: Report) -> str:
    """Return a table of all points with their intervals, to be included in a document with booktabs.

    Of a study of played runs only, which have no speed, it is the table of their score.
    """
    score = report.study.score
    points, columns = report.played.points, played_short_columns(report)
    caption = f"{sentence(played_meaning(score))} {score.heading}: {report.study.iou_scope}."
    if len(report.points):
        points = report.points
        speeds = [each for each in speed_columns(report) if each.heading != report.study.unit]
        columns = [*speeds, number_column(score.title, "iou", ".3f")]
        medians = (
            f"Medians over the runs of a point, {repeats_text(points['repeats'])} each; {score.title}: "
            f"{report.study.iou_scope}. Speed-up is over 1 worker, efficiency is speed-up / workers; in "
            "brackets: intervals over runs."
        )
        caption = with_restriction(report.study.kind, medians)
    label = re.sub(r"[^A-Za-z0-9]+", "-", report.study.name).strip("-") or "points"
    lines = [
        r"% Needs \usepackage{booktabs}.",
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{latex_escaped(f'{sentence(report.study.name)} {caption}')}}}",
        f"  \\label{{tab:{label}}}",
        f"  \\begin{{tabular}}{{{''.join('r' if each.kind == 'number' else 'l' for each in columns)}}}",
        r"    \toprule",
        _latex_row(column.heading for column in columns),
    ]
    for options, rows in points.groupby("options", sort=False):
        lines.append(r"    \midrule")
        if options:
            lines.append(f"    \\multicolumn{{{len(columns)}}}{{l}}{{{latex_escaped(options)}}} \\\\")
        lines += [_latex_row(column.cell(row) for column in columns) for row in rows.to_dict("records")]
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]) + "\n"


def _latex_row(cells: Iterable[object]) -> str:
    return f"    {' & '.join(map(latex_escaped, cells))} \\\\"


def citation_bibtex(study: Study) -> str:
    """Return the entries as BibTeX: this software, with its version and the commits that the records name.

    Older logs have that of the study whose logs they are, too. Raises OSError where CITATION.cff is missing.
    """
    if IS_CLONE:
        text = (CODE_FOLDER / CITATION_NAME).read_text()
    else:
        text = metadata.distribution("unet-scaling").read_text(f"licenses/{CITATION_NAME}") or ""
    software, _, references = text.partition("\nreferences:\n")
    values = dict(_FIELD.findall(software))
    commits = dict.fromkeys(
        f"commit {header.commit[:10]}{' with uncommitted changes' if header.dirty else ''}"
        for header in study.headers.values()
        if header.commit
    )
    version = ", ".join([f"Version {values['version']}", *commits, values["license"]])
    entries = [_bibtex_entry("unet-scaling", software, version)]
    if not study.provenance_known:
        note = "The published study whose layout of logs this report reads"
        entries.append(_bibtex_entry("pytorch-unet-scaling", references.split("\n  - ")[0], note))
    return "\n".join(entries)


def _bibtex_entry(key: str, block: str, note: str) -> str:
    values = dict(_FIELD.findall(block))
    people = _FIELD.findall(block.partition("authors:")[2])
    names = [value for name, value in people if name in ("name", "family-names", "alias")]
    authors = ["others" if name == "and others" else name for name in names]
    fields = {
        "author": " and ".join(f"{{{latex_escaped(name)}}}" for name in authors),
        "title": f"{{{latex_escaped(values['title'])}}}",
        "url": values.get("repository-code", ""),
        "note": latex_escaped(note),
    }
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
    return f"@misc{{{key},\n{lines}}}\n"
