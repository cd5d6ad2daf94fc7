"""The committed records of workers that wait like those of the published study, and the page on them."""

import statistics
from datetime import datetime
from pathlib import Path

import pytest

from analysis.loading.fidelity import infidelity
from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.report.provenance import origins
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import read_record

NATIVE = ("pytorch_native", "")
POLLS = ("horovod", "yield_when_idle=False")
YIELDS = ("horovod", "yield_when_idle=True")
# Of a study with one way of waiting, knobs have no name.
HOROVOD = ("horovod", "")
ARMS = {
    "published_emulated": (NATIVE, POLLS, YIELDS),
    "published_emulated_mpich": (NATIVE, HOROVOD),
}
COUNTS = (1, 2, 14)
REPEATS = 3


@pytest.fixture(scope="module", params=ARMS)
def report(request: pytest.FixtureRequest) -> Report:
    return make_report(load_study(PROJECT / "logs" / request.param))


def page() -> str:
    return (PROJECT / "docs" / "published_gap.md").read_text()


def test_the_page_says_what_the_records_say(report: Report) -> None:
    arms = ARMS[report.study.name]
    assert (len(report.study.runs), len(report.study.left_out)) == (REPEATS * len(arms) * len(COUNTS), 0)
    points = {
        (row["framework"], row["knobs"], row["workers"]): row for row in report.points.to_dict("records")
    }
    for workers in COUNTS:
        cells = []
        for arm in arms:
            point = points[*arm, workers]
            low, high = point["efficiency_low"], point["efficiency_high"]
            interval = f" [{low:.2f}, {high:.2f}]" if workers > 1 else ""
            cells += [f"{point['images_per_second']:.2f}", f"{point['efficiency']:.2f}{interval}"]
        assert f"| {workers} | {' | '.join(cells)} |" in page()


def test_nothing_in_the_fairness_table_is_no(report: Report) -> None:
    assert "no" not in {check.mark for check in report.checks}


def test_threads_that_compete_for_the_core_are_named_where_mpi_polls_and_only_there(report: Report) -> None:
    found = [each for each in report.diagnoses if each.rule == "core contention"]
    if report.study.name != "published_emulated":
        assert not found
        return
    assert {(each.knobs, each.workers) for each in found} == {(POLLS[1], 14)}
    assert "communication threads use 56.7 % of the cores' time" in found[0].evidence


def test_the_last_run_started_as_long_after_the_first_as_the_page_says(report: Report) -> None:
    (started,) = (origin for origin in origins(report.study) if origin.name == "started (UTC)")
    first, last = map(datetime.fromisoformat, started.values)
    minutes, seconds = divmod(int((last - first).total_seconds()), 60)
    assert f"started {minutes}:{seconds:02d} minutes after the first" in " ".join(page().split())


@pytest.mark.parametrize("k", [16, 28])
def test_the_page_says_what_the_records_of_two_cores_say(k: int) -> None:
    folder = PROJECT / "logs" / f"two_cores_k{k}"
    cells = [*of_two_cores(folder, "pytorch_native"), *of_two_cores(folder, "horovod")]
    assert f"| {k} | 14 | {' | '.join(cells)} |" in page()


def of_two_cores(folder: Path, framework: str) -> list[str]:
    """Return images per second, and seconds of data wait and wire of a step: medians of the launches."""
    records = [read_record(path) for path in folder.glob(f"{framework}-*/run.jsonl")]
    assert len(records) == REPEATS
    speeds, waits, wires = [], [], []
    for record in records:
        assert record.complete
        assert not infidelity(record)
        assert record.header is not None
        assert {len(worker.cores) for worker in record.header.workers} == {2}
        (epoch,) = (epoch for epoch in record.epochs if not epoch.warmup)
        assert epoch.budget is not None
        speeds.append(epoch.images / epoch.seconds)
        waits.append(statistics.mean(epoch.budget.data_wait_seconds) / epoch.steps)
        wires.append(epoch.budget.wire_seconds / epoch.steps)
    return [
        f"{statistics.median(speeds):.1f}",
        *(f"{statistics.median(each):.2f}" for each in (waits, wires)),
    ]
