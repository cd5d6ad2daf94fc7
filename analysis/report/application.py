"""Write what an application for compute time asks for: text, tables, figures and method."""

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.findings.cost import CLOCK
from analysis.findings.recommendation import Recommendation
from analysis.report.assemble import Report
from analysis.report.figure_files import FigureFiles
from analysis.report.markdown import (
    TEXT,
    column_table,
    doubt_list,
    escaped,
    played_parts,
    points_table,
    table,
)
from analysis.report.page_columns import of_request, point_keys
from analysis.report.provenance import origins
from analysis.report.view import integer_column, number_column
from analysis.restriction import not_learned, restriction_words, with_restriction
from analysis.study import POINT
from analysis.text import (
    UNKNOWN,
    Row,
    count,
    labelled,
    repeats_text,
    sentence,
    series_name,
    unit_of,
    unit_of_value,
    with_interval,
)

# Numbers of trainings whose worker-hours are given.
TRAININGS = (1, 10, 100)


def application_text(report: Report, figures: FigureFiles) -> str:
    """Return Markdown to be copied into a proposal. It claims no more than the report does."""
    parts = [
        f"# Scaling of {escaped(report.study.name)}: for an application for compute time",
        "Copy what you need. Every number is of this report; what it does not know, it does not say.",
    ]
    headlines = {answer.options: answer.headline for answer in report.answers}
    of_options = _rows_by_options(report)
    for advice in report.recommendations:
        parts += _of_options(report, advice, headlines[advice.options], of_options[advice.options])
    parts += _before_asking(report)
    parts += _played(report)
    parts += ["## Figures", *_figures(figures), "## How it was measured", *_method(report)]
    return "\n\n".join(parts) + "\n"


def _before_asking(report: Report) -> Iterator[str]:
    """Yield what is expected at counts that were not measured, beside those that were."""
    if report.request_sentences:
        yield "## Before you ask for nodes"
        yield "\n".join(f"- {escaped(sentence(text))}" for text in report.request_sentences)
        yield column_table(of_request(report), report.request.to_dict("records"))


def _played(report: Report) -> Iterator[str]:
    """Yield what played runs say of the IoU, and the answers that rest on them alone."""
    real = {advice.options for advice in report.recommendations}
    for answer in report.answers:
        if answer.options not in real:
            yield f"**{escaped(sentence(labelled(answer.options, answer.headline)))}**"
    yield from played_parts(report)


def _rows_by_options(report: Report) -> dict[str, Sequence[Row]]:
    """Return the points with their cost, by set of options."""
    rows = report.points.merge(report.cost, on=POINT, suffixes=("", "_of_cost"))
    return {str(options): of.to_dict("records") for options, of in rows.groupby("options", sort=False)}


def _of_options(report: Report, advice: Recommendation, headline: str, rows: Sequence[Row]) -> Iterator[str]:
    yield f"## {escaped(advice.options)}" if advice.options else "## Scaling"
    yield f"**{escaped(sentence(headline))}**"
    yield from doubt_list(report)
    chosen = [row for row in rows if _recommended(row, advice)]
    yield from (escaped(_in_words(report, row)) for row in chosen)
    yield points_table(report, rows)
    if not report.study.is_emulated:
        yield "Cost of one training, in medians:"
        yield _costs(report, rows)
    if chosen:
        yield "What to ask for (trainings that you plan, times the worker-hours of one):"
        yield _request(report, chosen)


def _recommended(row: Row, advice: Recommendation) -> bool:
    """Return whether a point is recommended: where the frameworks do not differ, that of either."""
    return row["workers"] == advice.workers and advice.framework in (row["framework"], None)


def _in_words(report: Report, row: Row) -> str:
    size, unit = unit_of_value(row["training_seconds"])
    time = with_interval(row, "training_seconds", "~3", size)
    return (
        f"On {count(int(row['workers']), 'worker')} {series_name(row, report.study.names)} processes "
        f"{with_interval(row, 'throughput', '~4')} {report.study.unit}: "
        f"a speed-up of {with_interval(row, 'speedup', '.2f')} over 1 worker, "
        f"an efficiency of {with_interval(row, 'efficiency', '.1%')}. "
        f"One training takes {time} {unit} and costs {with_interval(row, 'worker_hours', '~3')} worker-hours "
        f"({CLOCK})."
    )


def _costs(report: Report, rows: Sequence[Row]) -> str:
    size, unit = unit_of(pd.Series([row["training_seconds"] for row in rows]))
    columns = [
        *point_keys(report),
        integer_column("nodes", "nodes"),
        number_column(f"training, {unit}", "training_seconds", "~3", scale=size),
        number_column("worker-hours", "worker_hours", "~3"),
        number_column("node-hours", "node_hours", "~3"),
    ]
    return column_table(columns, rows)


def _request(report: Report, chosen: Sequence[Row]) -> str:
    hours = [
        number_column(
            f"worker-hours, {count(trainings, 'training')}",
            "worker_hours",
            "~3",
            scale=1 / trainings,
            bounded=False,
        )
        for trainings in TRAININGS
    ]
    return column_table([*point_keys(report), *hours], chosen)


def _figures(figures: FigureFiles) -> Iterator[str]:
    for name in ("scaling", "quality"):
        if name in figures.drawn:
            drawn = figures.drawn[name]
            yield f"![{escaped(drawn.alternative)}]({name}.svg)"
            yield f"*{escaped(drawn.caption)}*"


def _method(report: Report) -> Iterator[str]:
    study = report.study
    yield escaped(_what_is_measured(report))
    if not study.provenance_known:
        yield "\n".join(f"- {escaped(sentence(note))}" for note in study.notes)
        return
    margin = f", margin of non-inferiority {study.criteria.iou_margin:g}"
    yield f"{study.score.heading}: {escaped(study.iou_scope)}{'' if not_learned(study) else margin}."
    rows = [[origin.name, ", ".join(origin.values) or UNKNOWN] for origin in origins(study.subject)]
    yield table(["origin", "value"], [TEXT, TEXT], rows)
    checks = [[check.title, check.mark, check.fact] for check in report.checks]
    yield table(["how fair is the comparison", "", "fact"], [TEXT] * 3, checks)


def _what_is_measured(report: Report) -> str:
    if report.study.runs.empty and report.study.played is None:
        return "No run has an epoch after the warm-up: of saliency maps alone can be told."
    if report.study.runs.empty:
        score = report.study.score.title
        return f"Every run is played: of its {score} alone can be told, no time or speed is measured."
    used = (
        f"{count(len(report.study.runs), 'run')} are used, {repeats_text(report.points['repeats'])} per "
        f"point; {count(len(report.study.all_left_out), 'run')} left out. Throughput is work done over the "
        "seconds of the slowest worker, in epochs after the warm-up. A repeat is one independent launch with "
        "its own seed; numbers are medians over launches."
    )
    return with_restriction(restriction_words(report.study), used)
