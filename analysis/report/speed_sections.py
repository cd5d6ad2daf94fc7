"""The sections on speed: every point, the frameworks against each other, the prediction."""

import pandas as pd

from analysis.report.assemble import Report
from analysis.report.figure_files import FigureFiles
from analysis.report.view import Cell, Column, Section, figure, grid, series, text, whole
from analysis.text import Row, number, sentence

MOST_NOTES = 12


def points_section(report: Report, figures: FigureFiles) -> Section:
    """Throughput, speed-up, efficiency and deviation of every point."""
    columns = [
        series(report.study.names),
        whole("workers", "workers"),
        whole("repeats", "repeats"),
        figure(f"throughput, {report.study.unit}", "throughput", "~4"),
        figure("speed-up", "speedup", ".2f"),
        figure("efficiency", "efficiency", ".1%"),
        figure("deviation", "deviation", ".1%"),
        figure("efficiency against the best 1-worker point", "efficiency_common", ".1%"),
    ]
    return Section(
        "points",
        "Every point",
        "A point is one framework at one worker count. Numbers are medians over its repeats, with the "
        "interval over launches in brackets. Efficiency is speed-up divided by workers; deviation "
        "is what is missing to 1.",
        figures.in_section("points"),
        (grid("points", "Throughput and scaling of every point", report.points, columns, "summary.csv"),),
        absent=figures.missing_in_section("points"),
    )


def against_section(report: Report) -> Section:
    """Native DDP against Horovod at every common worker count."""
    native, horovod = report.study.names.values()
    title = f"{native[:1].upper()}{native[1:]} against {horovod}"
    short = " / ".join(report.study.short_names.values())
    columns = [
        *both_knobs(report.comparisons),
        whole("workers", "workers"),
        whole("pairs", "pairs"),
        figure(f"throughput {short}", "ratio", ".3f"),
        figure("worth of the interval", "coverage", ".0%", bounded=False),
        text("outcome", "outcome"),
        Column("repeats that would decide", _needed),
    ]
    caption = f"{title} at every worker count that both have"
    return Section(
        "against",
        title,
        f"The ratio of throughputs, paired by repeat: above 1 {native} is faster. The difference is "
        "significant where the whole interval lies on one side of 1.",
        grids=(grid("comparison", caption, report.comparisons, columns, "comparison.csv"),),
        remarks=_if_empty(report.comparisons, "The frameworks have no worker count in common."),
    )


def prediction_section(report: Report, figures: FigureFiles) -> Section:
    """What smaller worker counts predict of larger ones."""
    columns = [
        series(report.study.names),
        text("fitted on workers", "fitted_on"),
        whole("predicted for", "workers"),
        figure(f"predicted, {report.study.unit}", "predicted", "~4"),
        figure("measured", "measured", "~4", bounded=False),
        Column("error", lambda row: Cell(number(row["error"], "+.1%"), kind="number")),
    ]
    caption = "Predicted throughput, with its error at every larger worker count that was held out"
    return Section(
        "prediction",
        "Prediction",
        "A model of the step time, fitted on the smaller worker counts only. The error at the larger ones, "
        "which the fit has not seen, says how far an extrapolation may be trusted.",
        figures.in_section("prediction"),
        (grid("predictions", caption, _told(report.predictions), columns, "predictions.csv"),),
        remarks=tuple(sentence(note) for note in report.prediction_notes[:MOST_NOTES]),
        absent=figures.missing_in_section("prediction"),
    )


def _told(predictions: pd.DataFrame) -> pd.DataFrame:
    """Held-out points and extrapolations; how a fit meets its own points is no news."""
    return predictions[predictions["held_out"] | predictions["measured"].isna()]


def _needed(row: Row) -> Cell:
    undecided = not str(row["outcome"]).endswith("faster")
    return Cell(number(row["repeats_needed"], ",.0f") if undecided else "", kind="number")


def both_knobs(table: pd.DataFrame) -> list[Column]:
    """Which settings of knobs a row compares, where they vary."""
    names = {"native_knobs": "native DDP with", "horovod_knobs": "Horovod with"}
    return [text(heading, name) for name, heading in names.items() if table[name].ne("").any()]


def _if_empty(table: pd.DataFrame, remark: str) -> tuple[str, ...]:
    return () if len(table) else (remark,)
