"""Columns of the page's tables of played runs."""

from analysis.report.assemble import Report
from analysis.report.page_columns import point_keys
from analysis.report.view import (
    Cell,
    Column,
    integer_column,
    number_column,
    run_column,
    text_column,
)
from analysis.score import Score
from analysis.text import Row, unit_of

VERDICT_KINDS = {
    "no loss": "yes",
    "loss": "no",
    "diverges": "no",
    "undecided": "unknown",
    "baseline": "baseline",
}


def played_meaning(score: Score) -> str:
    """Return what the numbers of a table of played runs are."""
    return (
        f"played: one worker trained exactly as so many, so its {score.title} is theirs and its seconds are "
        "no speed; medians and intervals are over seeds"
    )


def of_played(report: Report) -> list[Column]:
    return [
        *point_keys(report),
        text_column("runs", "kind"),
        integer_column("seeds", "seeds"),
        number_column(report.study.score.title, "iou", ".4f"),
        number_column("difference to 1 worker", "difference", "+.4f"),
        Column("verdict", _verdict, "text"),
        *([integer_column("diverged", "diverged")] if report.played.points["diverged"].any() else []),
        Column("highest here", lambda row: Cell("yes" if row["best"] else ""), "text"),
        Column("why not", _why_not, "text"),
    ]


def _verdict(row: Row) -> Cell:
    return Cell(row["verdict"], kind=VERDICT_KINDS[row["verdict"]])


def _why_not(row: Row) -> Cell:
    return Cell(row["why"] if row["verdict"] in ("loss", "undecided", "diverges") else "")


def of_plan(report: Report) -> list[Column]:
    """Return time and cost in the units in which this study's values read best."""
    size, unit = unit_of(report.played.plan["seconds_to_target"])
    return [
        *point_keys(report),
        number_column(f"{report.study.score.title} to reach", "target_iou", ".2f", bounded=False),
        integer_column("runs that reach it", "runs_to_target"),
        number_column("epochs to it", "epochs_to_target", "~3"),
        number_column("epoch, s", "seconds_per_epoch", "~3"),
        text_column("speed", "speed"),
        number_column(f"time to it, {unit}", "seconds_to_target", "~3", scale=size),
        number_column("worker-hours to it", "worker_hours_to_target", "~3"),
    ]


def of_played_runs(report: Report) -> list[Column]:
    return [
        run_column("run", "run"),
        *point_keys(report),
        integer_column("repeat", "repeat"),
        number_column("loss", "loss", "~4", bounded=False),
        number_column(report.study.score.title, "iou", ".4f", bounded=False),
    ]


def played_short_columns(report: Report) -> list[Column]:
    """Return the columns that a terminal or a paper has room for."""
    return [
        *point_keys(report),
        text_column("runs", "kind"),
        integer_column("seeds", "seeds"),
        number_column(report.study.score.title, "iou", ".3f"),
        number_column("difference to 1 worker", "difference", "+.3f"),
        text_column("verdict", "verdict"),
        Column("highest here", lambda row: Cell("yes" if row["best"] else ""), "text"),
    ]
