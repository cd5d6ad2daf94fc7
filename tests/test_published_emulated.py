"""The committed records of workers that wait like those of the published study, and the page on them."""

import statistics
from datetime import datetime
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.report.provenance import origins
from tests.committed import LAUNCHES, assert_page_tells_predictions, faithful_launches
from tests.evidence import evidence
from unet_scaling.study.config import PROJECT

NATIVE = ("pytorch_native", "")
POLLS = ("horovod", "yield_when_idle=False")
YIELDS = ("horovod", "yield_when_idle=True")
# Of a study with one way of waiting, knobs have no name.
HOROVOD = ("horovod", "")
ARMS = {
    "published_emulated": (NATIVE, POLLS, YIELDS),
    "published_emulated_mpich": (NATIVE, HOROVOD),
}
COUNTS = {"published_emulated": (1, 2, 4, 8, 14), "published_emulated_mpich": (1, 2, 14)}
# Up to which workers the published logs that tests may read go.
PUBLISHED_COUNTS = (1, 2, 4, 8)
REFERENCE = PROJECT.parent / "shared" / "reference" / "v100"


@cache
def report_of(study: str) -> Report:
    return make_report(load_study(evidence(study)))


@pytest.fixture(params=ARMS)
def report(request: pytest.FixtureRequest) -> Report:
    return report_of(request.param)


def page() -> str:
    return (PROJECT / "docs" / "published_gap.md").read_text()


def test_the_page_says_what_the_records_say(report: Report) -> None:
    arms = ARMS[report.study.name]
    counts = COUNTS[report.study.name]
    assert (len(report.study.runs), len(report.study.left_out)) == (LAUNCHES * len(arms) * len(counts), 0)
    points = {
        (row["framework"], row["knobs"], row["workers"]): row for row in report.points.to_dict("records")
    }
    for workers in counts:
        cells = []
        for arm in arms:
            point = points[*arm, workers]
            low, high = point["efficiency_low"], point["efficiency_high"]
            interval = f" [{low:.2f}, {high:.2f}]" if workers > 1 else ""
            cells += [f"{point['images_per_second']:.2f}", f"{point['efficiency']:.2f}{interval}"]
        assert f"| {workers} | {' | '.join(cells)} |" in page()


def test_the_page_holds_horovod_against_native_ddp_as_the_records_do() -> None:
    report = report_of("published_emulated")
    counts = COUNTS["published_emulated"]
    speed = report.points.set_index(["framework", "knobs", "workers"])["images_per_second"]
    for name, arm in (("MPI polls", POLLS), ("MPI yields", YIELDS)):
        shares = [f"{speed[*arm, workers] / speed[*NATIVE, workers]:.0%}" for workers in counts]
        assert f"| emulated, {name} | {' | '.join(shares)} |".replace("%", " %") in page()


@pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"{REFERENCE} is absent")
def test_the_page_holds_horovod_against_native_ddp_as_the_published_logs_do() -> None:
    seconds = [
        [
            pd.read_csv(REFERENCE / f"{log}_{workers}.csv")["time_per_epoch"][1:].median()
            for workers in PUBLISHED_COUNTS
        ]
        for log in ("log", "log_hvd")
    ]
    shares = [f"{native / horovod:.0%}" for native, horovod in zip(*seconds, strict=True)]
    assert f"| published, V100 GPUs | {' | '.join(shares)} |".replace("%", " %") in page()


def test_predictions_were_written_before_the_runs_and_the_page_says_how_far_off_they_were() -> None:
    report = report_of("published_emulated")
    text = (PROJECT / "docs" / "prediction.md").read_text()
    assert_page_tells_predictions(report.study, text, counted=6, digits=1)


def test_nothing_in_the_fairness_table_is_no(report: Report) -> None:
    assert "no" not in {check.mark for check in report.checks}


def test_threads_that_compete_for_the_core_are_named_where_mpi_polls_and_only_there(report: Report) -> None:
    found = [each for each in report.diagnoses if each.rule == "core contention"]
    if report.study.name != "published_emulated":
        assert not found
        return
    assert {(each.knobs, each.workers) for each in found} == {(POLLS[1], 14)}
    assert "communication threads use 57.2 % of the cores' time" in found[0].evidence


def test_the_last_run_started_as_long_after_the_first_as_the_page_says(report: Report) -> None:
    (started,) = (origin for origin in origins(report.study) if origin.name == "started (UTC)")
    first, last = map(datetime.fromisoformat, started.values)
    minutes, seconds = divmod(int((last - first).total_seconds()), 60)
    assert f"started {minutes}:{seconds:02d} minutes after the first" in " ".join(page().split())


@pytest.mark.parametrize(
    ("study", "k", "workers"),
    [
        ("two_cores_k16_few", 16, 1),
        ("two_cores_k16_few", 16, 2),
        ("two_cores_k16", 16, 14),
        ("two_cores_k28", 28, 14),
    ],
)
def test_the_page_says_what_the_records_of_two_cores_say(study: str, k: int, workers: int) -> None:
    folder = evidence(study)
    cells = [cell for name in ("pytorch_native", "horovod") for cell in of_two_cores(folder, name, workers)]
    assert f"| {k} | {workers} | {' | '.join(cells)} |" in page()


def of_two_cores(folder: Path, framework: str, workers: int) -> list[str]:
    """Return images per second, and seconds of data wait and wire of a step: medians of the launches."""
    speeds, waits, wires = [], [], []
    for record in faithful_launches(folder, framework, workers):
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
