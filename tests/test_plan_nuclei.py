"""The committed records of docs/plan_quality.md: real images, as 1 to 32 workers and on 1 and 2 real ones."""

import re

import numpy as np
import pytest

from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from tests.evidence import evidence
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import read_record


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report(load_study(evidence("plan_nuclei")))


def test_two_played_workers_reach_the_iou_of_two_real_ones(report: Report) -> None:
    points = report.played.points
    linear = points[(points["options"] == "rate_scaling=linear") & (points["workers"] == 2)].set_index("kind")
    real = linear.loc["real"]
    assert real["seeds"] == 5
    assert real["iou_low"] <= linear.loc["played", "iou"] <= real["iou_high"]
    assert any("IoU is 0.0000, on 2 workers (6 pairs of one seed)" in note for note in report.notes)


def test_the_page_says_what_the_records_say(report: Report) -> None:
    page = (PROJECT / "docs" / "plan_quality.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", page, flags=re.MULTILINE))
    points = report.played.points
    for workers, cells in rows.items():
        of_count = points[points["workers"] == int(workers)].itertuples()
        said = [f"{row.iou:.3f} [{row.iou_low:.3f}, {row.iou_high:.3f}]" for row in of_count]
        assert said
        assert all(each in cells for each in said)


def test_the_page_says_how_long_a_run_trained() -> None:
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for path in evidence("plan_nuclei").glob("*/run.jsonl"):
        record = read_record(path)
        assert record.header is not None
        plays = record.header.config.training.plays
        seconds[plays is not None].append(record.results[-1].training_seconds)
    page = " ".join((PROJECT / "docs" / "plan_quality.md").read_text().split())
    played, real = seconds[True], seconds[False]
    assert f"{len(played)} played runs trained for {np.mean(played):.0f} s each" in page
    assert f"{len(real)} real ones for {np.mean(real):.0f} s, on" in page
