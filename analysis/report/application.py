"""What an application for compute time asks for: text, tables, figures and method."""

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.findings.cost import CLOCK
from analysis.findings.recommendation import Recommendation
from analysis.report.assemble import Report
from analysis.report.figure_files import FigureFiles
from analysis.report.markdown import NUMBER, TEXT, doubt_list, escaped, points_table, table
from analysis.report.provenance import origins
from analysis.study import POINT, Names
from analysis.text import (
    UNKNOWN,
    Row,
    count,
    number,
    repeats_text,
    sentence,
    series_name,
    unit_of,
    with_interval,
)

TRAININGS = (1, 10, 100)
FIGURES = {
    "speedup": "Speed-up over 1 worker against the ideal",
    "efficiency": "Efficiency: speed-up divided by workers",
}


def application_text(report: Report, figures: FigureFiles) -> str:
    """Markdown to be copied into a proposal. It claims no more than the report does."""
    parts = [
        f"# Scaling of {escaped(report.study.name)}: for an application for compute time",
        "Copy what you need. Every number is of this report; what it does not know, it does not say.",
    ]
    rows = report.points.merge(report.cost, on=POINT, suffixes=("", "_of_cost"))
    of_options: dict[str, list[Row]] = {}
    for row in rows.to_dict("records"):
        of_options.setdefault(row["options"], []).append(row)
    for advice in report.recommendations:
        parts += _of_options(report, advice, of_options[advice.options])
    parts += ["## Figures", *_figures(figures), "## How it was measured", *_method(report)]
    return "\n\n".join(parts) + "\n"


def _of_options(report: Report, advice: Recommendation, rows: Sequence[Row]) -> Iterator[str]:
    yield f"## {escaped(advice.options)}" if advice.options else "## Scaling"
    yield escaped(sentence(advice.sentence))
    yield from doubt_list(report)
    chosen = [row for row in rows if _recommended(row, advice)]
    yield from (_in_words(report, row) for row in chosen)
    yield points_table(report, rows)
    yield "Cost of one training, in medians:"
    yield _costs(rows, report.study.names)
    if chosen:
        yield "What to ask for (trainings that you plan, times the worker-hours of one):"
        yield _request(chosen, report.study.names)


def _recommended(row: Row, advice: Recommendation) -> bool:
    """Where the frameworks do not differ, the points of both are."""
    return row["workers"] == advice.workers and advice.framework in (row["framework"], None)


def _in_words(report: Report, row: Row) -> str:
    size, unit = unit_of(pd.Series([row["training_seconds"]]))
    time = with_interval(row, "training_seconds", "~3", size)
    return (
        f"On {count(int(row['workers']), 'worker')} {series_name(row, report.study.names)} processes "
        f"{with_interval(row, 'throughput', '~4')} {report.study.unit}: "
        f"a speed-up of {with_interval(row, 'speedup', '.2f')} over 1 worker, "
        f"an efficiency of {with_interval(row, 'efficiency', '.1%')}. "
        f"One training takes {time} {unit} and costs {with_interval(row, 'worker_hours', '~3')} worker-hours "
        f"({CLOCK})."
    )


def _costs(rows: Sequence[Row], names: Names) -> str:
    size, unit = unit_of(pd.Series([row["training_seconds"] for row in rows]))
    cells = [
        [
            series_name(row, names),
            str(row["workers"]),
            number(row["nodes"], ".0f"),
            with_interval(row, "training_seconds", "~3", size),
            with_interval(row, "worker_hours", "~3"),
            with_interval(row, "node_hours", "~3"),
        ]
        for row in rows
    ]
    headings = ("framework", "workers", "nodes", f"training, {unit}", "worker-hours", "node-hours")
    return table(headings, [TEXT] + [NUMBER] * 5, cells)


def _request(chosen: Sequence[Row], names: Names) -> str:
    rows = [
        [
            series_name(row, names),
            str(row["workers"]),
            *(number(row["worker_hours"] * n, "~3") for n in TRAININGS),
        ]
        for row in chosen
    ]
    headings = ["framework", "workers", *(f"worker-hours, {count(n, 'training')}" for n in TRAININGS)]
    return table(headings, [TEXT] + [NUMBER] * 4, rows)


def _figures(figures: FigureFiles) -> Iterator[str]:
    for name, title in FIGURES.items():
        if name in figures.drawn:
            drawn = figures.drawn[name]
            yield f"![{escaped(drawn.alternative)}]({name}.svg)"
            yield f"*{title}. {escaped(drawn.caption)}*"
        else:
            yield f"{title}: not drawn: {escaped(figures.missing[name].reason)}."


def _method(report: Report) -> Iterator[str]:
    study = report.study
    yield (
        f"{count(len(study.runs), 'run')} are used, {repeats_text(report.points['repeats'])} per point; "
        f"{count(len(study.left_out), 'run')} left out. Throughput is work done over the seconds of the "
        "slowest worker, in epochs after the warm-up. A repeat is one independent launch with its own seed; "
        "numbers are medians over launches."
    )
    if not study.provenance_known:
        yield "\n".join(f"- {escaped(sentence(note))}" for note in study.notes)
        return
    yield f"IoU: {escaped(study.iou_scope)}, margin of non-inferiority {study.criteria.iou_margin:g}."
    rows = [[origin.name, ", ".join(origin.values) or UNKNOWN] for origin in origins(study)]
    yield table(["origin", "value"], [TEXT, TEXT], rows)
    yield table(
        ["how fair is the comparison", "", "fact"],
        [TEXT] * 3,
        report.fairness[["check", "mark", "fact"]].to_numpy().tolist(),
    )
