"""The section of the page on saliency maps."""

from collections.abc import Iterator

from analysis.report.assemble import Report
from analysis.report.gallery import gallery
from analysis.report.view import Section
from analysis.text import Row, count, listed, sentence, series_name, with_interval

LEAD = (
    "A saliency map says which pixels a prediction needs: parts of the image are hidden many times over, and "
    "each part is credited with the score that is lost without it. Maps per second are maps over the seconds "
    "of the slowest worker, without overlays and curves. Speed-up and efficiency are against 1 worker of the "
    "same series, as for training."
)


def saliency_section(report: Report) -> Section:
    """Return the section without its tables and figures."""
    found = report.saliency
    remarks = tuple(map(sentence, (*found.warnings, *found.sentences, *_speeds(report))))
    conclusion, *others = remarks
    return Section(
        "saliency",
        "Where the network looks",
        conclusion,
        LEAD,
        is_open=True,
        remarks=tuple(others),
        gallery=gallery(report),
    )


def _speeds(report: Report) -> Iterator[str]:
    """Yield maps per second at the most workers of each set of options."""
    for options, points in report.saliency.points.groupby("options", sort=False):
        most = int(points["workers"].max())
        rows = points[points["workers"] == most].to_dict("records")
        of = f"{options!s}: " if options else ""
        yield f"{of}on {count(most, 'worker')} {listed(_speed(report, row) for row in rows)}"


def _speed(report: Report, row: Row) -> str:
    speed = f"{with_interval(row, 'maps_per_second', '~3')} maps / s"
    efficiency = with_interval(row, "efficiency", ".0%")
    return f"{series_name(row, report.study.names)} makes {speed}, at an efficiency of {efficiency}"
