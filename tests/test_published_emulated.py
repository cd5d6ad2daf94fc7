"""The committed records of 1, 2 and 14 workers that wait like those of the published study."""

from datetime import datetime

import pytest

from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.report.provenance import origins
from unet_scaling.study.config import PROJECT

POLLS, YIELDS = "yield_when_idle=False", "yield_when_idle=True"
ARMS = (("pytorch_native", ""), ("horovod", POLLS), ("horovod", YIELDS))


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report(load_study(PROJECT / "logs" / "published_emulated"))


def test_the_page_says_what_the_records_say(report: Report) -> None:
    assert (len(report.study.runs), len(report.study.left_out)) == (27, 0)
    page = (PROJECT / "docs" / "published_gap.md").read_text()
    points = {
        (row["framework"], row["knobs"], row["workers"]): row for row in report.points.to_dict("records")
    }
    for workers in (1, 2, 14):
        cells = []
        for arm in ARMS:
            point = points[*arm, workers]
            low, high = point["efficiency_low"], point["efficiency_high"]
            interval = f" [{low:.2f}, {high:.2f}]" if workers > 1 else ""
            cells += [f"{point['images_per_second']:.2f}", f"{point['efficiency']:.2f}{interval}"]
        assert f"| {workers} | {' | '.join(cells)} |" in page


def test_the_last_run_started_as_long_after_the_first_as_the_page_says(report: Report) -> None:
    (started,) = (origin for origin in origins(report.study) if origin.name == "started (UTC)")
    first, last = map(datetime.fromisoformat, started.values)
    minutes, seconds = divmod(int((last - first).total_seconds()), 60)
    page = " ".join((PROJECT / "docs" / "published_gap.md").read_text().split())
    assert f"started {minutes}:{seconds:02d} minutes after the first" in page


def test_threads_that_compete_for_the_core_are_named_where_mpi_polls_and_only_there(report: Report) -> None:
    found = [each for each in report.diagnoses if each.rule == "core contention"]
    assert {(each.knobs, each.workers) for each in found} == {(POLLS, 14)}
    assert "communication threads use 56.7 % of the cores' time" in found[0].evidence


def test_nothing_in_the_fairness_table_is_no(report: Report) -> None:
    assert "no" not in {check.mark for check in report.checks}
