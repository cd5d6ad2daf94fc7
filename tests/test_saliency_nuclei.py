"""The committed records of docs/saliency.md: where a network looks that was trained on real images."""

import pytest

from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.text import with_interval
from tests.evidence import evidence
from unet_scaling.study.config import PROJECT

PAGE = PROJECT / "docs" / "saliency.md"


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report(load_study(evidence("saliency_nuclei")))


def test_every_run_is_used_and_every_manifest_fits(report: Report) -> None:
    assert report.study.left_out.empty
    assert set(report.study.explained) == set(report.study.runs["run"])


def test_the_page_says_what_the_records_say(report: Report) -> None:
    page = " ".join(PAGE.read_text().split())
    for sentence in report.saliency.sentences:
        assert sentence in page, sentence


def test_the_table_of_the_page_is_that_of_the_records(report: Report) -> None:
    rows = {
        (row["framework"], row["split"], row["workers"]): row
        for row in report.saliency.points.to_dict("records")
    }
    for (framework, split, workers), row in rows.items():
        name = report.study.names[framework]
        cells = [with_interval(row, "maps_per_second", "~3"), with_interval(row, "speedup", ".2f")]
        line = f"| {name} | {split} | {workers} | {' | '.join(cells)} |"
        assert line in PAGE.read_text(), line
