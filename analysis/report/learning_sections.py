"""The sections on learning and on what it costs: IoU, loss, cost."""

import pandas as pd

from analysis.findings.cost import CLOCK
from analysis.report.assemble import Report
from analysis.report.figure_files import FigureFiles
from analysis.report.speed_sections import both_knobs
from analysis.report.view import Cell, Column, Section, figure, grid, mark, series, whole
from analysis.study import POINT
from analysis.text import Row, clean, sentence, unit_of


def iou_section(report: Report, figures: FigureFiles) -> Section:
    """IoU against 1 worker, and between the frameworks."""
    margin, names = report.study.criteria.iou_margin, report.study.names
    short = [*report.study.short_names.values()]
    points = [
        series(report.study.names),
        whole("workers", "workers"),
        whole("seeds", "seeds"),
        figure("IoU", "iou", ".4f"),
        figure("difference to 1 worker", "difference", "+.4f"),
        mark("not inferior", "non_inferior"),
        *([whole("diverged", "diverged")] if report.iou["diverged"].any() else []),
        Column("why not", _why_not, "text"),
    ]
    between = [
        *both_knobs(report.iou_between),
        whole("workers", "workers"),
        whole("pairs", "pairs"),
        figure(f"difference {short[0]} - {short[1]}", "difference", "+.4f"),
        mark("equal within the margin", "equal_within_margin"),
    ]
    return Section(
        "iou",
        "IoU",
        f"Computed on: {clean(report.study.iou_scope)}{_test_images(report)}. A point is not inferior where "
        f"the whole interval of its difference to 1 worker, paired by seed, lies above -{margin:g}.",
        figures.in_section("iou"),
        (
            grid(
                "iou-points",
                "IoU of every point against the same framework on 1 worker",
                report.iou,
                points,
                "iou.csv",
            ),
            grid(
                "iou-frameworks",
                f"IoU of {' against '.join(names.values())}",
                report.iou_between,
                between,
                "iou_between_frameworks.csv",
            ),
        ),
        absent=figures.missing_in_section("iou"),
    )


def _why_not(row: Row) -> Cell:
    return Cell(clean(row["why"]) if row["non_inferior"] in ("no", "not shown") else "")


def _test_images(report: Report) -> str:
    images = sorted(report.study.runs["test_images"].dropna().unique())
    return f" ({', '.join(f'{value:,.0f}' for value in images)} images)" if images else ""


def loss_section(report: Report, figures: FigureFiles) -> Section:
    """The loss over epochs and seconds."""
    runs = report.study.runs.groupby(POINT, sort=False)["loss"]
    table = runs.agg(["median", "min", "max"]).reset_index()
    columns = [
        series(report.study.names),
        whole("workers", "workers"),
        *(
            figure(name, key, "~4", bounded=False)
            for key, name in (("median", "median"), ("min", "smallest"), ("max", "largest"))
        ),
    ]
    return Section(
        "loss",
        "Training loss",
        "More workers mean larger batches and fewer steps. Over epochs the curves show what that costs in "
        "learning, over seconds what is left of the speed-up.",
        figures.in_section("loss"),
        (grid("loss", "Loss of the last epoch, over the runs of each point", table, columns, "runs.csv"),),
        absent=figures.missing_in_section("loss"),
    )


def cost_section(report: Report, figures: FigureFiles) -> Section:
    """Time and cost of every point."""
    size, unit = unit_of(report.cost["training_seconds"])
    size_to, unit_to = unit_of(report.cost["seconds_to_target"])
    share, name = _hours(report.cost["worker_hours"])
    columns = [
        series(report.study.names),
        whole("workers", "workers"),
        whole("nodes", "nodes"),
        figure(f"training, {unit}", "training_seconds", "~3", scale=size),
        figure(f"worker-{name}", "worker_hours", "~3", scale=share),
        figure(f"node-{name}", "node_hours", "~3", scale=share, bounded=False),
        figure(f"time to the IoU, {unit_to}", "seconds_to_target", "~3", scale=size_to),
        figure(f"worker-{name} to it", "worker_hours_to_target", "~3", scale=share, bounded=False),
        whole("runs that reached it", "runs_to_target"),
        Column("in the Pareto set", _pareto, "text"),
    ]
    kinds = report.cost["pareto_of"].drop_duplicates()
    return Section(
        "cost",
        "Cost",
        f"Clock: {CLOCK}. The Pareto set holds the points that no other beats in both time and worker-hours.",
        figures.in_section("cost"),
        (grid("cost", "Time and cost of every point", report.cost, columns, "cost.csv"),),
        remarks=(sentence(report.target), *(f"Pareto set of {clean(kind)}." for kind in kinds if kind)),
        absent=figures.missing_in_section("cost"),
    )


def _hours(hours: "pd.Series[float]") -> tuple[float, str]:
    """The unit in which hours read best, as a part of an hour, and its name."""
    size, unit = unit_of(3600 * hours)
    return size / 3600, {"s": "seconds", "min": "minutes", "h": "hours"}[unit]


def _pareto(row: Row) -> Cell:
    return Cell("yes", kind="yes") if row["pareto"] else Cell("no", kind="text")
