"""Columns of the page's tables of the IoU, and what they leave to a line below the table."""

from analysis.report.assemble import Report
from analysis.report.page_columns import pair_keys, point_keys, short_arms
from analysis.report.view import Cell, Column, badge_column, integer_column, number_column
from analysis.text import Row, clean


def of_iou(report: Report) -> list[Column]:
    diverged = report.iou["diverged"].any()
    return [
        *point_keys(report),
        integer_column("seeds", "seeds"),
        number_column(report.study.score.title, "iou", ".4f"),
        number_column("difference to 1 worker", "difference", "+.4f"),
        badge_column("not inferior", "non_inferior"),
        *([integer_column("diverged", "diverged")] if diverged else []),
        _why_not_column(report),
    ]


def _why_not_column(report: Report) -> Column:
    """Return the column of what stands against "not inferior", without what the other columns say."""
    shared = shared_reasons(report)

    def cell(row: Row) -> Cell:
        reasons = [each for each in _reasons(row) if each not in shared]
        return Cell("; ".join(reasons) if row["non_inferior"] in ("no", "not shown") else "")

    return Column("why not", cell, "text")


def shared_reasons(report: Report) -> tuple[str, ...]:
    """Return what stands behind every answer alike, such as the confidence level and the test images."""
    rows = report.iou[report.iou["workers"] > 1].to_dict("records")
    if not rows:
        return ()
    reasons = [_reasons(row) for row in rows]
    return tuple(each for each in reasons[0] if all(each in others for others in reasons))


def _reasons(row: Row) -> list[str]:
    """Return the reasons of a row; the difference has its own column, and the margin stands in the lead."""
    reasons = clean(row["why"]).split("; ")
    return [each for each in reasons if not each.startswith("difference ")]


def of_iou_between(report: Report) -> list[Column]:
    return [
        *pair_keys(),
        integer_column("pairs", "pairs"),
        number_column(f"difference {short_arms(report, ' - ')}", "difference", "+.4f"),
        badge_column("equal within the margin", "equal_within_margin"),
    ]
